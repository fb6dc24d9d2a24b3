"""gpt_neo: learned positions, scores that are not scaled, windows in every other layer."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family
from jaxscore.models.families.gptlike import BUFFERS, gptlike, projected, sources


def _translate(config: Any) -> DecoderConfig:
    """Scores are not scaled; a window in the layers that are called local."""
    kinds = {"global": 0, "local": parts.window(config, "window_size")}
    layers = parts.for_each_layer(config, "attention_layers")
    if unknown := sorted(set(layers) - set(kinds)):
        raise InputError(f"attention_layers has {unknown}, which is not handled")
    return gptlike(
        config,
        mlp_width=config.intermediate_size or 4 * config.hidden_size,
        learned_positions=True,
        attention_scale=1.0,
        out_bias=True,
        windows=tuple(kinds[kind] for kind in layers),
    )


GPT_NEO = Family(
    parts.reads(
        "vocab_size max_position_embeddings hidden_size num_layers num_heads intermediate_size "
        "attention_types attention_layers window_size activation_function layer_norm_epsilon "
        "tie_word_embeddings embed_dropout resid_dropout"
    ),
    _translate,
    lambda config: sources(config) | projected("h.{i}.attn.attention.", True),
    prefix="transformer.",
    buffers=BUFFERS,
)
