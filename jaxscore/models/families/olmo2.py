"""olmo2 and olmo3: norms after attention and MLP instead of before, and over all heads of q and
of k. In olmo3 some layers have a window, and frequencies of their own."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _olmo2(config: Any, **own: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config, norm_place="after", qk_norm="flat", **llamalike.biases(config), **own
    )


def _olmo3(config: Any) -> DecoderConfig:
    return _olmo2(config, windows=parts.windows_of_types(config), **parts.turning_by_type(config))


def sources(config: DecoderConfig) -> Table:
    """All tensors of a model with such norms."""
    layer = "layers.{i}."
    return (
        llamalike.ends(config)
        | llamalike.attention_sources(config)
        | llamalike.mlp_sources(config)
        | qk_norms(config)
        | parts.norm(("layers", "attention_after_norm"), layer + "post_attention_layernorm", False)
        | parts.norm(("layers", "mlp_after_norm"), layer + "post_feedforward_layernorm", False)
    )


def _family(translate: Any, *reads: str) -> Family:
    own = parts.reads("attention_bias", *reads)
    return Family(llamalike.READS | own, translate, sources, buffers=(parts.INV_FREQ,))


OLMO2 = _family(_olmo2)
OLMO3 = _family(_olmo3, "layer_types sliding_window")
