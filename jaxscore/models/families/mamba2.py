"""Mamba-2: mamba2, nemotron_h, bamba, granitemoehybrid and falcon_h1.

Layers of mamba2 and nemotron_h have one half: a mixer, attention or an MLP. The others have the
mixer in place of attention, or in parallel with it.
"""

import math
from typing import Any

from jaxscore.device.decoder_config import Beside, DecoderConfig, Experts, Recurrent, StateSpace
from jaxscore.errors import InputError
from jaxscore.models.families import fields, granite, hybrid, llama, mixtures
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
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.hybrid import FULL, LINEAR

MLP, MOE = "mlp", "moe"
MIXER = "layers.{i}.mixer."


def _mamba2(config: Any) -> DecoderConfig:
    fields.require(config, rms_norm=True)  # in files of transformers 4.57
    n_heads, width = config.num_heads, config.head_dim
    if n_heads * width != (inner := int(config.expand * config.hidden_size)):
        raise InputError(
            f"num_heads {n_heads} of head_dim {width}: expected expand * hidden_size, {inner}"
        )
    mixer = _mixer(config, n_heads, width, config.state_size, config.time_step_limit, "hidden_act")
    return hybrid.recurrence_alone(config, mixer)


def _mixer(
    config: Any, n_heads: int, width: int, state_width: int, limits: Any, activation: str
) -> StateSpace:
    return hybrid.state_space(
        n_heads,
        width,
        config.n_groups,
        limits,
        state_width=state_width,
        taps=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        out_bias=config.use_bias,
        activation=fields.activation(config, activation),
    )


def _nemotron_h(config: Any) -> DecoderConfig:
    # PyTorch's class reads neither: its embeddings are never tied, and its smallest step is
    # time_step_min. Nemotron 3 Ultra has 1e308 instead of infinity.
    if config.time_step_limit != [0.0, 1e308]:
        fields.require(config, time_step_limit=[0.0, math.inf])
    fields.require(config, tie_word_embeddings=False)
    mamba = hybrid.layers_of_type(config, LINEAR, FULL, MLP, MOE)
    plain, moe = (
        hybrid.layers_of_type(config, layer_type, LINEAR, FULL, MLP, MOE)
        for layer_type in (MLP, MOE)
    )
    mixer = _mixer(
        config,
        config.mamba_num_heads,
        config.mamba_head_dim,
        config.ssm_state_size,
        [config.time_step_min, math.inf],
        "mamba_hidden_act",
    )
    mlp_fields: dict[str, Any] = {"mlp_width": config.intermediate_size}
    if moe:
        experts = mixtures.sigmoid_experts(
            config,
            config.n_routed_experts,
            shared_width=config.moe_shared_expert_intermediate_size,
            latent_width=config.moe_latent_size or 0,
        )
        width = config.moe_intermediate_size
        mlp_fields = mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size)
    return fields.decoder_config(
        config,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_epsilon,
        mlp_activation=fields.activation(config, "mlp_hidden_act"),
        mlp_gated=False,
        mlp_bias=config.mlp_bias,
        mlp_layers=tuple(sorted(plain + moe)),
        recurrent=Recurrent(mamba, mixer) if mamba else None,
        **mlp_fields,
    )


def _mamba2_sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embeddings.weight")}
        | norm(("final_norm",), "norm_f", False)
        | unembedding(config)
        | layer_norms({"attention_norm": "norm"})
        | hybrid.state_space_sources(config, MIXER)
    )


def _nemotron_h_sources(config: DecoderConfig) -> Table:
    table: Table = {}
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}.items():
        table |= linear((*hybrid.ATTENTION, param), MIXER + hf_name, False)
    table = hybrid.by_kind(config, table | _mamba2_sources(config))
    main, other = mixtures.split_layers(config)
    if config.experts is None and main:
        table |= mixtures.mlp_sources(config, ("mlps", "main"), MIXER, main)
    if config.experts is not None and other:
        table |= mixtures.mlp_sources(config, ("mlps", "other"), MIXER, other)
    table |= mixtures.router_sources(config, MIXER + "gate", MIXER + "gate.e_score_correction_bias")
    table |= mixtures.shared_expert_sources(config, MIXER + "shared_experts.")
    table |= mixtures.expert_sources(config, MIXER)
    if config.experts is not None and config.experts.latent_width:
        for param, hf_name in {
            "latent_in": "fc1_latent_proj",
            "latent_out": "fc2_latent_proj",
        }.items():
            table |= linear(("mlps", "main", param), MIXER + hf_name, config.mlp.bias, layers=main)
    return table


MAMBA2 = (
    "vocab_size hidden_size num_hidden_layers tie_word_embeddings layer_norm_epsilon n_groups "
    "conv_kernel use_bias use_conv_bias time_step_limit expand chunk_size time_step_min "
    "time_step_max time_step_floor time_step_rank residual_in_fp32 rescale_prenorm_residual"
)


def _recurrent(config: Any, layers: tuple[int, ...]) -> Recurrent | None:
    inner = int(config.mamba_expand * config.hidden_size)
    if config.mamba_n_heads * config.mamba_d_head != inner:
        raise InputError(
            f"mamba_n_heads {config.mamba_n_heads} of mamba_d_head {config.mamba_d_head}: expected "
            f"mamba_expand * hidden_size, {inner}"
        )
    mixer = _grouped_mixer(config, out_bias=config.mamba_proj_bias)
    return Recurrent(layers, mixer) if layers else None


def _grouped_mixer(config: Any, **mixer_fields: Any) -> StateSpace:
    return hybrid.state_space(
        config.mamba_n_heads,
        config.mamba_d_head,
        config.mamba_n_groups,
        config.time_step_limit,
        state_width=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
        activation=fields.activation(config),
        **mixer_fields,
    )


def _bamba(config: Any) -> DecoderConfig:
    if (share := config.rope_parameters["partial_rotary_factor"]) != 0.5:
        raise InputError(
            f"partial_rotary_factor is {share!r}, for which transformers' class takes 0.5"
        )
    # Bamba's files have this and attributes of Mamba-1; PyTorch's class reads none of them.
    fields.require(config, attn_rotary_emb=fields.head_width(config) // 2)
    full = config.attn_layer_indices or []
    layers = tuple(i for i in range(config.num_hidden_layers) if i not in full)
    return llama.llama_config(config, recurrent=_recurrent(config, layers), **fields.biases(config))


def _granitemoehybrid(config: Any) -> DecoderConfig:
    """Experts with a shared MLP, or that MLP alone."""
    fields.require(
        config, normalization_function="rmsnorm"
    )  # in Granite 4's files; no class reads it
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    fields.require_one_of(config, "position_embedding_type", None, "nope", "rope")
    overrides: dict[str, Any] = {"rotary": (), "rotary_of": ()}
    if config.position_embedding_type == "rope":
        overrides = fields.rotary_fields(config)
    shared = config.shared_intermediate_size
    if config.num_local_experts:
        experts = Experts.of(
            count=config.num_local_experts,
            per_token=config.num_experts_per_tok,
            router_renormalised=True,
            shared_width=shared,
            shared_gated=False,
        )
        overrides["experts"] = mixtures.check_counts(experts)
    else:
        overrides["mlp_width"] = shared
    return granite.granite_config(config, recurrent=_recurrent(config, layers), **overrides)


def _multipliers(config: Any, name: str, count: int) -> tuple[float, ...]:
    values = getattr(config, name)
    if len(values) != count or not all(type(x) in (int, float) for x in values):
        raise InputError(f"{name} is {values!r}, expected {count} numbers")
    return tuple(map(float, values))


def _falcon_h1(config: Any) -> DecoderConfig:
    """Attention and Mamba-2 in parallel in all layers."""
    # Published configs have two attributes that transformers' class does not implement.
    fields.require(config, attn_layer_indices=None, mamba_use_mlp=True)
    inner = config.mamba_d_ssm
    if config.mamba_n_heads * config.mamba_d_head != inner:
        raise InputError(
            f"mamba_n_heads {config.mamba_n_heads} of mamba_d_head {config.mamba_d_head}: expected "
            f"mamba_d_ssm or mamba_expand * hidden_size, {inner}"
        )
    norm_place = "first" if config.mamba_norm_before_gate else "gated"
    mixer = _grouped_mixer(
        config,
        out_bias=config.projectors_bias,
        norm=norm_place if config.mamba_rms_norm else "",
        factors=_multipliers(config, "ssm_multipliers", 5),
    )
    beside = Beside(
        config.attention_in_multiplier,
        config.attention_out_multiplier,
        config.ssm_in_multiplier,
        config.ssm_out_multiplier,
    )
    return llama.llama_config(
        config,
        recurrent=Recurrent(tuple(range(config.num_hidden_layers)), mixer, beside),
        score_scale=fields.head_width(config) ** -0.5 * config.key_multiplier,
        mlp_factors=_multipliers(config, "mlp_multipliers", 2),
        embedding_scale=config.embedding_multiplier,
        head_scale=config.lm_head_multiplier,
        **fields.biases(config),
    )


def _mixer_sources(config: DecoderConfig) -> Table:
    mixers = llama.attention_sources(config) | hybrid.state_space_sources(
        config, "layers.{i}.mamba."
    )
    return hybrid.by_kind(config, mixers)


def _bamba_sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "final_layernorm", False)
        | head_sources(config)
        | layer_norms({"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"})
        | llama.mlp_sources(config, "feed_forward")
        | _mixer_sources(config)
    )


def _granite_sources(config: DecoderConfig) -> Table:
    moe = "layers.{i}.block_sparse_moe."
    gate_up, down = moe + "input_linear.weight", moe + "output_linear.weight"
    table = (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | _mixer_sources(config)
        | mixtures.router_sources(config, moe + "router.layer")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=False)
    )
    at = ("layers", "mlp") if config.experts is None else ("layers", "mlp", "shared")
    name = "layers.{i}.shared_mlp."
    for k, param in enumerate(("gate", "up")):
        table |= linear((*at, param), name + "input_linear", False, part=Part(1, 2, k, k + 1))
    return table | linear((*at, "down"), name + "output_linear", False)


MIXER_READS = (
    "mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups "
    "mamba_n_heads mamba_proj_bias mamba_chunk_size time_step_limit attention_bias"
)


FAMILIES = {
    "mamba2": Family(
        fields.reads(
            MAMBA2,
            "num_heads head_dim state_size hidden_act rms_norm",
            # In published files
            "intermediate_size norm_before_gate time_step_init_scheme time_step_scale",
        ),
        _mamba2,
        _mamba2_sources,
        prefix="backbone.",
        # Name in the authors' code
        renamed={"embedding.": "embeddings."},
    ),
    "nemotron_h": Family(
        fields.reads(
            MAMBA2,
            "head_dim intermediate_size layers_block_type max_position_embeddings mlp_bias "
            "mlp_hidden_act num_attention_heads num_key_value_heads mamba_head_dim mamba_num_heads "
            "mamba_hidden_act ssm_state_size n_routed_experts num_experts_per_tok n_group "
            "topk_group norm_topk_prob routed_scaling_factor moe_intermediate_size "
            "moe_shared_expert_intermediate_size moe_latent_size n_shared_experts "
            "moe_shared_expert_overlap mamba_ssm_cache_dtype use_mamba_kernels num_logits_to_keep "
            "hybrid_override_pattern attention_head_dim norm_eps rms_norm_eps rope_theta "
            "partial_rotary_factor output_router_logits mtp_layers_block_type "
            "mtp_hybrid_override_pattern",
            mixtures.NEXT_TOKENS,
        ),
        _nemotron_h,
        _nemotron_h_sources,
        prefix="backbone.",
        renamed={"model.": ""},
        unread=lambda config: (r"mtp\..+",),
        unread_part="multi-token prediction",
    ),
    "bamba": llama.family(
        _bamba,
        MIXER_READS,
        "attn_layer_indices attn_rotary_emb mamba_dt_rank mlp_bias num_logits_to_keep",
        "use_mamba_kernels z_loss_coefficient",
        sources=_bamba_sources,
    ),
    "falcon_h1": llama.family(
        _falcon_h1,
        MIXER_READS,
        "attention_in_multiplier attention_out_multiplier embedding_multiplier head_dim "
        "key_multiplier lm_head_multiplier mamba_d_ssm mamba_norm_before_gate mamba_rms_norm "
        "mlp_bias mlp_multipliers num_logits_to_keep projectors_bias ssm_in_multiplier "
        "ssm_multipliers ssm_out_multiplier attn_layer_indices mamba_use_mlp "
        "mlp_expansion_factor time_step_floor time_step_max time_step_min time_step_rank",
        sources=_bamba_sources,
    ),
    "granitemoehybrid": llama.family(
        _granitemoehybrid,
        MIXER_READS,
        "layer_types num_local_experts num_experts_per_tok position_embedding_type",
        "normalization_function shared_intermediate_size time_step_max time_step_min",
        granite.MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granite_sources,
        renamed=granite.RENAMED,
    ),
}
