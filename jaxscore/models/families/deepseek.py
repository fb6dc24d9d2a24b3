"""deepseek_v2 and deepseek_v3: latent attention, and mixtures behind some plain layers."""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import latent, llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table


def _deepseek(config: Any, experts: Experts, **own: Any) -> DecoderConfig:
    parts.refuse(config, moe_layer_freq=1)
    shared = (config.n_shared_experts or 0) * config.moe_intermediate_size
    experts = dataclasses.replace(experts, shared_width=shared, shared_gated=False)
    plain = tuple(range(min(config.first_k_dense_replace, config.num_hidden_layers)))
    return llamalike.llamalike(
        config,
        **mixtures.mlps(
            config, experts, config.moe_intermediate_size, plain, config.intermediate_size
        ),
        **latent.fields(config),
        **own,
    )


def _v2(config: Any) -> DecoderConfig:
    # DeepSeek's own code would scale the weights to a sum of one; transformers' class does not.
    parts.refuse(config, norm_topk_prob=False, scoring_func="softmax", mlp_bias=False)
    limited = parts.one_of(config, "topk_method", "greedy", "group_limited_greedy") != "greedy"
    for name in ("n_group", "topk_group"):
        if limited and getattr(config, name) is None:
            raise InputError(f"{name} is None, expected a number with group_limited_greedy")
    experts = Experts(
        config.n_routed_experts,
        config.num_experts_per_tok,
        renormalised=False,
        groups=config.n_group if limited else 1,
        groups_per_token=config.topk_group if limited else 1,
        scale=config.routed_scaling_factor,
    )
    return _deepseek(config, experts, interleaved=True)


def _v3(config: Any) -> DecoderConfig:
    parts.refuse(config, scoring_func="sigmoid", topk_method="noaux_tc")
    experts = Experts(
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.norm_topk_prob,
        scores="sigmoid",
        corrected=True,
        groups=config.n_group,
        groups_per_token=config.topk_group,
        group_rank=2,
        scale=config.routed_scaling_factor,
        least_sum=1e-20,
    )
    return _deepseek(config, experts, interleaved=config.rope_interleave)


def _sources(config: DecoderConfig) -> Table:
    return mixture_sources.sources(config, latent.sources(config))


def _family(translate: Any, *reads: str) -> Family:
    own = parts.reads(
        "first_k_dense_replace moe_intermediate_size n_routed_experts",
        "n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor n_group",
        "topk_group topk_method scoring_func moe_layer_freq aux_loss_alpha seq_aux ep_size",
        "output_router_logits",
        *reads,
    )
    return Family(
        llamalike.READS | latent.READS | own,
        translate,
        _sources,
        buffers=(parts.INV_FREQ,),
        next_tokens=True,
    )


DEEPSEEK_V2 = _family(_v2, "mlp_bias")
DEEPSEEK_V3 = _family(_v3, "rope_interleave", mixtures.NEXT_TOKENS)
