"""Table of what is compared with PyTorch, and of what is refused, of each family.

    python -m tests.models.family_table

The values of an attribute are those that the configs of tests/models/families.py resolve to, with
our defaults. Every family is compared in several sizes besides.
"""

import sys
from typing import Any

from jaxscore.models.config import read
from jaxscore.models.config import table as defaults
from jaxscore.models.families import FAMILIES, MODULE_OF
from tests.models.families import BASE, CASES, GPT, REFUSED, SIZES, WITHOUT_EFFECT

# Attributes whose defaults differ between transformers' versions, so that a config must have them
REQUIRED = {kind: {"rope_theta": 10000.0} for kind in ("cohere", "falcon_h1")}

# Sizes under all their names, and what only follows from another attribute
OMITTED = {*SIZES, *GPT, *"intermediate_size ffn_dim num_heads num_layers".split()}
# Attributes that jaxscore/models/README.md names for all families
COMMON = frozenset(
    "activation activation_function hidden_act hidden_activation layer_norm_eps "
    "layer_norm_epsilon norm_eps norm_epsilon rms_norm_eps tie_word_embeddings head_dim "
    "num_key_value_heads num_kv_heads attention_bias layer_types sliding_window num_experts "
    "num_local_experts n_routed_experts num_experts_per_tok moe_intermediate_size".split()
)


def table() -> str:
    """Markdown, one row per family."""
    rows = ["| `model_type` | module | compared | refused |", "|---|---|---|---|"]
    for kind in sorted(FAMILIES):
        compared = [
            text
            for name, values in compared_values(kind).items()
            if name not in COMMON and (text := _describe(name, values))
        ]
        refused = [
            " with ".join(f"`{name}={_value(name, value)}`" for name, value in attributes.items())
            for refused_kind, attributes, _ in REFUSED
            if refused_kind == kind
        ]
        rows.append(
            f"| `{kind}` | {MODULE_OF[kind]} | {', '.join(compared)} | {', '.join(refused)} |"
        )
    return "\n".join(rows) + "\n"


def compared_values(kind: str) -> dict[str, list[str]]:
    """Values of each attribute that a family reads, as its configs have them."""
    cases = [case for case in CASES if case.kind == kind]
    base = {"model_type": kind} | REQUIRED.get(kind, {}) | BASE[kind]
    rope = defaults()[kind].rope or {}
    if "rope_type" in rope:  # a file that scales must have its base; 4.57 takes the default one
        base = {"rope_theta": rope["rope_theta"]} | base
    configs = [read(base | case.config, kind).config for case in cases]
    only_refused = {
        name for other, attributes, _ in REFUSED if other == kind for name in attributes
    }
    only_refused -= set(BASE[kind]).union({"rope_parameters"}, *(case.config for case in cases))
    hidden = OMITTED | only_refused | set(WITHOUT_EFFECT.get(kind, ()))
    return {
        name: list(dict.fromkeys(_value(name, getattr(config, name, None)) for config in configs))
        for name in sorted(FAMILIES[kind].reads - hidden)
    }


def _describe(name: str, values: list[str]) -> str:
    """The name of an attribute, and its values if they are words."""
    if name == "rope_parameters":
        types = dict.fromkeys(kind for value in values for kind in value.split("+"))
        return f"RoPE {' '.join(types)}" if list(types) != ["default"] else ""
    words = [value for value in values if value.replace("_", "").isalpha()]
    words = [word for word in words if word not in ("true", "false", "none", "any")]
    return f"`{name}`" + (f" ({' '.join(words)})" if words else "")


def _value(name: str, value: Any) -> str:
    if isinstance(value, dict) and name.startswith("rope_"):
        return _rotary(value)
    if isinstance(value, list):
        return f"[{','.join(_value(name, entry) for entry in value)}]"
    if isinstance(value, dict):
        return "any"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).removesuffix("_attention")


def _rotary(values: dict[str, Any]) -> str:
    """Rope type, with "-partial" if a part of each head rotates; joined over layer types."""
    by_type = [entry for entry in values.values() if isinstance(entry, dict)]
    if by_type:
        return "+".join(dict.fromkeys(map(_rotary, by_type)))
    kind = str(values.get("rope_type", values.get("type", "default")))
    return kind if values.get("partial_rotary_factor", 1.0) == 1 else f"{kind}-partial"


if __name__ == "__main__":
    sys.stdout.write(table())
