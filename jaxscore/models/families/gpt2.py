"""gpt2: learned positions, q, k and v in one tensor, weights [in, out]."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Part, Table
from jaxscore.models.families.gptlike import BUFFERS, gptlike, sources


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = parts.head_width(config)
    return gptlike(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        learned_positions=True,
        attention_scale=width**-0.5 if config.scale_attn_weights else 1.0,
        qkv_bias=True,
        out_bias=True,
    )


def _sources(config: DecoderConfig) -> Table:
    table, at, layer = sources(config), ("layers", "attention"), "h.{i}.attn."
    for k, name in enumerate("qkv"):
        part = Part(1, 3, k, k + 1)
        table |= parts.linear((*at, name), layer + "c_attn", True, part=part, transposed=True)
    return table | parts.linear((*at, "out"), layer + "c_proj", True, transposed=True)


GPT2 = Family(
    # reorder_and_upcast_attn changes rounding in half precision only; ours is float32 anyway.
    parts.reads(
        "vocab_size n_positions n_embd n_layer n_head n_inner activation_function "
        "layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx "
        "reorder_and_upcast_attn add_cross_attention tie_word_embeddings"
    ),
    _translate,
    _sources,
    prefix="transformer.",
    buffers=BUFFERS,
)
