"""deepseek_v32 and glm_moe_dsa: latent attention to keys that an indexer chooses.

The indexer chooses `index_topk` keys for each query. Up to that many it chooses all of them, so
texts of at most `index_topk` tokens are scored without it, and longer ones are refused.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import deepseek, llama, mixtures

LIMIT = "beyond index_topk keys an indexer chooses among them, which is not covered"
INDEXER = r"layers\.\d+\.self_attn\.indexer\..+"


def _indexed(config: Any) -> DecoderConfig:
    most, longest = config.index_topk, config.max_position_embeddings
    if most < 1:
        raise InputError(f"index_topk is {most!r}, expected a number of at least 1")
    if config.layer_types != ["indexed_attention"] * config.num_hidden_layers:
        raise InputError(
            f"layer_types is {config.layer_types!r}, handled is 'indexed_attention' for each layer"
        )
    return deepseek.sigmoid_mixture(config, max_positions=min(most, longest))


def _glm_moe_dsa(config: Any) -> DecoderConfig:
    """Some layers have no indexer and take the choice of the one before."""
    types = config.indexer_types
    if set(types) - {"full", "shared"} or types[:1] == ["shared"]:
        raise InputError(
            f"indexer_types is {types!r}, expected 'full' and 'shared', the first one 'full'"
        )
    return _indexed(config)


READS = (
    "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "head_dim qk_head_dim first_k_dense_replace mlp_layer_types moe_intermediate_size "
    "n_routed_experts n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor "
    "n_group topk_group topk_method scoring_func moe_layer_freq mlp_bias layer_types "
    "index_topk index_head_dim index_n_heads ep_size aux_loss_alpha seq_aux output_router_logits"
)
SHARED = "indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset"
NAMES: dict[str, Any] = {
    "sources": deepseek.sources,
    "unread": lambda config: (INDEXER,),
    "unread_part": "indexers",
    "limit_reason": LIMIT,
    "next_tokens": True,
}

FAMILIES = {
    "deepseek_v32": llama.family(_indexed, READS, mixtures.NEXT_TOKENS, **NAMES),
    "glm_moe_dsa": llama.family(
        _glm_moe_dsa,
        READS,
        SHARED,
        "indexer_rope_interleave",
        mixtures.NEXT_TOKENS,
        **NAMES,
    ),
}
