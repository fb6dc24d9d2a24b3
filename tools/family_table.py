"""The table of jaxscore/models/README.md: what is compared with PyTorch, and what is refused.

    python tools/family_table.py

An attribute's values are those that the configs of tests/models/families.py come to, with what
PyTorch's config classes fill in. Every family is compared in several sizes besides.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from transformers import AutoConfig

from jaxscore.models.families import FAMILIES
from tests.models.families import BASE, CASES, GPT, REFUSED, SIZES, WITHOUT_EFFECT

# Sizes under all their names, and what only follows from another attribute
LEFT_OUT = {*SIZES, *GPT, *"intermediate_size ffn_dim num_heads num_layers".split()}


def table() -> str:
    """Markdown, one row per family."""
    rows = ["| `model_type` | values compared with PyTorch | refused |", "|---|---|---|"]
    for kind in sorted(FAMILIES):
        refused = [
            " with ".join(f"`{name}` {_said(name, value)}" for name, value in attributes.items())
            for one, attributes, _ in REFUSED
            if one == kind
        ]
        rows.append(f"| `{kind}` | {'; '.join(_compared(kind))} | {'; '.join(refused)} |")
    return "\n".join(rows) + "\n"


def _compared(kind: str) -> list[str]:
    cases = [one for one in CASES if one.kind == kind]
    configs = [AutoConfig.for_model(kind, **BASE[kind] | one.config) for one in cases]
    only_refused = {name for one, attributes, _ in REFUSED if one == kind for name in attributes}
    only_refused -= set(BASE[kind]).union(*(one.config for one in cases))
    hidden = LEFT_OUT | only_refused | set(WITHOUT_EFFECT.get(kind, ()))
    lines = []
    for name in sorted(FAMILIES[kind].reads - hidden):
        values = dict.fromkeys(_said(name, getattr(config, name, None)) for config in configs)
        both = set(values) == {"true", "false"}
        lines.append(f"`{name}` {'both' if both else ', '.join(values)}")
    return lines


def _said(name: str, value: Any) -> str:
    """A value in few words."""
    if name == "rope_scaling":
        return "none" if value is None else str(value.get("rope_type", value.get("type")))
    if isinstance(value, list):
        return f"[{', '.join(_said(name, one) for one in value)}]"
    if isinstance(value, dict):
        return "any"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).removesuffix("_attention")


if __name__ == "__main__":
    sys.stdout.write(table())
