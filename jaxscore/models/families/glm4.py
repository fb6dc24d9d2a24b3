"""glm4: norms before and after attention and MLP, half of a head's adjacent channels turn."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table


def _translate(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config, norm_place="both", interleaved=True, qkv_bias=config.attention_bias
    )


def _sources(config: DecoderConfig) -> Table:
    table: Table = llamalike.ends(config) | llamalike.norms_before(config)
    table |= llamalike.attention_sources(config) | llamalike.fused_mlp_sources()
    for ours, theirs in {
        "attention_after_norm": "post_self_attn_layernorm",
        "mlp_after_norm": "post_mlp_layernorm",
    }.items():
        table |= parts.norm(("layers", ours), f"layers.{{i}}.{theirs}", False)
    return table


GLM4 = Family(
    llamalike.READS | parts.reads("head_dim attention_bias"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
