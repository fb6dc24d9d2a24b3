"""phi: one layer norm a layer, attention and a plain MLP side by side, a bias everywhere."""

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
        parallel="shared",
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm="head" if config.qk_layernorm else "",
        qk_norm_bias=True,
        **parts.turning(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.", ("layers", "attention")
    table: Table = {("embed", "token"): Source("embed_tokens.weight")}
    table |= parts.norm(("final_norm",), "final_layernorm", True)
    table |= parts.norm(("layers", "attention_norm"), layer + "input_layernorm", True)
    for ours, theirs in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "dense"}.items():
        table |= parts.linear((*at, ours), f"{layer}self_attn.{theirs}", True)
    for ours, theirs in {"up": "fc1", "down": "fc2"}.items():
        table |= parts.linear(("layers", "mlp", ours), f"{layer}mlp.{theirs}", True)
    if config.qk_norm:
        for name in "qk":
            table |= parts.norm((*at, f"{name}_norm"), f"{layer}self_attn.{name}_layernorm", True)
    return table | parts.unembedding(config)


PHI = Family(
    (llamalike.READS - {"rms_norm_eps"}) | parts.reads("layer_norm_eps qk_layernorm"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
