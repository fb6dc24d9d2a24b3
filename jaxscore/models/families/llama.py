"""llama and close variants (exaone, iquestcoder, mistral, ministral3), and builders for llama-like
families.

RMS norms, rotary embeddings, grouped-query attention, a gated MLP.
"""

from collections.abc import Callable
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, QueryGrowth
from jaxscore.models.families import fields
from jaxscore.models.families.family import (
    Family,
    Part,
    Source,
    Table,
    layer_norms,
    linear,
    norm,
    unembedding,
)

READS = fields.reads("intermediate_size num_key_value_heads hidden_act") | {
    *fields.SIZES,
    *fields.ROPE,
}


def llama_config(config: Any, **overrides: Any) -> DecoderConfig:
    """Return the decoder of a llama-like model, except for the fields in `overrides`."""
    if "rotary" not in overrides:
        overrides |= fields.rotary_fields(config)
    if "norm_eps" not in overrides:
        overrides["norm_eps"] = config.rms_norm_eps
    if "mlp_activation" not in overrides:
        overrides["mlp_activation"] = fields.activation(config)
    if "mlp_width" not in overrides:
        overrides["mlp_width"] = config.intermediate_size
    if "max_positions" not in overrides:
        overrides["max_positions"] = config.max_position_embeddings
    return fields.decoder_config(config, **overrides)


def attention_sources(config: DecoderConfig) -> Table:
    """Return the sources of attention with one tensor per projection."""
    table: Table = {}
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}.items():
        bias = config.attention.out_bias if param == "out" else config.attention.qkv_bias
        table |= linear(("layers", "attention", param), f"layers.{{i}}.self_attn.{hf_name}", bias)
    return table


def qk_norm_sources(config: DecoderConfig, plus: float = 0.0) -> Table:
    """Return the sources of the norms of queries and keys."""
    bias = config.attention.qk_norm.bias
    return {
        path: source
        for name in ("q_norm", "k_norm")
        for path, source in norm(
            ("layers", "attention", name), f"layers.{{i}}.self_attn.{name}", bias, plus
        ).items()
    }


def mlp_sources(config: DecoderConfig, name: str = "mlp") -> Table:
    """Return the sources of an MLP with or without a gate."""
    table: Table = {}
    for param in ("gate", "up", "down") if config.mlp.gated else ("up", "down"):
        hf_name = f"layers.{{i}}.{name}.{param}_proj"
        table |= linear(("layers", "mlp", param), hf_name, config.mlp.bias)
    return table


def fused_mlp_sources(
    at: tuple[str, ...] = ("layers", "mlp"),
    gate_up: str = "layers.{i}.mlp.gate_up_proj",
    down: str = "layers.{i}.mlp.down_proj",
) -> Table:
    """Return the sources of a gated MLP without biases whose gate and up share a tensor.

    The rows of the gate come first.
    """
    return (
        linear((*at, "gate"), gate_up, False, part=Part(1, 2, 0, 1))
        | linear((*at, "up"), gate_up, False, part=Part(1, 2, 1, 2))
        | linear((*at, "down"), down, False)
    )


def embedding_sources(config: DecoderConfig, plus: float = 0.0) -> Table:
    """Return the sources of embedding, final norm and unembedding."""
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "norm", config.norm.bias, plus)
        | unembedding(config)
    )


def pre_norm_sources(config: DecoderConfig, plus: float = 0.0) -> Table:
    """Return the sources of the norms before attention and MLP, which may share one."""
    names = {"attention_norm": "input_layernorm"}
    if config.residual.parallel != "shared":
        names["mlp_norm"] = "post_attention_layernorm"
    return layer_norms(names, config.norm.bias, plus)


def sources_without_mlp(config: DecoderConfig) -> Table:
    """Return the sources of a llama-like model without its MLP."""
    return embedding_sources(config) | pre_norm_sources(config) | attention_sources(config)


def sources(config: DecoderConfig) -> Table:
    """Return the sources of a llama-like model."""
    return sources_without_mlp(config) | mlp_sources(config)


def family(
    translate: Callable[[Any], DecoderConfig],
    *reads: str,
    sources: Callable[[DecoderConfig], Table] = sources,
    norm_eps: str = "rms_norm_eps",
    lacks: str = "",
    **family_fields: Any,
) -> Family:
    """Return a llama-like family.

    Args:
        reads: names of attributes that the family reads in addition to those of all llama-like
            families.
        norm_eps: the attribute with the epsilon of norms.
        lacks: names of attributes of llama-like families that this family does not have.
        family_fields: further fields of `Family`.
    """
    names = (READS | fields.reads(norm_eps, *reads)) - fields.reads(lacks)
    return Family(names, translate, sources, buffers=(fields.INV_FREQ,), **family_fields)


def _llama(config: Any) -> DecoderConfig:
    return llama_config(config, **fields.biases(config))


def _iquestcoder(config: Any) -> DecoderConfig:
    fields.require(config, clip_qkv=None, use_sliding_window=False)  # as in transformers' class
    return _llama(config)


# Tensor names in the authors' code
EXAONE = {
    "transformer.wte.": "embed_tokens.",
    "transformer.h.": "layers.",
    "transformer.ln_f.": "norm.",
    ".attn.attention.": ".self_attn.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".mlp.c_fc_0.": ".mlp.gate_proj.",
    ".mlp.c_fc_1.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
}


def _mistral(config: Any, **overrides: Any) -> DecoderConfig:
    return llama_config(config, windows=fields.uniform_window(config), **overrides)


def _ministral3(config: Any) -> DecoderConfig:
    """Mistral with queries that are scaled up with their position."""
    rope, growth = config.rope_parameters, None
    if beta := rope.get("llama_4_scaling_beta"):
        shares = (float(beta),) * config.num_hidden_layers
        growth = QueryGrowth(shares, float(rope["original_max_position_embeddings"]), 0)
    return _mistral(config, query_growth=growth)


FAMILIES = {
    "exaone": family(_llama, "head_dim attention_bias mlp_bias", renamed=EXAONE),
    "iquestcoder": family(
        _iquestcoder, "head_dim attention_bias mlp_bias clip_qkv use_sliding_window"
    ),
    "llama": family(_llama, "head_dim attention_bias mlp_bias"),
    "ministral3": family(_ministral3, "head_dim sliding_window"),
    "mistral": family(_mistral, "head_dim sliding_window"),
}
