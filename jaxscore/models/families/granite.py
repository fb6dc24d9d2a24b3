"""granite: llama with multipliers on embeddings, scores, residuals and logits."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        attention_scale=config.attention_multiplier,
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        logit_scale=1 / config.logits_scaling,
        **llamalike.biases(config),
    )


GRANITE = llamalike.family(
    _translate,
    "attention_bias mlp_bias attention_multiplier embedding_multiplier residual_multiplier "
    "logits_scaling",
)
