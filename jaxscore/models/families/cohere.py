"""cohere: one layer norm without bias a layer, attention and MLP side by side."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_eps=config.layer_norm_eps,
        parallel="shared",
        interleaved=True,
        qk_norm="heads" if config.use_qk_norm else "",
        logit_scale=config.logit_scale,
        **llamalike.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    return {**llamalike.sources(config), **(qk_norms(config) if config.qk_norm else {})}


COHERE = Family(
    (llamalike.READS - {"rms_norm_eps"})
    | parts.reads("layer_norm_eps attention_bias use_qk_norm logit_scale model_max_length"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
