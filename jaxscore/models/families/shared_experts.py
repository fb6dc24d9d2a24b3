"""Mixtures with ungated shared experts in some layers: ernie4_5_moe, glm4_moe."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table


def _ernie4_5_moe(config: Any) -> DecoderConfig:
    """Softmax router with corrected choice; rotary pairs of adjacent channels."""
    # transformers 4.57 has biases in the experts then, and 5 has not.
    fields.require(config, use_bias=False)
    # The released config also has these. A capacity of as many shares as there are experts
    # drops no token.
    fields.require(
        config,
        moe_capacity=[config.moe_num_experts] * 3,
        moe_gate="topk",
        moe_use_aux_free=True,
    )
    n, interval = config.num_hidden_layers, config.moe_layer_interval
    first, last = config.moe_layer_start_index, config.moe_layer_end_index
    plain = tuple(i for i in range(n) if (i + 1) % interval or not first <= i <= last)
    experts = Experts(
        config.moe_num_experts,
        config.moe_k,
        renormalised=True,
        shared_width=config.moe_num_shared_experts * config.moe_intermediate_size,
        shared_gated=False,
        corrected=True,
        least_sum=config.moe_norm_min,
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
        qk_norm="head" if config.use_qk_norm else "",
    )


def _glm_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config)
    attention |= llama.qk_norm_sources(config) if config.qk_norm else {}
    return mixtures.sources(config, attention)


FAMILIES = {
    "ernie4_5_moe": llama.family(
        _ernie4_5_moe,
        "head_dim use_bias moe_num_experts moe_k moe_num_shared_experts moe_intermediate_size",
        "moe_layer_interval moe_layer_start_index moe_layer_end_index moe_norm_min",
        "moe_capacity moe_gate moe_use_aux_free",
        mixtures.NEXT_TOKENS,
        mixtures.TRAINING,
        sources=_ernie_sources,
        next_tokens=True,
    ),
    "glm4_moe": llama.family(
        _glm4_moe,
        "head_dim attention_bias use_qk_norm first_k_dense_replace moe_intermediate_size",
        "n_routed_experts n_shared_experts num_experts_per_tok norm_topk_prob n_group topk_group",
        "routed_scaling_factor output_router_logits",
        mixtures.NEXT_TOKENS,
        sources=_glm_sources,
        next_tokens=True,
    ),
}
