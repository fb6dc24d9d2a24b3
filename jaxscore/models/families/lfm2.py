"""Short convolutions in place of attention in most layers: lfm2, lfm2_moe, and lfm3.

lfm3 has windows, gates on attention, and norms before and after attention and MLP.
"""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Recurrent, ShortConvolution
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.hybrid import FULL, SLIDING
from jaxscore.models.rope import rotary

CONV = "conv"
MLP = "w1", "w3", "w2"  # gate, up and down


def convolution_config(config: Any, *attention: str, **overrides: Any) -> DecoderConfig:
    """Return a decoder with convolutions and layers of the types `attention`.

    Args:
        overrides: fields of `DecoderConfig` that are added or differ.
    """
    layers = hybrid.layers_of_type(config, CONV, *attention)
    if config.conv_L_cache < 1:
        raise InputError(f"conv_L_cache is {config.conv_L_cache}, expected at least 1")
    mixer = ShortConvolution(config.conv_L_cache, config.conv_bias)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        norm_eps=config.norm_eps,
        mlp_activation="silu",
        qk_norm_kind="head",
        **overrides,
    )


def _lfm2(config: Any) -> DecoderConfig:
    """The MLP's width is scaled and rounded up."""
    # Published configs repeat some sizes under other names.
    width, eps = config.hidden_size, config.norm_eps
    fields.require(config, block_dim=width, conv_dim=width, conv_dim_out=width, block_norm_eps=eps)
    fields.require(config, num_heads=config.num_attention_heads)
    fields.require(config, block_use_swiglu=True, use_pos_enc=True)
    inner, multiple = config.intermediate_size, config.block_multiple_of
    if config.block_auto_adjust_ff_dim:
        inner = int(config.block_ffn_dim_multiplier * int(2 * inner / 3))
        inner = -(-inner // multiple) * multiple
    return convolution_config(config, FULL, mlp_width=inner)


def _lfm2_moe(config: Any) -> DecoderConfig:
    """Sigmoid router with corrected choice, plain first layers."""
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
        router_scores="sigmoid",
        router_corrected=config.use_expert_bias,
        router_added_sum=1e-6,
        router_scale=config.routed_scaling_factor,
    )
    plain = tuple(range(min(config.num_dense_layers, config.num_hidden_layers)))
    width = config.moe_intermediate_size
    return convolution_config(
        config, FULL, **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size)
    )


def _attention_sources() -> Table:
    at, name = hybrid.ATTENTION, "layers.{i}.self_attn."
    table: Table = {}
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}.items():
        table |= linear((*at, param), name + hf_name, False)
    for param in ("q", "k"):
        table |= norm((*at, f"{param}_norm"), f"{name}{param}_layernorm", False)
    return table


def _convolution_sources(config: DecoderConfig) -> Table:
    if config.recurrent is None:
        return {}
    at, name = hybrid.RECURRENT, "layers.{i}.conv."
    assert isinstance(config.recurrent.mixer, ShortConvolution)
    bias = config.recurrent.mixer.bias
    table = linear((*at, "out"), name + "out_proj", bias)
    for param, rows in zip(("before", "after", "value"), hybrid.parts(1, 1, 1, 1), strict=True):
        table |= linear((*at, param), name + "in_proj", bias, part=rows)
    table[*at, "conv", "taps"] = Source(name + "conv.weight")
    return table | ({(*at, "conv", "bias"): Source(name + "conv.bias")} if bias else {})


def _mlp_sources(config: DecoderConfig) -> Table:
    name = "layers.{i}.feed_forward."
    plain = mixtures.split_layers(config)[1] if config.experts is not None else None
    table: Table = {}
    if plain is None or plain:
        at = ("layers", "mlp") if plain is None else ("mlps", "other")
        for param, hf_name in zip(("gate", "up", "down"), MLP, strict=True):
            table |= linear((*at, param), name + hf_name, False, layers=plain)
    table |= mixtures.router_sources(config, name + "gate", name + "expert_bias")
    return table | mixtures.expert_sources(config, name, MLP)


def _sources(config: DecoderConfig) -> Table:
    return sources(config, _attention_sources())


def sources(config: DecoderConfig, attention: Table) -> Table:
    """Return the sources of all tensors, given those of attention."""
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "embedding_norm", False)
        | head_sources(config)
        | layer_norms({"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"})
        | hybrid.by_kind(config, attention | _convolution_sources(config))
        | _mlp_sources(config)
    )


def family(translate: Any, *reads: str, sources: Any = _sources, **family_fields: Any) -> Any:
    """Return a family with the attributes of lfm2's attention and convolutions."""
    base = llama.family(
        translate, "conv_L_cache conv_bias layer_types", *reads, norm_eps="norm_eps",
        sources=sources, **family_fields,
    )  # fmt: skip
    return dataclasses.replace(base, reads=base.reads - {"hidden_act"})


def _lfm3(config: Any) -> DecoderConfig:
    """Attention with and without windows, each with separate rotary embeddings."""
    layers = hybrid.layers_of_type(config, CONV, FULL, SLIDING)
    types = config.layer_types
    for layer_type, parameters in config.rope_parameters.items():
        if parameters is None:
            raise InputError(f"rope_parameters.{layer_type} is null, expected an object")
    tables = {
        layer_type: rotary(
            fields.head_width(config), fields.frequency_parameters(config, parameters)
        )
        for layer_type, parameters in config.rope_parameters.items()
    }
    order = list(tables)
    window = fields.window_size(config) if SLIDING in types else 0
    return convolution_config(
        config,
        FULL,
        SLIDING,
        windows=tuple(window if layer_type == SLIDING else 0 for layer_type in types),
        rotary=tuple(tables.values()),
        rotary_of=tuple(0 if i in layers else order.index(types[i]) for i in range(len(types))),
        norm_place="both" if config.use_sandwich_norm else "before",
        query_gate=config.use_attention_gate,
        gate_per_head=config.use_attention_gate,
        **fields.biases(config),
    )


def _lfm3_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    if config.attention.query_gate:
        attention |= linear((*hybrid.ATTENTION, "gate"), "layers.{i}.self_attn.g_proj", False)
    table = sources(config, attention)
    if config.norm.place == "both":
        after = {"attention_after_norm": "post_operator_norm", "mlp_after_norm": "post_ffn_norm"}
        table |= layer_norms(after)
    return table


FAMILIES = {
    "lfm2": family(
        _lfm2,
        "block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of full_attn_idxs",
        "block_dim conv_dim conv_dim_out block_norm_eps num_heads block_use_swiglu use_pos_enc",
    ),
    "lfm2_moe": family(
        _lfm2_moe,
        "moe_intermediate_size num_dense_layers num_experts num_experts_per_tok norm_topk_prob",
        "routed_scaling_factor use_expert_bias output_router_logits",
    ),
    "lfm3": family(
        _lfm3,
        "attention_bias head_dim sliding_window use_attention_gate use_sandwich_norm",
        sources=_lfm3_sources,
        renamed={".self_attn.gate_proj.": ".self_attn.g_proj."},
    ),
}
