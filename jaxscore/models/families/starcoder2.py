"""starcoder2: layer norms, grouped rotary heads, a plain MLP."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table


def _translate(config: Any) -> DecoderConfig:
    # As the published configs have them; PyTorch's class reads none of these.
    parts.refuse(
        config,
        activation_function="gelu",
        attention_softmax_in_fp32=True,
        layer_norm_epsilon=config.norm_epsilon,
        mlp_type="default",
        norm_type="layer_norm",
        scale_attention_softmax_in_fp32=True,
        scale_attn_weights=True,
    )
    return llamalike.llamalike(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=config.norm_epsilon,
        gated=False,
        qkv_bias=config.use_bias,
        out_bias=config.use_bias,
        mlp_bias=config.use_bias,
        windows=parts.window_everywhere(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.mlp.", ("layers", "mlp")
    return (
        llamalike.ends(config)
        | llamalike.norms_before(config)
        | llamalike.attention_sources(config)
        | parts.linear((*at, "up"), layer + "c_fc", config.mlp_bias)
        | parts.linear((*at, "down"), layer + "c_proj", config.mlp_bias)
    )


STARCODER2 = Family(
    (llamalike.READS - {"rms_norm_eps"})
    | parts.reads(
        "norm_epsilon use_bias sliding_window embedding_dropout residual_dropout",
        "activation_function attention_softmax_in_fp32 layer_norm_epsilon mlp_type norm_type "
        "scale_attention_softmax_in_fp32 scale_attn_weights",
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
