"""bamba and granitemoehybrid: Mamba-2 in place of attention in most layers."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, granite, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table, layer_norms, linear, norm
from jaxscore.models.families.family import unembedding as head_sources

MAMBA, FULL = "linear_attention", "full_attention"


def _recurrent(config: Any, layers: tuple[int, ...]) -> Recurrent | None:
    inner = int(config.mamba_expand * config.hidden_size)
    if config.mamba_n_heads * config.mamba_d_head != inner:
        raise InputError(
            f"mamba_n_heads {config.mamba_n_heads} of mamba_d_head {config.mamba_d_head}: expected "
            f"mamba_expand * hidden_size, {inner}"
        )
    mixer = hybrid.state_space(
        config.mamba_n_heads,
        config.mamba_d_head,
        config.mamba_n_groups,
        config.time_step_limit,
        state_width=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
        activation=fields.activation(config),
    )
    return Recurrent(layers, mixer) if layers else None


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
    types = fields.per_layer_values(config, "layer_types")
    if unknown := sorted(set(types) - {MAMBA, FULL}):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    layers = tuple(i for i, kind in enumerate(types) if kind == MAMBA)
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


MIXER = (
    "mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups "
    "mamba_n_heads mamba_proj_bias mamba_chunk_size time_step_limit attention_bias"
)

FAMILIES = {
    "bamba": llama.family(
        _bamba,
        MIXER,
        "attn_layer_indices mlp_bias num_logits_to_keep z_loss_coefficient",
        sources=_bamba_sources,
    ),
    "granitemoehybrid": llama.family(
        _granitemoehybrid,
        MIXER,
        "layer_types num_local_experts num_experts_per_tok position_embedding_type",
        "shared_intermediate_size",
        granite.MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granite_sources,
    ),
}
