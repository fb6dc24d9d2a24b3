"""granite, its mixtures of experts and windowed variants, and hyperclovax: llama with multipliers
on its sums."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Source, Table, layer_norms
from jaxscore.models.rope import rotary

MULTIPLIERS = "attention_multiplier embedding_multiplier residual_multiplier logits_scaling"


def granite_config(config: Any, **overrides: Any) -> DecoderConfig:
    """Return the decoder of granite, except for the fields in `overrides`."""
    if not config.logits_scaling:
        raise InputError("logits_scaling is 0, expected another number")
    return llama.llama_config(
        config,
        score_scale=config.attention_multiplier,
        embedding_scale=config.embedding_multiplier,
        branch_scale=config.residual_multiplier,
        head_scale=1 / config.logits_scaling,
        **fields.biases(config),
        **overrides,
    )


def _hyperclovax(config: Any) -> DecoderConfig:
    """Granite with norms after both halves, and logits multiplied by `logits_scaling`."""
    # Released configs have this in addition to `hidden_act`; PyTorch's class does not read it.
    fields.require(config, activation_function=config.hidden_act)
    decoder = granite_config(config, norm_place="both" if config.use_post_norm else "before")
    return decoder.replace(head_scale=config.logits_scaling)


def _hyperclovax_sources(config: DecoderConfig) -> Table:
    after = {"attention_after_norm": "post_norm1", "mlp_after_norm": "post_norm2"}
    table = llama.sources(config)
    return table | layer_norms(after) if config.norm.place == "both" else table


def _windows(config: Any) -> dict[str, Any]:
    """Return the fields of windows in some layers, a rotary base per layer, and sinks in all.

    Base 0 makes a layer NoPE.
    """
    bases = fields.per_layer_values(config, "layer_rope_theta")
    if not all(type(base) in (int, float) for base in bases):
        raise InputError(f"layer_rope_theta is {bases!r}, expected numbers")
    width, distinct_bases = fields.head_width(config), sorted({base for base in bases if base})
    tables = [
        rotary(width, config.rope_parameters | {"rope_theta": base}) for base in distinct_bases
    ]
    none = fields.no_rotation(len(tables[0].frequencies) if tables else 0)
    return {
        "windows": fields.windows_by_layer_type(config),
        "rotary": (none, *tables) if tables else (),
        "rotary_of": tuple(distinct_bases.index(base) + 1 if base else 0 for base in bases)
        if tables
        else (),
        "sinks": True,
    }


def _granite_swa(config: Any) -> DecoderConfig:
    return granite_config(config, **_windows(config))


def _granitemoe_swa(config: Any) -> DecoderConfig:
    return _granitemoe(config, **_windows(config))


def _granitemoe(config: Any, **overrides: Any) -> DecoderConfig:
    """Experts in every layer, with a shared MLP if `shared_intermediate_size` is not 0."""
    fields.require(config, position_embedding_type="rope")
    # Renormalising a softmax over all experts equals its softmax over the chosen ones.
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=True,
        shared_width=getattr(config, "shared_intermediate_size", 0),
        shared_gated=False,
    )
    return granite_config(config, experts=mixtures.check_counts(experts), **overrides)


def _granitemoe_sources(
    config: DecoderConfig,
    router: str = "router.layer",
    experts: tuple[str, str] = ("input_linear.weight", "output_linear.weight"),
) -> Table:
    assert config.experts is not None
    shared, at = "layers.{i}.shared_mlp.", ("layers", "mlp", "shared")
    fused = llama.fused_mlp_sources(at, shared + "input_linear", shared + "output_linear")
    layer = "layers.{i}.block_sparse_moe."
    gate_up, down = (layer + name for name in experts)
    return (
        llama.sources_without_mlp(config)
        | mixtures.router_sources(config, layer + router)
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=False)
        | (fused if config.experts.shared.width else {})
    )


SINKS: Table = {("layers", "attention", "sinks"): Source("layers.{i}.self_attn.sinks")}
FUSED = ("experts.gate_up_proj", "experts.down_proj")
# Names in transformers 5
RENAMED = {
    ".block_sparse_moe.experts.gate_up_proj": ".block_sparse_moe.input_linear.weight",
    ".block_sparse_moe.experts.down_proj": ".block_sparse_moe.output_linear.weight",
    ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
}
SWA = "layer_types sliding_window layer_rope_theta"

FAMILIES = {
    "granite": llama.family(granite_config, "attention_bias mlp_bias", MULTIPLIERS),
    "hyperclovax": llama.family(
        _hyperclovax,
        "activation_function attention_bias end_token_id head_dim mlp_bias use_post_norm",
        MULTIPLIERS,
        sources=_hyperclovax_sources,
    ),
    "granite_swa": llama.family(
        _granite_swa,
        "attention_bias mlp_bias",
        MULTIPLIERS,
        SWA,
        sources=lambda config: llama.sources(config) | SINKS,
    ),
    "granitemoe": llama.family(
        _granitemoe,
        "attention_bias num_local_experts num_experts_per_tok position_embedding_type",
        MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granitemoe_sources,
        renamed=RENAMED,
    ),
    "granitemoe_swa": llama.family(
        _granitemoe_swa,
        "attention_bias num_local_experts num_experts_per_tok shared_intermediate_size",
        MULTIPLIERS,
        SWA,
        mixtures.TRAINING,
        sources=lambda config: _granitemoe_sources(config, "router", FUSED) | SINKS,
    ),
    "granitemoeshared": llama.family(
        _granitemoe,
        "attention_bias num_local_experts num_experts_per_tok position_embedding_type",
        "shared_intermediate_size",
        MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granitemoe_sources,
        renamed=RENAMED,
    ),
}
