"""seed_oss: llama whose queries, keys and values have biases, and the output one of its own."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_out_bias,
        mlp_bias=config.mlp_bias,
    )


SEED_OSS = llamalike.family(
    _translate, "head_dim attention_bias attention_out_bias mlp_bias residual_dropout"
)
