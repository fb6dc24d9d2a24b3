"""bamba, granitemoehybrid and falcon_h1: Mamba-2 in place of attention, or beside it."""

from typing import Any

from jaxscore.device.decoder_config import Beside, DecoderConfig, Experts, Recurrent, StateSpace
from jaxscore.errors import InputError
from jaxscore.models.families import fields, granite, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table, layer_norms, linear, norm
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.hybrid import FULL, LINEAR


def _recurrent(config: Any, layers: tuple[int, ...]) -> Recurrent | None:
    inner = int(config.mamba_expand * config.hidden_size)
    if config.mamba_n_heads * config.mamba_d_head != inner:
        raise InputError(
            f"mamba_n_heads {config.mamba_n_heads} of mamba_d_head {config.mamba_d_head}: expected "
            f"mamba_expand * hidden_size, {inner}"
        )
    mixer = _grouped_mixer(config, out_bias=config.mamba_proj_bias)
    return Recurrent(layers, mixer) if layers else None


def _grouped_mixer(config: Any, **own: Any) -> StateSpace:
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
        **own,
    )


def _bamba(config: Any) -> DecoderConfig:
    if (share := config.rope_parameters["partial_rotary_factor"]) != 0.5:
        raise InputError(
            f"partial_rotary_factor is {share!r}, for which transformers' class takes 0.5"
        )
    full = config.attn_layer_indices or []
    layers = tuple(i for i in range(config.num_hidden_layers) if i not in full)
    return llama.llama_config(config, recurrent=_recurrent(config, layers), **fields.biases(config))


def _granitemoehybrid(config: Any) -> DecoderConfig:
    """Experts beside an MLP, or that MLP alone."""
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    fields.require_one_of(config, "position_embedding_type", None, "nope", "rope")
    own: dict[str, Any] = {"rotary": (), "rotary_of": ()}
    if config.position_embedding_type == "rope":
        own = fields.rotary_fields(config)
    shared = config.shared_intermediate_size
    if config.num_local_experts:
        experts = Experts(
            config.num_local_experts,
            config.num_experts_per_tok,
            renormalised=True,
            shared_width=shared,
            shared_gated=False,
        )
        own["experts"] = mixtures.check_counts(experts)
    else:
        own["mlp_width"] = shared
    return granite.granite_config(config, recurrent=_recurrent(config, layers), **own)


def _multipliers(config: Any, name: str, count: int) -> tuple[float, ...]:
    found = getattr(config, name)
    if len(found) != count or not all(type(x) in (int, float) for x in found):
        raise InputError(f"{name} is {found!r}, expected {count} numbers")
    return tuple(map(float, found))


def _falcon_h1(config: Any) -> DecoderConfig:
    """Attention and Mamba-2 side by side in all layers."""
    # Published configs name two features that transformers' class lacks.
    fields.require(config, attn_layer_indices=None, mamba_use_mlp=True)
    inner = config.mamba_d_ssm
    if config.mamba_n_heads * config.mamba_d_head != inner:
        raise InputError(
            f"mamba_n_heads {config.mamba_n_heads} of mamba_d_head {config.mamba_d_head}: expected "
            f"mamba_d_ssm or mamba_expand * hidden_size, {inner}"
        )
    place = "first" if config.mamba_norm_before_gate else "gated"
    mixer = _grouped_mixer(
        config,
        out_bias=config.projectors_bias,
        norm=place if config.mamba_rms_norm else "",
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
        attention_scale=fields.head_width(config) ** -0.5 * config.key_multiplier,
        mlp_factors=_multipliers(config, "mlp_multipliers", 2),
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
        **fields.biases(config),
    )


def _mixer_sources(config: DecoderConfig) -> Table:
    own = llama.attention_sources(config) | hybrid.state_space_sources(config, "layers.{i}.mamba.")
    return hybrid.by_kind(config, own)


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
    for k, ours in enumerate(("gate", "up")):
        table |= linear((*at, ours), name + "input_linear", False, part=Part(1, 2, k, k + 1))
    return table | linear((*at, "down"), name + "output_linear", False)


MIXER_READS = (
    "mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups "
    "mamba_n_heads mamba_proj_bias mamba_chunk_size time_step_limit attention_bias"
)

FAMILIES = {
    "bamba": llama.family(
        _bamba,
        MIXER_READS,
        "attn_layer_indices mlp_bias num_logits_to_keep z_loss_coefficient",
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
        "shared_intermediate_size",
        granite.MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granite_sources,
    ),
}
