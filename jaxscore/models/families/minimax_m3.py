"""minimax_m3_vl_text: clamped gates in all MLPs, and experts in most layers.

In layers of type SPARSE an indexer chooses blocks of keys for each key head. Up to
`index_topk_blocks` blocks it chooses all of them, so texts of as many tokens are scored without it,
and longer ones are refused.
"""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import Clamped, DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table

SPARSE = "minimax_m3_sparse"
PLUS = 1.0  # added to the scale of every norm
LAYER = "layers.{i}."


def _config(config: Any) -> DecoderConfig:
    turned = config.rope_parameters["partial_rotary_factor"] * fields.head_width(config)
    if config.rotary_dim != turned:  # transformers' class reads the share alone
        raise InputError(
            f"rotary_dim is {config.rotary_dim}, and partial_rotary_factor makes it {turned:g}"
        )
    indexed = hybrid.layers_of_type(config, SPARSE, hybrid.FULL)
    most = config.index_topk_blocks * config.index_block_size
    if most < 1:
        raise InputError(f"index_topk_blocks * index_block_size is {most}, expected at least 1")
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=True,
        shared_width=config.shared_intermediate_size,
        shared_gated=False,
        scores="sigmoid",
        corrected=True,
        scale=config.routed_scaling_factor,
    )
    longest, plain = config.max_position_embeddings, mixtures.dense_layers(config)
    width, dense = config.intermediate_size, config.dense_intermediate_size
    return llama.llama_config(
        config,
        activation="silu",  # of no effect, since every gate is clamped
        clamped=Clamped(config.swiglu_limit, config.swiglu_alpha),
        qk_norm="head",
        max_positions=min(most, longest) if indexed else longest,
        **mixtures.mlp_fields(config, experts, width, plain, dense),
    )


def _sources(config: DecoderConfig) -> Table:
    """Released files have gate and up apart, and those that transformers writes as one tensor."""
    mlp = LAYER + "mlp."
    table = mixtures.plain_mlp_sources(config)
    table |= mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    for path, source in table.items():
        if (name := path[-2]) != "down":
            joined = source.name.replace(f"{name}_proj", "gate_up_proj")
            part = Part(1, 2, 0, 1) if name == "gate" else Part(1, 2, 1, 2)
            other = Source(joined, part=part, layers=source.layers)
            table[path] = dataclasses.replace(source, otherwise=other)
    return (
        llama.embedding_sources(config, PLUS)
        | llama.pre_norm_sources(config, PLUS)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config, PLUS)
        | mixtures.router_sources(config, mlp + "gate")
        | table
        | mixtures.expert_sources(config, mlp, ("w1", "w3", "w2"))
    )


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    return (r"layers\.\d+\.self_attn\.index(er\.[qk]|_[qk])_(proj|norm)\..+", r"mtp\..+")


FAMILIES = {
    "minimax_m3_vl_text": llama.family(
        _config,
        "dense_intermediate_size head_dim index_block_size index_head_dim index_local_blocks",
        "index_n_heads index_topk_blocks layer_types mlp_layer_types moe_layer_freq",
        "num_experts_per_tok num_local_experts rotary_dim routed_scaling_factor",
        "router_jitter_noise shared_intermediate_size sparse_attention_config swiglu_alpha",
        "swiglu_limit",
        mixtures.TRAINING,
        sources=_sources,
        unread=_unread,
        unread_part="indexers",
        limit_reason="beyond index_topk_blocks blocks of keys an indexer chooses among them, which "
        "is not covered",
        renamed={
            ".block_sparse_moe.e_score_": ".mlp.gate.e_score_",
            ".block_sparse_moe.": ".mlp.",
        },
    ),
}
