"""The table of jaxscore/models/README.md: what is compared with PyTorch, and what is refused.

    python tools/family_table.py

An attribute's values are those that the configs of tests/models/families.py come to, with our
defaults. Every family is compared in several sizes besides.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jaxscore.models.config import read
from jaxscore.models.config import table as defaults
from jaxscore.models.families import FAMILIES
from tests.models.families import BASE, CASES, GPT, REFUSED, SIZES, WITHOUT_EFFECT

# Where transformers' versions have different defaults, and a config has to say it
SAID = {"cohere": {"rope_theta": 10000.0}}

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
    said = {"model_type": kind} | SAID.get(kind, {}) | BASE[kind]
    rope = defaults()[kind].rope or {}
    if "rope_type" in rope:  # a file that scales has to say its base; 4.57 takes the default one
        said = {"rope_theta": rope["rope_theta"]} | said
    configs = [read(said | one.config, kind).config for one in cases]
    only_refused = {name for one, attributes, _ in REFUSED if one == kind for name in attributes}
    only_refused -= set(BASE[kind]).union({"rope_parameters"}, *(one.config for one in cases))
    hidden = LEFT_OUT | only_refused | set(WITHOUT_EFFECT.get(kind, ()))
    lines = []
    for name in sorted(FAMILIES[kind].reads - hidden):
        values = dict.fromkeys(_said(name, getattr(config, name, None)) for config in configs)
        both = set(values) == {"true", "false"}
        lines.append(f"`{name}` {'both' if both else ', '.join(values)}")
    return lines


def _said(name: str, value: Any) -> str:
    """A value in few words."""
    if isinstance(value, dict) and name.startswith("rope_"):
        return _rotary(value)
    if isinstance(value, list):
        return f"[{', '.join(_said(name, one) for one in value)}]"
    if isinstance(value, dict):
        return "any"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).removesuffix("_attention")


def _rotary(values: dict[str, Any]) -> str:
    """Type, base, and the share of a head that turns where that is not all; by layer type."""
    own = [one for one in values.values() if isinstance(one, dict)]
    if own:
        return " and ".join(map(_rotary, own))
    said = [str(values.get("rope_type", values.get("type", "default")))]
    said += [f"{values['rope_theta']:g}"] if "rope_theta" in values else []
    share = values.get("partial_rotary_factor", 1.0)
    return " ".join(said + ([] if share == 1 else [f"of {share:g}"]))


if __name__ == "__main__":
    sys.stdout.write(table())
