"""Mixtures with a sigmoid router and corrected choice: dots1, exaone_moe, hy_v3, kolibri1,
solar_open."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table, layer_norms


def _dots1(config: Any) -> DecoderConfig:
    """Norms of each head's queries and keys; windows in some layers."""
    # dots.llm1 has "noaux_tc" here, which names a topk_method; no class reads it.
    if getattr(config, "scoring_func", "noaux_tc") != "noaux_tc":
        fields.require(config, scoring_func="sigmoid")
    fields.require_counts(config, "n_routed_experts", "num_experts_per_tok")
    width = config.moe_intermediate_size
    shared_width = (config.n_shared_experts or 0) * width
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts, shared_width=shared_width)
    plain = mixtures.first_layers(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        qk_norm_kind="head",
        windows=fields.windows_by_layer_type(config),
        **fields.biases(config),
    )


def _exaone_moe(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; the others are NoPE."""
    fields.window_size(config)  # PyTorch's class needs it even if no layer has a window
    # PyTorch's class reads neither.
    fields.require(config, scoring_func="sigmoid", topk_method="noaux_tc")
    width = config.moe_intermediate_size
    shared_width = config.num_shared_experts * width
    experts = mixtures.sigmoid_experts(config, config.num_experts, shared_width=shared_width)
    plain = mixtures.dense_layers(config)
    # K-EXAONE has these in addition to `mlp_layer_types` or its default.
    sparse = [i not in plain for i in range(config.num_hidden_layers)]
    fields.require(config, first_last_k_dense_replace=len(plain), is_moe_layer=sparse)
    windows = fields.windows_by_layer_type(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        qk_norm_kind="head",
        windows=windows,
        **fields.rotary_in_layers(config, map(bool, windows)),
    )


def _exaone_moe_sources(config: DecoderConfig) -> Table:
    return _normed_sources(config, "layers.{i}.mlp.e_score_correction_bias")


def _normed_sources(config: DecoderConfig, correction: str = mixtures.CORRECTION) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return mixtures.sources(config, attention, correction)


# Attributes of Hy3's configs, with the values that PyTorch's class implements
HY3: dict[str, Any] = {
    "moe_router_enable_expert_bias": True,
    "moe_router_use_sigmoid": True,
    "qk_norm": True,
    "route_norm": True,
}


def _hy_v3(config: Any) -> DecoderConfig:
    """Norms of each head's queries and keys; the weights of experts always sum to the scale."""
    width, plain = config.moe_intermediate_size, mixtures.dense_layers(config)
    fields.require(config, **HY3, expert_hidden_dim=width, first_k_dense_replace=len(plain))
    experts = mixtures.sigmoid_experts(
        config,
        config.num_experts,
        router_renormalised=True,
        router_groups=1,
        router_scale=config.router_scaling_factor,
        shared_width=config.num_shared_experts * width,
    )
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        qk_norm_kind="head",
        **fields.biases(config),
    )


def _hy_v3_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.sources_without_mlp(config)
        | llama.qk_norm_sources(config)
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "router.gate", mlp + "expert_bias")
        | mixtures.expert_sources(config, mlp)
        | mixtures.shared_expert_sources(config, mlp + "shared_mlp.")
    )


def _kolibri1(config: Any) -> DecoderConfig:
    """Norms before and after both halves; layers without a window are NoPE."""
    fields.require(config, use_sliding_window=True, head_dtype="float32")  # as released
    if config.sliding_window is None:
        raise InputError("sliding_window is None, expected a number of tokens")
    width, windows = config.moe_intermediate_size, fields.windows_by_layer_type(config)
    experts = mixtures.sigmoid_experts(
        config,
        config.num_experts,
        router_scale=1.0,
        router_groups=1,
        router_corrects_logits=True,
        shared_width=config.shared_expert_intermediate_size,
    )
    return llama.llama_config(
        config,
        mlp_width=width,
        experts=mixtures.check_counts(experts),
        norm_place="both",
        qk_norm_kind="head",
        windows=windows,
        **fields.rotary_in_layers(config, (window > 0 for window in windows)),
    )


def _kolibri1_sources(config: DecoderConfig) -> Table:
    after = {"attention_after_norm": "post_attn_norm", "mlp_after_norm": "post_ffn_norm"}
    return _normed_sources(config, "layers.{i}.moe.router.expert_bias") | layer_norms(after)


def _solar_open(config: Any) -> DecoderConfig:
    """Experts in every layer."""
    fields.require(config, first_k_dense_replace=0)
    if (share := config.rope_parameters["partial_rotary_factor"]) != 1:
        raise InputError(f"partial_rotary_factor is {share!r}, which is not handled; handled is 1")
    width = config.moe_intermediate_size
    shared_width = config.n_shared_experts * width
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts, shared_width=shared_width)
    return llama.llama_config(
        config,
        mlp_width=width,
        experts=mixtures.check_counts(experts),
        qkv_bias=config.attention_bias,
    )


def _solar_open_sources(config: DecoderConfig) -> Table:
    return mixtures.sources(config, llama.attention_sources(config))


CHOICE = "num_experts_per_tok moe_intermediate_size output_router_logits"
DEEPSEEK = "n_group topk_group norm_topk_prob routed_scaling_factor"

FAMILIES = {
    "dots1": llama.family(
        _dots1,
        CHOICE,
        DEEPSEEK,
        "head_dim attention_bias layer_types sliding_window max_window_layers",
        "n_routed_experts n_shared_experts first_k_dense_replace scoring_func",
        sources=_normed_sources,
    ),
    "exaone_moe": llama.family(
        _exaone_moe,
        CHOICE,
        DEEPSEEK,
        "head_dim layer_types sliding_window sliding_window_pattern mlp_layer_types",
        "first_k_dense_replace num_experts num_shared_experts scoring_func topk_method",
        "first_last_k_dense_replace is_moe_layer",
        mixtures.NEXT_TOKENS,
        sources=_exaone_moe_sources,
        renamed={".mlp.gate.e_score_": ".mlp.e_score_"},  # in transformers 5
        unread=lambda config: (r"mtp\..+",),
    ),
    "hy_v3": llama.family(
        _hy_v3,
        CHOICE,
        "head_dim attention_bias mlp_bias mlp_layer_types num_experts num_shared_experts",
        "router_scaling_factor enable_moe_fp32_combine enable_lm_head_fp32 expert_hidden_dim",
        "first_k_dense_replace",
        *HY3,
        mixtures.NEXT_TOKENS,
        sources=_hy_v3_sources,
        renamed={  # names in transformers' class
            ".mlp.e_score_correction_bias": ".mlp.expert_bias",
            ".mlp.gate.": ".mlp.router.gate.",
            ".mlp.shared_experts.": ".mlp.shared_mlp.",
        },
        next_tokens=True,
    ),
    "kolibri1": llama.family(
        _kolibri1,
        CHOICE,
        "head_dim layer_types norm_topk_prob num_experts shared_expert_intermediate_size",
        "sliding_window use_sliding_window head_dtype",
        sources=_kolibri1_sources,
        lacks="intermediate_size",
        renamed={  # names in transformers' class
            ".mlp.gate.e_score_correction_bias": ".moe.router.expert_bias",
            ".post_self_attn_layernorm.": ".post_attn_norm.",
            ".post_mlp_layernorm.": ".post_ffn_norm.",
        },
    ),
    "solar_open": llama.family(
        _solar_open,
        CHOICE,
        DEEPSEEK,
        "head_dim attention_bias first_k_dense_replace n_routed_experts n_shared_experts",
        sources=_solar_open_sources,
    ),
}
