"""mamba2 and nemotron_h, whose layers have one half: a Mamba-2 mixer, attention or an MLP."""

import dataclasses
import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Recurrent, StateSpace
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, mixtures
from jaxscore.models.families.family import (
    Family,
    Source,
    Table,
    layer_norms,
    linear,
    norm,
    unembedding,
)
from jaxscore.models.families.hybrid import FULL, LINEAR

MLP, MOE = "mlp", "moe"
MIXER = "layers.{i}.mixer."


def _mamba2(config: Any) -> DecoderConfig:
    fields.require(config, rms_norm=True)  # which files of transformers 4.57 have
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
    # PyTorch's class reads neither: its embeddings are never tied, and its least step is
    # time_step_min.
    fields.require(config, tie_word_embeddings=False, time_step_limit=[0.0, math.inf])
    mamba = hybrid.layers_of_type(config, LINEAR, FULL, MLP, MOE)
    plain, moe = (
        hybrid.layers_of_type(config, kind, LINEAR, FULL, MLP, MOE) for kind in (MLP, MOE)
    )
    mixer = _mixer(
        config,
        config.mamba_num_heads,
        config.mamba_head_dim,
        config.ssm_state_size,
        [config.time_step_min, math.inf],
        "mamba_hidden_act",
    )
    own: dict[str, Any] = {"mlp_width": config.intermediate_size}
    if moe:
        experts = mixtures.sigmoid_experts(
            config,
            config.n_routed_experts,
            shared_width=config.moe_shared_expert_intermediate_size,
            latent_width=config.moe_latent_size or 0,
        )
        width = config.moe_intermediate_size
        own = mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size)
    return fields.decoder_config(
        config,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_epsilon,
        activation=fields.activation(config, "mlp_hidden_act"),
        gated=False,
        mlp_bias=config.mlp_bias,
        mlp_layers=tuple(sorted(plain + moe)),
        recurrent=Recurrent(mamba, mixer) if mamba else None,
        **own,
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
    for ours, theirs in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}.items():
        table |= linear((*hybrid.ATTENTION, ours), MIXER + theirs, False)
    table = hybrid.by_kind(config, table | _mamba2_sources(config))
    main, other = mixtures.split_layers(config)
    if config.experts is None and main:
        table |= mixtures.mlp_sources(config, ("mlps", "main"), MIXER, main)
    if config.experts is not None and other:
        table |= mixtures.mlp_sources(config, ("mlps", "other"), MIXER, other)
    table |= mixtures.router_sources(config, MIXER + "gate", MIXER + "gate.e_score_correction_bias")
    table |= mixtures.shared_expert_sources(config, MIXER + "shared_experts.")
    for path, source in mixtures.separate_expert_sources(config, MIXER).items():
        fused = dataclasses.replace(source, name=f"{MIXER}experts.{path[1]}_proj[{{j}}]")
        table[path] = dataclasses.replace(source, otherwise=fused)
    if config.experts is not None and config.experts.latent_width:
        for ours, theirs in {
            "latent_in": "fc1_latent_proj",
            "latent_out": "fc2_latent_proj",
        }.items():
            table |= linear(("mlps", "main", ours), MIXER + theirs, config.mlp_bias, layers=main)
    return table


MAMBA2 = (
    "vocab_size hidden_size num_hidden_layers tie_word_embeddings layer_norm_epsilon n_groups "
    "conv_kernel use_bias use_conv_bias time_step_limit expand chunk_size time_step_min "
    "time_step_max time_step_floor time_step_rank residual_in_fp32 rescale_prenorm_residual"
)

FAMILIES = {
    "mamba2": Family(
        fields.reads(
            MAMBA2,
            "num_heads head_dim state_size hidden_act rms_norm",
            # Of published files
            "intermediate_size norm_before_gate time_step_init_scheme time_step_scale",
        ),
        _mamba2,
        _mamba2_sources,
        prefix="backbone.",
        # As the authors' own code names it
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
}
