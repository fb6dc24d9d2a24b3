"""afmoe: gated attention, experts behind some plain layers, norms around both halves of a layer."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table, layer_norms, linear

# Attributes of released configs, at the values that PyTorch's class computes
RELEASED: dict[str, Any] = {
    "n_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
    "route_norm": True,
    "score_func": "sigmoid",
    "topk_group": 1,
}
UNREAD = "load_balance_coeff use_grouped_mm"
NORMS = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_mlp_layernorm",
    "mlp_after_norm": "post_mlp_layernorm",
}


def _afmoe(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; the others are NoPE."""
    # With biases the class has none in the gate of attention; released models have none at all.
    fields.require(config, attention_bias=False, **RELEASED)
    width = config.moe_intermediate_size
    experts = mixtures.sigmoid_experts(
        config,
        config.num_experts,
        renormalised=True,
        scale=config.route_scale,
        groups=1,
        shared_width=width * config.num_shared_experts,
    )
    plain = tuple(range(min(config.num_dense_layers, config.num_hidden_layers)))
    windows = fields.windows_by_layer_type(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **fields.rotary_in_layers(config, map(bool, windows)),
        embedding_scale=math.sqrt(config.hidden_size) if config.mup_enabled else 1.0,
        norm_place="both",
        qk_norm="head",
        query_gate=True,
        windows=windows,
    )


def _sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config)
        | linear(("layers", "attention", "gate"), "layers.{i}.self_attn.gate_proj", False)
        | layer_norms(NORMS)
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "router.gate", mlp + "expert_bias")
        | mixtures.separate_expert_sources(config, mlp)
        | mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    )


FAMILIES = {
    "afmoe": llama.family(
        _afmoe,
        "attention_bias head_dim layer_types sliding_window global_attn_every_n_layers",
        "moe_intermediate_size num_dense_layers num_experts num_experts_per_tok mup_enabled",
        "num_shared_experts route_scale output_router_logits",
        *RELEASED,
        UNREAD,
        sources=_sources,
    )
}
