"""Cases of families that join ideas of others, as tests/models/families.py has them."""

from typing import Any

from tests.models.case_parts import (
    FULL,
    GATED,
    LINEAR,
    LLAMALIKE,
    LLAMALIKE_NAMES,
    OWN_HEADS,
    SLIDING,
    SLOW_YARN,
    YARN,
    case,
    scaled,
)

BASE: dict[str, dict[str, Any]] = {
    "glm": OWN_HEADS | {"head_dim": 16},
    "helium": {**GATED, "head_dim": 8},
    "ministral": {**OWN_HEADS, "sliding_window": 5},
    "olmo": GATED,
}

CASES = [
    case("glm", {"partial_rotary_factor": 1.0}),
    case(
        "glm",
        LLAMALIKE_NAMES,
        "partial_rotary_factor rope_scaling",
        attention_bias=False,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        partial_rotary_factor=0.75,
        **LLAMALIKE,
        **scaled(SLOW_YARN),
    ),
    case("helium"),
    case(
        "helium",
        LLAMALIKE_NAMES,
        "rope_scaling",
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        **LLAMALIKE,
        **scaled(YARN),
    ),
    case("ministral", "sliding_window", {"layer_types": [FULL, SLIDING]}),
    case(
        "ministral",
        LLAMALIKE_NAMES,
        "rope_scaling layer_types",
        tie_word_embeddings=True,
        layer_types=[SLIDING, FULL],
        num_key_value_heads=1,
        **LLAMALIKE,
        **scaled(LINEAR),
    ),
    case("olmo"),
    case(
        "olmo",
        "clip_qkv hidden_act rope_theta rope_scaling",
        clip_qkv=0.8,
        attention_bias=True,
        tie_word_embeddings=True,
        num_key_value_heads=1,
        hidden_act="gelu",
        rope_theta=300.0,
        rope_scaling={"type": "linear", "factor": 2.5},
    ),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("helium", {"head_dim": 12}, "head_dim is 12"),  # its class makes no output of it
    # Its class has a fixed one.
    ("olmo", {"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06"),
]
UNUSABLE: list[tuple[str, dict[str, Any], str]] = [
    ("ministral", {"layer_types": [FULL]}, "layer_types is ['full_attention'], expected an entry"),
    ("ministral", {"sliding_window": None}, "sliding_window is None"),
    ("olmo", {"clip_qkv": 0.0}, "clip_qkv is 0.0"),
]
ALIKE: dict[str, set[str]] = {}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {}
