"""arcee: llama whose MLP has no gate, and squares what a ReLU leaves."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(config, gated=False, **llamalike.biases(config))


ARCEE = llamalike.family(_translate, "head_dim attention_bias mlp_bias")
