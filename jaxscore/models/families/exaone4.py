"""exaone4: norms after attention and MLP; where some layers have a window, those alone are told
positions."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family
from jaxscore.models.families.olmo2 import sources


def _translate(config: Any) -> DecoderConfig:
    windows = parts.windows_of_types(config)
    everywhere = config.sliding_window is None
    return llamalike.llamalike(
        config,
        norm_place="after",
        qk_norm="head",
        windows=windows,
        **parts.turning_in(config, (everywhere or window > 0 for window in windows)),
    )


EXAONE4 = Family(
    llamalike.READS | parts.reads("head_dim layer_types sliding_window sliding_window_pattern"),
    _translate,
    sources,
    buffers=(parts.INV_FREQ,),
)
