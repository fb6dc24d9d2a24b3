"""olmoe: a mixture of experts in each layer; norms over all heads of q and of k, then a limit."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _translate(config: Any) -> DecoderConfig:
    limit = config.clip_qkv
    if limit is not None and limit <= 0:
        raise InputError(f"clip_qkv is {limit!r}, expected null or a number above 0")
    experts = Experts(config.num_experts, config.num_experts_per_tok, config.norm_topk_prob)
    return llamalike.llamalike(
        config,
        qk_norm="flat",
        qkv_limit=limit,
        experts=mixtures.check_counts(experts),
        **llamalike.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    return mixture_sources.sources(config, llamalike.attention_sources(config) | qk_norms(config))


OLMOE = Family(
    llamalike.READS
    | parts.reads(
        "attention_bias clip_qkv num_experts num_experts_per_tok norm_topk_prob",
        mixtures.TRAINING,
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)
