"""granite and its mixtures: llama with multipliers on embeddings, scores, residuals, logits."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table

MULTIPLIERS = "attention_multiplier embedding_multiplier residual_multiplier logits_scaling"


def granite_config(config: Any, **own: Any) -> DecoderConfig:
    return llama.llama_config(
        config,
        attention_scale=config.attention_multiplier,
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        logit_scale=1 / config.logits_scaling,
        **fields.biases(config),
        **own,
    )


def _granitemoe(config: Any) -> DecoderConfig:
    """Experts in every layer, beside an MLP if `shared_intermediate_size` is not 0."""
    fields.require(config, position_embedding_type="rope")
    # Renormalising a softmax over all experts equals its softmax over the chosen ones.
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=True,
        shared_width=getattr(config, "shared_intermediate_size", 0),
        shared_gated=False,
    )
    return granite_config(config, experts=mixtures.check_counts(experts))


def _granitemoe_sources(config: DecoderConfig) -> Table:
    assert config.experts is not None
    shared, at = "layers.{i}.shared_mlp.", ("layers", "mlp", "shared")
    fused = llama.fused_mlp_sources(at, shared + "input_linear", shared + "output_linear")
    layer = "layers.{i}.block_sparse_moe."
    gate_up, down = layer + "input_linear.weight", layer + "output_linear.weight"
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | mixtures.router_sources(config, layer + "router.layer")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=False)
        | (fused if config.experts.shared_width else {})
    )


FAMILIES = {
    "granite": llama.family(granite_config, "attention_bias mlp_bias", MULTIPLIERS),
    "granitemoe": llama.family(
        _granitemoe,
        "attention_bias num_local_experts num_experts_per_tok position_embedding_type",
        MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granitemoe_sources,
    ),
    "granitemoeshared": llama.family(
        _granitemoe,
        "attention_bias num_local_experts num_experts_per_tok position_embedding_type",
        "shared_intermediate_size",
        MULTIPLIERS,
        mixtures.TRAINING,
        sources=_granitemoe_sources,
    ),
}
