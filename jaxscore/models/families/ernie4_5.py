"""ernie4_5: llama that turns adjacent channels, with biases everywhere or nowhere."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike


def _translate(config: Any) -> DecoderConfig:
    bias = config.use_bias
    return llamalike.llamalike(
        config, interleaved=True, qkv_bias=bias, out_bias=bias, mlp_bias=bias
    )


ERNIE4_5 = llamalike.family(_translate, "head_dim use_bias")
