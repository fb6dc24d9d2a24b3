"""olmo2: norms after attention and MLP instead of before, and over all heads of q and of k."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config, norm_place="after", qk_norm="flat", **llamalike.biases(config)
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    return (
        llamalike.ends(config)
        | llamalike.attention_sources(config)
        | llamalike.mlp_sources(config)
        | qk_norms(config)
        | parts.norm(("layers", "attention_after_norm"), layer + "post_attention_layernorm", False)
        | parts.norm(("layers", "mlp_after_norm"), layer + "post_feedforward_layernorm", False)
    )


OLMO2 = Family(
    llamalike.READS | parts.reads("attention_bias"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
