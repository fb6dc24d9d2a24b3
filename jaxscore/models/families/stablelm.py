"""stablelm: layer norms, a part of each head turned, attention and MLP side by side if asked."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Source, Table


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        parallel="shared" if config.use_parallel_residual else "no",
        qk_norm="heads" if config.qk_layernorm else "",
        qkv_bias=config.use_qkv_bias,
        **parts.turning(config),
    )


def _sources(config: DecoderConfig) -> Table:
    table: Table = dict(llamalike.sources(config))
    if config.qk_norm:
        for name in "qk":
            path = ("layers", "attention", f"{name}_norm", "scale")
            table[path] = Source(f"layers.{{i}}.self_attn.{name}_layernorm.norms.{{j}}.weight")
    return table


STABLELM = Family(
    (llamalike.READS - {"rms_norm_eps"})
    | parts.reads("layer_norm_eps use_qkv_bias qk_layernorm use_parallel_residual hidden_dropout"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
