"""granite and granitemoe: llama with multipliers on embeddings, scores, residuals and logits; the
second has a mixture of experts in each layer."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table

MULTIPLIERS = "attention_multiplier embedding_multiplier residual_multiplier logits_scaling"


def _granite(config: Any, **own: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        attention_scale=config.attention_multiplier,
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        logit_scale=1 / config.logits_scaling,
        **llamalike.biases(config),
        **own,
    )


def _granitemoe(config: Any) -> DecoderConfig:
    parts.refuse(config, position_embedding_type="rope")
    # A softmax over the chosen alone is one over all, renormalised.
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, renormalised=True)
    return _granite(config, experts=mixtures.check_counts(experts))


def _mixture_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.block_sparse_moe."
    table: Table = llamalike.ends(config) | llamalike.norms_before(config)
    table |= llamalike.attention_sources(config)
    table |= mixture_sources.router(config, layer + "router.layer")
    inward, outward = layer + "input_linear.weight", layer + "output_linear.weight"
    return table | mixture_sources.experts_together(config, inward, outward, transposed=False)


GRANITE = llamalike.family(_granite, "attention_bias mlp_bias", MULTIPLIERS)
GRANITEMOE = Family(
    llamalike.READS
    | parts.reads(
        "attention_bias num_local_experts num_experts_per_tok position_embedding_type",
        MULTIPLIERS,
        mixtures.TRAINING,
    ),
    _granitemoe,
    _mixture_sources,
    buffers=(parts.INV_FREQ,),
)
