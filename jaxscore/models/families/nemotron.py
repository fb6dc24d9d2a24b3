"""nemotron: layer norms stored less one, an MLP without gate that squares what a ReLU leaves."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table

PLUS = 1.0  # to every norm's scale


def _translate(config: Any) -> DecoderConfig:
    parts.rope_type(config, "default")
    # As the published files have them; PyTorch's class reads neither.
    parts.refuse(config, kv_channels=parts.head_width(config), layer_norm_eps=config.norm_eps)
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=config.norm_eps,
        gated=False,
        **llamalike.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    return (
        llamalike.ends(config, PLUS)
        | llamalike.norms_before(config, PLUS)
        | llamalike.attention_sources(config)
        | llamalike.mlp_sources(config)
    )


NEMOTRON = Family(
    (llamalike.READS - {"rms_norm_eps"})
    | parts.reads("head_dim norm_eps attention_bias mlp_bias kv_channels layer_norm_eps"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
