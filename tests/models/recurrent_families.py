"""Cases of the families with recurrent layers, as tests/models/families.py has them."""

from typing import Any

from tests.models.case_parts import (
    FULL,
    GATED,
    LLAMALIKE,
    LLAMALIKE_NAMES,
    OWN_HEADS,
    SLOW_YARN,
    TRAINING,
    case,
    scaled,
)

CONV, LINEAR = "conv", "linear_attention"
LAYERS = {"num_hidden_layers": 3, "layer_types": [CONV, FULL, CONV]}
MOE = {"moe_intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2}
# Two key heads, each of two value heads, whose widths have no common divisor but 2.
DELTA = {
    **OWN_HEADS,
    "num_hidden_layers": 3,
    "layer_types": [LINEAR, FULL, LINEAR],
    "full_attention_interval": 3,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}
DELTA_MOE = {**DELTA, **MOE, "shared_expert_intermediate_size": 40}
BASE: dict[str, dict[str, Any]] = {
    "lfm2": {**GATED, **LAYERS, "block_multiple_of": 8},
    "lfm2_moe": {**GATED, **LAYERS, **MOE, "num_dense_layers": 1},
    "qwen3_5_moe_text": {k: v for k, v in DELTA_MOE.items() if k != "intermediate_size"},
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA_MOE,
}

CASES = [
    case("lfm2"),
    case(
        "lfm2",
        "norm_eps rope_theta",
        conv_L_cache=4,
        conv_bias=True,
        block_multiple_of=16,
        block_ffn_dim_multiplier=1.5,
        tie_word_embeddings=False,
        norm_eps=0.1,
        rope_theta=300.0,
    ),
    case(
        "lfm2",
        "rope_scaling",
        block_auto_adjust_ff_dim=False,
        layer_types=None,
        full_attn_idxs=[0, 2],
        **scaled(SLOW_YARN),
    ),
    # Attention alone, and convolutions that read their own token alone.
    case("lfm2", layer_types=None),
    case("lfm2", layer_types=[CONV, CONV, FULL], conv_L_cache=1),
    case("lfm2_moe", {"num_experts_per_tok": 3}),
    case(
        "lfm2_moe",
        "norm_eps rope_theta norm_topk_prob routed_scaling_factor",
        conv_L_cache=2,
        conv_bias=True,
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
        routed_scaling_factor=0.8,
        tie_word_embeddings=False,
        norm_eps=0.1,
        rope_theta=300.0,
    ),
    case("lfm2_moe", "rope_scaling", num_dense_layers=3, **scaled(SLOW_YARN)),
    case("qwen3_5_moe_text", {"num_experts_per_tok": 3}),
    case(
        "qwen3_5_moe_text",
        LLAMALIKE_NAMES,
        "partial_rotary_factor",
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=[LINEAR, LINEAR, FULL],
        linear_num_key_heads=4,
        linear_conv_kernel_dim=3,
        partial_rotary_factor=0.5,
        **LLAMALIKE,
    ),
    case("qwen3_5_moe_text", layer_types=None, full_attention_interval=2),
    case("qwen3_5_text"),
    case(
        "qwen3_5_text",
        LLAMALIKE_NAMES,
        "partial_rotary_factor",
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=[FULL, LINEAR, LINEAR],
        linear_num_key_heads=1,
        linear_key_head_dim=6,
        linear_value_head_dim=10,
        linear_conv_kernel_dim=2,
        partial_rotary_factor=0.5,
        **LLAMALIKE,
    ),
    case("qwen3_5_text", "rope_scaling", layer_types=[FULL] * 3, **scaled(SLOW_YARN)),
    case("qwen3_5_text", layer_types=None, full_attention_interval=2),
    case("qwen3_next", {"num_experts_per_tok": 3}),
    case(
        "qwen3_next",
        LLAMALIKE_NAMES,
        "partial_rotary_factor norm_topk_prob",
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=[FULL, LINEAR, LINEAR],
        linear_num_key_heads=4,
        linear_key_head_dim=6,
        linear_value_head_dim=10,
        linear_conv_kernel_dim=2,
        partial_rotary_factor=0.5,
        norm_topk_prob=False,
        mlp_only_layers=[1],
        **LLAMALIKE,
    ),
    case("qwen3_next", "rope_scaling", decoder_sparse_step=2, **scaled(SLOW_YARN)),
    case("qwen3_next", layer_types=None, full_attention_interval=2, num_experts=0),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("lfm2", {"block_dim": 40}, "block_dim is 40"),
    ("lfm2", {"conv_dim": 40}, "conv_dim is 40"),
    ("lfm2", {"conv_dim_out": 40}, "conv_dim_out is 40"),
    ("lfm2", {"block_norm_eps": 0.5}, "block_norm_eps is 0.5"),
    ("lfm2", {"num_heads": 2}, "num_heads is 2"),
    ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu is False"),
    ("lfm2", {"block_use_swiglu": True, "use_pos_enc": False}, "use_pos_enc is False"),
    ("lfm2", {"use_pos_enc": True, "num_heads": 2}, "num_heads is 2"),
    ("lfm2", {"layer_types": [CONV, FULL, "mamba"]}, "layer_types has"),
    ("qwen3_5_text", {"layer_types": [CONV, FULL, LINEAR]}, "layer_types has"),
]
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    ("lfm2", {"conv_L_cache": 0}, "conv_L_cache is 0, expected at least 1"),
    ("qwen3_5_text", {"linear_num_key_heads": 3}, "linear_num_value_heads 4 is no multiple"),
    ("qwen3_5_text", {"linear_key_head_dim": 0}, "linear_key_head_dim is 0"),
    ("qwen3_5_text", {"layer_types": None, "full_attention_interval": 0}, "interval is 0"),
    ("qwen3_next", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
]
ALIKE = {"lfm2_moe": {"use_expert_bias"}}  # it decides a buffer
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "lfm2_moe": {"output_router_logits": TRAINING},
    "qwen3_5_moe_text": {"output_router_logits": TRAINING, "router_aux_loss_coef": TRAINING},
    "qwen3_next": {"output_router_logits": TRAINING, "router_aux_loss_coef": TRAINING},
}
