"""Mixtures with plain layers or shared experts: afmoe, aria, cohere2_moe, ernie4_5_moe, glm4_moe,
llama4, sarvam_moe.

afmoe gates attention and has norms before and after both halves of a layer. llama4_text has
attention in chunks of positions, NoPE layers, and experts whose input is weighted.
"""

import dataclasses
import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, QueryGrowth
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Part, Table, layer_norms, linear


def _ernie4_5_moe(config: Any) -> DecoderConfig:
    """Softmax router with corrected choice; rotary pairs of adjacent channels."""
    # With biases, transformers 4.57 has them in the experts, too, and 5 does not.
    fields.require(config, use_bias=False)
    # The released config also has these. A capacity equal to the number of experts drops no token.
    fields.require(
        config,
        moe_capacity=[config.moe_num_experts] * 3,
        moe_gate="topk",
        moe_use_aux_free=True,
    )
    n, interval = config.num_hidden_layers, config.moe_layer_interval
    first, last = config.moe_layer_start_index, config.moe_layer_end_index
    plain = tuple(i for i in range(n) if (i + 1) % interval or not first <= i <= last)
    experts = Experts.of(
        count=config.moe_num_experts,
        per_token=config.moe_k,
        router_renormalised=True,
        shared_width=config.moe_num_shared_experts * config.moe_intermediate_size,
        shared_gated=False,
        router_corrected=True,
        router_least_sum=config.moe_norm_min,
    )
    mlps = mixtures.mlp_fields(
        config,
        experts,
        config.moe_intermediate_size,
        plain,
        config.intermediate_size,
        per_token="moe_k",
    )
    return llama.llama_config(config, interleaved=True, **mlps)


def _ernie_sources(config: DecoderConfig) -> Table:
    correction = "layers.{i}.mlp.moe_statics.e_score_correction_bias"
    return mixtures.sources(config, llama.attention_sources(config), correction)


def _glm4_moe(config: Any) -> DecoderConfig:
    """Sigmoid router with corrected choice, plain first layers, partial rotary embeddings."""
    width = config.moe_intermediate_size
    shared_width = (config.n_shared_experts or 0) * width
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts, shared_width=shared_width)
    plain = mixtures.first_layers(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        qkv_bias=config.attention_bias,
        qk_norm_kind="head" if config.use_qk_norm else "",
    )


def _glm_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config)
    attention |= llama.qk_norm_sources(config) if config.attention.qk_norm.kind else {}
    return mixtures.sources(config, attention)


def _sarvam_moe(config: Any) -> DecoderConfig:
    width = config.moe_intermediate_size
    fields.require(config, **mixtures.SARVAM, moe_shared_expert_intermediate_size=width)
    return _glm4_moe(config)


def _sarvam_sources(config: DecoderConfig) -> Table:
    """Return the sources of sarvam, whose released files fuse queries, keys and values."""
    table, first = _glm_sources(config), 0
    n_rows = config.attention.n_heads + 2 * config.attention.n_kv_heads
    for name, n in (
        ("q", config.attention.n_heads),
        ("k", config.attention.n_kv_heads),
        ("v", config.attention.n_kv_heads),
    ):
        rows = Part(1, n_rows, first, first + n)
        first += n
        fused = linear(
            ("layers", "attention", name),
            "layers.{i}.self_attn.query_key_value",
            config.attention.qkv_bias,
            part=rows,
        )
        for path, source in fused.items():
            table[path] = dataclasses.replace(table[path], otherwise=source)
    return table


def _aria(config: Any) -> DecoderConfig:
    """Experts in every layer; their activation is SiLU regardless of `hidden_act`."""
    fields.require(config, hidden_act="silu", mlp_bias=False)
    experts = Experts.of(
        count=config.moe_num_experts,
        per_token=config.moe_topk,
        # Renormalising a softmax over all experts equals its softmax over the chosen ones.
        router_renormalised=True,
        shared_width=config.intermediate_size * config.moe_num_shared_experts,
        shared_gated=False,
    )
    experts = mixtures.check_counts(experts, "moe_topk")
    return llama.llama_config(config, experts=experts, **fields.biases(config))


def _aria_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.mlp."
    gate_up, down = (f"{layer}experts.{name}.weight" for name in ("fc1", "fc2"))
    return (
        llama.sources_without_mlp(config)
        | mixtures.router_sources(config, layer + "router")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=True)
        | mixtures.shared_expert_sources(config, layer + "shared_experts.")
    )


# Attributes of released configs, with the values that PyTorch's class implements
RELEASED: dict[str, Any] = {
    "n_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
    "route_norm": True,
    "score_func": "sigmoid",
    "topk_group": 1,
}
UNREAD = "load_balance_coeff use_grouped_mm"
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_mlp_layernorm",
    "mlp_after_norm": "post_mlp_layernorm",
}


def _afmoe(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; the others are NoPE."""
    # With biases the class still has none in the gate of attention; released models have no biases.
    fields.require(config, attention_bias=False, **RELEASED)
    width = config.moe_intermediate_size
    experts = mixtures.sigmoid_experts(
        config,
        config.num_experts,
        router_renormalised=True,
        router_scale=config.route_scale,
        router_groups=1,
        shared_width=width * config.num_shared_experts,
    )
    plain = tuple(range(min(config.num_dense_layers, config.num_hidden_layers)))
    windows = fields.windows_by_layer_type(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **fields.rotary_in_layers(config, map(bool, windows)),
        embedding_scale=math.sqrt(config.hidden_size) if config.mup_enabled else 1.0,
        norm_place="both",
        qk_norm_kind="head",
        query_gate=True,
        windows=windows,
    )


def _afmoe_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config)
        | linear(("layers", "attention", "gate"), "layers.{i}.self_attn.gate_proj", False)
        | layer_norms(NORMS)
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "router.gate", mlp + "expert_bias")
        | mixtures.expert_sources(config, mlp)
        | mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    )


def _cohere2_moe(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; layers without experts may have them, too."""
    scores = fields.require_one_of(config, "expert_selection_fn", "softmax", "sigmoid")
    strategy = fields.require_one_of(config, "shared_expert_combination_strategy", "average", "sum")
    share = 0.5 if strategy == "average" and config.num_shared_experts else 1.0
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        # A softmax over the chosen experts equals one over all, rescaled to a sum of one.
        router_renormalised=scores == "softmax" or config.norm_topk_prob,
        shared_width=config.intermediate_size * config.num_shared_experts,
        shared_gated=False,
        shared_scale=share,
        router_scores=scores,
        router_scale=share,
    )
    plain = mixtures.dense_layers(config)
    plain_width = config.prefix_dense_intermediate_size or config.intermediate_size
    windows = fields.windows_by_layer_type(config)
    rotary_plain_layers = plain if config.prefix_dense_sliding_window_pattern == 1 else ()
    is_rms = config.rms_norm_eps is not None
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, config.intermediate_size, plain, plain_width),
        **fields.rotary_in_layers(
            config, (bool(window) or i in rotary_plain_layers for i, window in enumerate(windows))
        ),
        norm_kind="rms" if is_rms else "layer",
        norm_eps=config.rms_norm_eps if is_rms else config.layer_norm_eps,
        parallel="shared",
        interleaved=True,
        head_scale=config.logit_scale,
        windows=windows,
        **fields.biases(config),
    )


def _cohere_sources(config: DecoderConfig) -> Table:
    return mixtures.sources(config, llama.attention_sources(config))


def _llama4(config: Any) -> DecoderConfig:
    has_rotary = [bool(flag) for flag in fields.per_layer_values(config, "no_rope_layers")]
    share = config.attn_scale if config.attn_temperature_tuning else 0.0
    growth = QueryGrowth(
        tuple(0.0 if rotates else float(share) for rotates in has_rotary),
        float(config.floor_scale),
        1,
    )
    expert_layers = fields.layer_indices(config, "moe_layers")
    plain = tuple(i for i in range(config.num_hidden_layers) if i not in expert_layers)
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=False,
        shared_width=config.intermediate_size,
        shared_gated=False,
        router_scores="sigmoid",
        weighs_input=True,
    )
    qk_norm: dict[str, Any] = {}
    if config.use_qk_norm:
        qk_norm = {
            "qk_norm_kind": "head",
            "qk_norm_scale": False,
            "qk_norm_after_rotary": True,
            "qk_norm_layers": tuple(has_rotary),
        }
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(
            config, experts, config.intermediate_size, plain, config.intermediate_size_mlp
        ),
        **qk_norm,
        **fields.rotary_in_layers(config, has_rotary),
        interleaved=True,
        query_growth=growth if any(growth.shares) else None,
        windows=fields.windows_by_layer_type(config, "chunked_attention", "attention_chunk_size"),
        chunked=True,
        **fields.biases(config),
    )


def _llama4_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.feed_forward."
    gate_up, down = layer + "experts.gate_up_proj", layer + "experts.down_proj"
    return (
        llama.sources_without_mlp(config)
        | mixtures.plain_mlp_sources(config, "feed_forward")
        | mixtures.router_sources(config, layer + "router")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=True)
        | mixtures.shared_expert_sources(config, layer + "shared_expert.")
    )


GLM = (
    "head_dim attention_bias use_qk_norm first_k_dense_replace moe_intermediate_size "
    "n_routed_experts n_shared_experts num_experts_per_tok norm_topk_prob n_group topk_group "
    "routed_scaling_factor output_router_logits"
)

FAMILIES = {
    "ernie4_5_moe": llama.family(
        _ernie4_5_moe,
        "head_dim use_bias moe_num_experts moe_k moe_num_shared_experts moe_intermediate_size",
        "moe_layer_interval moe_layer_start_index moe_layer_end_index moe_norm_min",
        "moe_capacity moe_gate moe_use_aux_free",
        mixtures.NEXT_TOKENS,
        mixtures.TRAINING,
        sources=_ernie_sources,
        renamed={".gate.moe_statics.": ".moe_statics."},  # in transformers 5
        next_tokens=True,
    ),
    "glm4_moe": llama.family(
        _glm4_moe, GLM, mixtures.NEXT_TOKENS, sources=_glm_sources, next_tokens=True
    ),
    "sarvam_moe": llama.family(
        _sarvam_moe,
        GLM,
        *mixtures.SARVAM,
        "moe_shared_expert_intermediate_size max_window_layers attn_implementation",
        mixtures.NEXT_TOKENS,
        sources=_sarvam_sources,
        renamed={
            "word_embeddings.": "embed_tokens.",
            ".attention.": ".self_attn.",
            ".dense.": ".o_proj.",
            ".query_layernorm.": ".q_norm.",
            ".key_layernorm.": ".k_norm.",
            ".gate.expert_bias": ".gate.e_score_correction_bias",
        },
    ),
    "afmoe": llama.family(
        _afmoe,
        "attention_bias head_dim layer_types sliding_window global_attn_every_n_layers",
        "moe_intermediate_size num_dense_layers num_experts num_experts_per_tok mup_enabled",
        "num_shared_experts route_scale output_router_logits",
        *RELEASED,
        UNREAD,
        sources=_afmoe_sources,
    ),
    "aria_text": llama.family(
        _aria,
        "head_dim attention_bias mlp_bias moe_num_experts moe_num_shared_experts moe_topk",
        sources=_aria_sources,
        renamed={  # names in transformers' class
            ".experts.gate_up_proj": ".experts.fc1.weight",
            ".experts.down_proj": ".experts.fc2.weight",
        },
    ),
    "cohere2_moe": llama.family(
        _cohere2_moe,
        "attention_bias head_dim layer_types logit_scale sliding_window sliding_window_pattern",
        "layer_norm_eps rms_norm_eps mlp_layer_types first_k_dense_replace expert_selection_fn",
        "norm_topk_prob num_experts num_experts_per_tok num_shared_experts output_router_logits",
        "prefix_dense_intermediate_size prefix_dense_sliding_window_pattern",
        "shared_expert_combination_strategy",
        sources=_cohere_sources,
    ),
    "llama4_text": llama.family(
        _llama4,
        "head_dim attention_bias layer_types attention_chunk_size no_rope_layers",
        "no_rope_layer_interval use_qk_norm attn_temperature_tuning attn_scale floor_scale",
        "moe_layers interleave_moe_layer_step intermediate_size_mlp num_local_experts",
        "num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
        sources=_llama4_sources,
    ),
}
