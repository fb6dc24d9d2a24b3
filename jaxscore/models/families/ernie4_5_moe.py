"""ernie4_5_moe: a corrected softmax router, shared experts, mixtures in some layers alone."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table


def _translate(config: Any) -> DecoderConfig:
    # transformers 4.57 has biases in the experts then, and 5 has not.
    parts.refuse(config, use_bias=False)
    # What the released config has besides: a capacity of as many shares as there are experts
    # turns no token away.
    parts.refuse(
        config,
        moe_capacity=[config.moe_num_experts] * 3,
        moe_gate="topk",
        moe_use_aux_free=True,
    )
    every, first, last = (
        config.moe_layer_interval,
        config.moe_layer_start_index,
        config.moe_layer_end_index,
    )
    mixed = {i for i in range(config.num_hidden_layers) if not (i + 1) % every}
    mixed &= set(range(first, last + 1))
    experts = Experts(
        config.moe_num_experts,
        config.moe_k,
        renormalised=True,
        shared_width=config.moe_num_shared_experts * config.moe_intermediate_size,
        shared_gated=False,
        corrected=True,
        least_sum=config.moe_norm_min,
    )
    plain = tuple(i for i in range(config.num_hidden_layers) if i not in mixed)
    return llamalike.llamalike(
        config,
        **mixtures.mlps(
            config,
            experts,
            config.moe_intermediate_size,
            plain,
            config.intermediate_size,
            per_token="moe_k",
        ),
        interleaved=True,
    )


def _sources(config: DecoderConfig) -> Table:
    correction = "layers.{i}.mlp.moe_statics.e_score_correction_bias"
    return mixture_sources.sources(config, llamalike.attention_sources(config), correction)


ERNIE4_5_MOE = Family(
    llamalike.READS
    | parts.reads(
        "head_dim use_bias moe_num_experts moe_k moe_num_shared_experts moe_intermediate_size",
        "moe_layer_interval moe_layer_start_index moe_layer_end_index moe_norm_min",
        "moe_capacity moe_gate moe_use_aux_free",
        mixtures.NEXT_TOKENS,
        mixtures.TRAINING,
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
    next_tokens=True,
)
