"""Mixtures of experts in every layer: flex_olmo, minimax_m2, mixtral, olmoe."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table
from jaxscore.models.families.llama_variants import after_norm_sources, clip_limit

# Attributes of MiniMax-M2's released config, at the values that transformers' class computes
MINIMAX_RELEASED: dict[str, Any] = {
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "sliding_window": None,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
MINIMAX_UNREAD = (
    "mlp_intermediate_size mtp_transformer_layers num_mtp_modules shared_moe_mode use_mtp"
)


def _mixtral(config: Any) -> DecoderConfig:
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, renormalised=True)
    return llama.llama_config(
        config,
        experts=mixtures.check_counts(experts),
        windows=fields.uniform_window(config),
    )


def mixtral_sources(config: DecoderConfig) -> Table:
    """All tensors of mixtral."""
    layer = "layers.{i}.block_sparse_moe."
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | mixtures.router_sources(config, layer + "gate", layer + "e_score_correction_bias")
        | mixtures.separate_expert_sources(config, layer, ("w1", "w3", "w2"))
    )


def _minimax_m2(config: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads; a sigmoid router with corrected choice."""
    fields.require(config, **MINIMAX_RELEASED, attn_type_list=[1] * config.num_hidden_layers)
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=True,
        scores="sigmoid",
        corrected=True,
    )
    return llama.llama_config(config, experts=mixtures.check_counts(experts), qk_norm="flat")


def _minimax_sources(config: DecoderConfig) -> Table:
    return mixtral_sources(config) | llama.qk_norm_sources(config)


def _flex_olmo(config: Any) -> DecoderConfig:
    """olmo2 with experts."""
    experts = Experts(config.num_experts, config.num_experts_per_tok, config.norm_topk_prob)
    return llama.llama_config(
        config,
        norm_place="after",
        qk_norm="flat",
        experts=mixtures.check_counts(experts),
        **fields.biases(config),
    )


def _flex_olmo_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config)
        | after_norm_sources()
        | mixtures.router_sources(config, mlp + "gate")
        | mixtures.separate_expert_sources(config, mlp)
    )


def _olmoe(config: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads, then a limit on queries, keys and values."""
    experts = Experts(config.num_experts, config.num_experts_per_tok, config.norm_topk_prob)
    return llama.llama_config(
        config,
        qk_norm="flat",
        qkv_limit=clip_limit(config),
        experts=mixtures.check_counts(experts),
        **fields.biases(config),
    )


def _olmoe_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return mixtures.sources(config, attention)


FAMILIES = {
    "flex_olmo": llama.family(
        _flex_olmo,
        "attention_bias num_experts num_experts_per_tok norm_topk_prob",
        mixtures.TRAINING,
        sources=_flex_olmo_sources,
    ),
    "minimax_m2": llama.family(
        _minimax_m2,
        "head_dim num_local_experts num_experts_per_tok router_jitter_noise attn_type_list",
        *MINIMAX_RELEASED,
        MINIMAX_UNREAD,
        mixtures.TRAINING,
        sources=_minimax_sources,
    ),
    "mixtral": llama.family(
        _mixtral,
        "head_dim sliding_window num_local_experts num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
        sources=mixtral_sources,
    ),
    "olmoe": llama.family(
        _olmoe,
        "attention_bias clip_qkv num_experts num_experts_per_tok norm_topk_prob",
        mixtures.TRAINING,
        sources=_olmoe_sources,
    ),
}
