"""mixtral: llama with a mixture of experts in each layer."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table


def _translate(config: Any) -> DecoderConfig:
    experts = Experts(config.num_local_experts, config.num_experts_per_tok, renormalised=True)
    return llamalike.llamalike(
        config,
        experts=mixtures.check_counts(experts),
        windows=parts.window_everywhere(config),
    )


def sources(config: DecoderConfig) -> Table:
    """All tensors of a model of this kind."""
    layer = "layers.{i}.block_sparse_moe."
    return (
        llamalike.ends(config)
        | llamalike.norms_before(config)
        | llamalike.attention_sources(config)
        | mixture_sources.router(config, layer + "gate", layer + "e_score_correction_bias")
        | mixture_sources.experts_apart(config, layer, ("w1", "w3", "w2"))
    )


MIXTRAL = Family(
    llamalike.READS
    | parts.reads(
        "head_dim sliding_window num_local_experts num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
    ),
    _translate,
    sources,
    buffers=(parts.INV_FREQ,),
)
