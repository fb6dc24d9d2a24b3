"""gptj: rotary pairs side by side, attention and MLP side by side, a bias in the head."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family
from jaxscore.models.families.gptlike import BUFFERS, gptlike, projected, sources
from jaxscore.models.rope import rotary


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(config, rotary=True, scale_attn_weights=True)
    if not config.rotary_dim:
        raise InputError(f"rotary_dim is {config.rotary_dim!r}, expected a number of channels")
    return gptlike(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        parallel="shared",
        head_bias=True,
        interleaved=True,
        rotary=(rotary(config.rotary_dim, {"rope_theta": 10000.0}),),
        rotary_of=(0,) * config.n_layer,
    )


GPTJ = Family(
    parts.reads(
        "vocab_size n_positions n_embd n_layer n_head n_inner rotary rotary_dim "
        "activation_function layer_norm_epsilon scale_attn_weights tie_word_embeddings"
    ),
    _translate,
    lambda config: sources(config, ("fc_in", "fc_out")) | projected("h.{i}.attn.", False),
    prefix="transformer.",
    buffers=BUFFERS,
)
