"""Cases of families that join ideas of attention and experts, as families.py has them."""

from typing import Any

from tests.models import mixture_families
from tests.models.case_parts import FULL, SLIDING, case
from tests.models.mixture_families import ROPE_BY_TYPE

# gemma4 without experts and per-layer embeddings
OF_GEMMA4 = set("num_experts top_k_experts moe_intermediate_size".split())
UNIFIED = {
    name: value
    for name, value in mixture_families.BASE["gemma4_text"].items()
    if name not in OF_GEMMA4 and not name.endswith("per_layer_input")
}
BASE: dict[str, dict[str, Any]] = {"gemma4_unified_text": UNIFIED}

CASES = [
    case("gemma4_unified_text", "sliding_window final_logit_softcapping"),
    case(
        "gemma4_unified_text",
        "rms_norm_eps hidden_activation",
        {"rope_parameters": ROPE_BY_TYPE | {SLIDING: {"rope_theta": 1e4}}},
        {"rope_parameters": ROPE_BY_TYPE | {FULL: {"rope_theta": 300.0}}},
        num_kv_shared_layers=2,
        use_double_wide_mlp=True,
        attention_bias=True,
        tie_word_embeddings=False,
        rms_norm_eps=0.1,
        hidden_activation="relu",
        rope_parameters=ROPE_BY_TYPE,
    ),
    case(
        "gemma4_unified_text",
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        final_logit_softcapping=None,
    ),
    case(
        "gemma4_unified_text",
        num_kv_shared_layers=1,
        per_layer_config={"1": {"head_dim": 20}, "3": {"head_dim": 20}},
    ),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma4_unified_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
]
UNUSABLE: list[tuple[str, dict[str, Any], str]] = []
ALIKE: dict[str, set[str]] = {}
WITHOUT_EFFECT: dict[str, dict[str, str]] = {}
