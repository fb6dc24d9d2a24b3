"""glm4_moe: a part of each head turned, sigmoid routers with a correction, plain first layers."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms


def _translate(config: Any) -> DecoderConfig:
    experts = Experts(
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.norm_topk_prob,
        shared_width=(config.n_shared_experts or 0) * config.moe_intermediate_size,
        shared_gated=False,
        scores="sigmoid",
        corrected=True,
        groups=config.n_group,
        groups_per_token=config.topk_group,
        group_rank=2,
        scale=config.routed_scaling_factor,
        least_sum=1e-20,
    )
    plain = tuple(range(min(config.first_k_dense_replace, config.num_hidden_layers)))
    return llamalike.llamalike(
        config,
        **mixtures.mlps(
            config, experts, config.moe_intermediate_size, plain, config.intermediate_size
        ),
        qkv_bias=config.attention_bias,
        qk_norm="head" if config.use_qk_norm else "",
    )


def _sources(config: DecoderConfig) -> Table:
    attention: Table = llamalike.attention_sources(config)
    attention |= qk_norms(config) if config.qk_norm else {}
    return mixture_sources.sources(config, attention)


GLM4_MOE = Family(
    llamalike.READS
    | parts.reads(
        "head_dim attention_bias use_qk_norm first_k_dense_replace moe_intermediate_size",
        "n_routed_experts n_shared_experts num_experts_per_tok norm_topk_prob n_group topk_group",
        "routed_scaling_factor",
        mixtures.NEXT_TOKENS,
        "output_router_logits",
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
    next_tokens=True,
)
