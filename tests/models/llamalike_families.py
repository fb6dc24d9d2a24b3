"""Cases of the llama-like families of 2024 and 2025, and of xglm, as tests/models/families.py has
them."""

from typing import Any

from jaxscore.models.families import qwen
from tests.models.case_parts import (
    FULL,
    GATED,
    LINEAR,
    LLAMA3,
    LLAMALIKE,
    LLAMALIKE_NAMES,
    LONGROPE,
    NOT_READ,
    OWN_HEADS,
    POSITIONS,
    SLIDING,
    SLOW_YARN,
    TRAINING,
    VOCABULARY,
    YARN,
    case,
    scaled,
)

SLIDING_IN_FOUR = {**GATED, "num_hidden_layers": 4, "sliding_window": 5}
MIXTURE = {**GATED, "num_local_experts": 5, "num_experts_per_tok": 2}

BASE: dict[str, dict[str, Any]] = {
    "apertus": GATED,
    "arcee": GATED,
    "cohere2": SLIDING_IN_FOUR,
    "ernie4_5": OWN_HEADS,
    "exaone4": SLIDING_IN_FOUR,
    "glm4": OWN_HEADS,
    # With a multiplier of one bfloat16 itself is far off.
    "granitemoe": {**MIXTURE, "attention_multiplier": 0.35, "residual_multiplier": 0.5},
    "hunyuan_v1_dense": OWN_HEADS,
    "nemotron": GATED,
    "olmo3": {**SLIDING_IN_FOUR, "rope_theta": 500000.0},
    "olmoe": {**GATED, "num_experts": 5, "num_experts_per_tok": 2},
    "phimoe": MIXTURE,
    "seed_oss": OWN_HEADS,
    "xglm": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "ffn_dim": 56,
        "num_layers": 2,
        "attention_heads": 4,
        "max_position_embeddings": POSITIONS,
    },
}

NTK_ALPHA = {"type": "dynamic", "factor": 1.0, "alpha": 50.0}
MSCALED = LONGROPE | {
    "original_max_position_embeddings": 16,
    "short_mscale": 1.1,
    "long_mscale": 1.3,
}

CASES = [
    case("apertus"),
    case(
        "apertus",
        "rms_norm_eps rope_theta",
        hidden_act="gelu",  # which has no parameters
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        rms_norm_eps=0.1,
        rope_theta=300.0,
        **scaled(LLAMA3),
    ),
    case("apertus", "rope_scaling", head_dim=12, num_key_value_heads=4, **scaled(YARN)),
    case("arcee"),
    case(
        "arcee",
        LLAMALIKE_NAMES,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        head_dim=12,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("arcee", "rope_scaling", **scaled(YARN)),
    # The fourth layer has no window and no rotary embedding.
    case("cohere2", "sliding_window", {"sliding_window_pattern": 5}),
    case(
        "cohere2",
        "layer_norm_eps hidden_act rope_theta logit_scale sliding_window_pattern",
        attention_bias=True,
        tie_word_embeddings=False,
        layer_norm_eps=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
        logit_scale=0.25,
        sliding_window_pattern=2,
    ),
    case(
        "cohere2",
        "rope_scaling layer_types",
        num_hidden_layers=2,
        num_key_value_heads=1,
        layer_types=[FULL, SLIDING],
        **scaled(LINEAR),
    ),
    case("ernie4_5"),
    case(
        "ernie4_5",
        LLAMALIKE_NAMES,
        use_bias=True,
        tie_word_embeddings=False,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("ernie4_5", "rope_scaling", head_dim=8, **scaled(SLOW_YARN)),
    case("exaone4", "sliding_window"),
    case(
        "exaone4",
        LLAMALIKE_NAMES,
        "sliding_window_pattern",
        tie_word_embeddings=True,
        head_dim=12,
        num_key_value_heads=1,
        sliding_window_pattern=2,
        **LLAMALIKE,
    ),
    case("exaone4", "layer_types", num_hidden_layers=2, layer_types=[FULL, SLIDING]),
    # Without a window all layers have rotary embeddings.
    case(
        "exaone4",
        "rope_scaling sliding_window",
        num_hidden_layers=2,
        sliding_window=None,
        layer_types=[FULL, FULL],
        **scaled(LLAMA3),
    ),
    case("glm4", {"partial_rotary_factor": 1.0}),
    case(
        "glm4",
        LLAMALIKE_NAMES,
        "partial_rotary_factor",
        attention_bias=False,
        tie_word_embeddings=True,
        head_dim=16,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        **LLAMALIKE,
    ),
    case("glm4", "rope_scaling", head_dim=16, **scaled(SLOW_YARN)),
    case("granitemoe", {"num_experts_per_tok": 1}),
    case(
        "granitemoe",
        LLAMALIKE_NAMES,
        "embedding_multiplier logits_scaling residual_multiplier attention_multiplier",
        "num_experts_per_tok",
        embedding_multiplier=3.0,
        logits_scaling=1.7,
        residual_multiplier=0.4,
        attention_multiplier=0.2,
        num_experts_per_tok=3,
        attention_bias=True,
        tie_word_embeddings=True,
        **LLAMALIKE,
    ),
    case("granitemoe", "rope_scaling", num_local_experts=3, **scaled(LINEAR)),
    case("hunyuan_v1_dense"),
    case(
        "hunyuan_v1_dense",
        LLAMALIKE_NAMES,
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case(
        "hunyuan_v1_dense",
        "rope_scaling",
        scaled(NTK_ALPHA, alpha=20.0),
        head_dim=8,
        **scaled(NTK_ALPHA),
    ),
    case("nemotron", {"partial_rotary_factor": 1.0}),
    case(
        "nemotron",
        "norm_eps hidden_act rope_theta partial_rotary_factor",
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        head_dim=16,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        norm_eps=0.1,
        hidden_act="gelu",
        rope_theta=300.0,
    ),
    case("olmo3", "sliding_window", {"layer_types": [SLIDING] * 4}, {"rope_theta": 300.0}),
    case(
        "olmo3",
        "rms_norm_eps hidden_act layer_types",
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        layer_types=[FULL, SLIDING, SLIDING, FULL],
        rms_norm_eps=0.1,
        hidden_act="gelu",
    ),
    # Layers with a window are not scaled.
    case(
        "olmo3",
        "rope_scaling",
        scaled(YARN, factor=4.0),
        **scaled(YARN, attention_factor=1.2),
    ),
    case("olmoe", {"norm_topk_prob": True}),
    case(
        "olmoe",
        LLAMALIKE_NAMES,
        "clip_qkv norm_topk_prob num_experts_per_tok",
        clip_qkv=0.8,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("olmoe", "rope_scaling", num_experts=3, **scaled(LINEAR)),
    case("phimoe", {"router_jitter_noise": 0.3}),
    case(
        "phimoe",
        LLAMALIKE_NAMES,
        "sliding_window router_jitter_noise",
        sliding_window=7,
        router_jitter_noise=0.3,
        attention_bias=True,
        lm_head_bias=True,
        tie_word_embeddings=True,
        num_local_experts=3,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("seed_oss"),
    case(
        "seed_oss",
        LLAMALIKE_NAMES,
        attention_bias=False,
        attention_out_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
    ),
    case("seed_oss", "rope_scaling", head_dim=8, **scaled(YARN)),
    case("xglm"),
    case(
        "xglm",
        "scale_embedding activation_function",
        scale_embedding=False,
        activation_function="relu",
        tie_word_embeddings=False,
    ),
]

# What the classes of transformers 4.57 compute as the models' publishers do, those of 5 otherwise
CASES_OF_5 = [case("phimoe", head_dim=12)]  # 4.57 takes the quotient
CASES_OF_4 = [
    # The layers with a window have the same base as the others; in 5 only where its file says so.
    case("olmo3", "rope_theta", rope_theta=300.0),
    # Requests of up to 16 tokens have other frequencies and another factor than longer ones; in 5
    # only another factor.
    case(
        "phimoe",
        "rope_scaling",
        scaled(MSCALED, short_factor=LONGROPE["long_factor"]),
        scaled(MSCALED, long_factor=LONGROPE["short_factor"]),
        scaled(MSCALED, short_mscale=1.3),
        scaled(MSCALED, long_mscale=1.1),
        **scaled(MSCALED),
    ),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # transformers 5 looks for it elsewhere than 4.57.
    (
        "olmo3",
        {
            "rope_parameters": {
                FULL: {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "truncate": False},
                SLIDING: {"rope_type": "default", "rope_theta": 5e5},
            }
        },
        "truncate",
    ),
    ("apertus", {"post_norm": True}, "post_norm is True"),
    ("apertus", {"qk_norm": False}, "qk_norm is False"),
    ("cohere2", {"head_dim": 12}, "head_dim is 12"),  # its class takes the quotient
    ("cohere2", {"layer_switch": 2}, "layer_switch is 2"),
    ("cohere2", {"order_of_interleaved_layers": "global_attn_first"}, "'global_attn_first'"),
    ("cohere2", {"position_embedding_type": "nope"}, "position_embedding_type is 'nope'"),
    ("cohere2", {"rotary_pct": 0.5}, "rotary_pct is 0.5"),
    ("cohere2", {"use_embedding_sharing": False}, "use_embedding_sharing is False"),
    ("cohere2", {"use_gated_activation": False}, "use_gated_activation is False"),
    ("cohere2", {"use_parallel_block": False}, "use_parallel_block is False"),
    ("cohere2", {"use_parallel_embedding": True}, "use_parallel_embedding is True"),
    ("granitemoe", {"position_embedding_type": "nope"}, "position_embedding_type is 'nope'"),
    ("hunyuan_v1_dense", {"attention_head_dim": 8}, "attention_head_dim is 8"),
    ("hunyuan_v1_dense", {"norm_type": "layer"}, "norm_type is 'layer'"),
    ("hunyuan_v1_dense", {"use_cla": True}, "use_cla=True"),
    ("hunyuan_v1_dense", {"use_qk_norm": False}, "use_qk_norm is False"),
    ("hunyuan_v1_dense", {"use_rotary_pos_emb": False}, "use_rotary_pos_emb is False"),
    ("nemotron", {"kv_channels": 16}, "kv_channels is 16"),
    ("nemotron", {"layer_norm_eps": 0.1}, "layer_norm_eps is 0.1"),
    # transformers 4.57 does not scale.
    ("nemotron", scaled(LINEAR), "rope_type is 'linear'"),
    ("phimoe", {"head_dim": 7}, "rotary channels of a head come out as 7"),
    ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
    ("phimoe", scaled(LINEAR, short_mscale=1.0, long_mscale=1.0), "rope_type is 'linear'"),
    # torch's class has zeros at the position of that number.
    ("xglm", {"pad_token_id": 7}, "pad_token_id is 7"),
    ("xglm", {"pad_token_id": -1}, "pad_token_id is -1"),
]
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    ("exaone4", {"layer_types": [SLIDING] * 4, "sliding_window": None}, "sliding_window is None"),
    (
        "exaone4",
        {"layer_types": None, "sliding_window_pattern": "LLLG"},
        "sliding_window_pattern is 'LLLG'",
    ),
    ("granitemoe", {"num_local_experts": 0}, "1 to 0 of 0 experts"),
    ("olmoe", {"clip_qkv": 0.0}, "clip_qkv is 0.0"),
    ("olmoe", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6"),
    (
        "phimoe",
        scaled({key: value for key, value in MSCALED.items() if key != "long_mscale"}),
        "long_mscale None",
    ),
    ("xglm", {"d_model": 33, "attention_heads": 3}, "d_model is 33"),
]
ALIKE: dict[str, set[str]] = {}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "apertus": {"hidden_dropout": NOT_READ},
    "cohere2": {"cache_implementation": "of torch's generate"},
    "granitemoe": {"output_router_logits": TRAINING, "router_aux_loss_coef": TRAINING},
    "hunyuan_v1_dense": dict.fromkeys(qwen.HUNYUAN_UNREAD.split(), NOT_READ),
    "olmoe": {"output_router_logits": TRAINING, "router_aux_loss_coef": TRAINING},
    "phimoe": {
        "hidden_dropout": NOT_READ,
        "input_jitter_noise": TRAINING,
        "output_router_logits": TRAINING,
        "router_aux_loss_coef": TRAINING,
    },
    "seed_oss": {"residual_dropout": TRAINING},
    "xglm": {
        "activation_dropout": TRAINING,
        "dropout": TRAINING,
        "init_std": TRAINING,
        "layerdrop": TRAINING,
    },
}
