"""Configs as one line of transformers writes them: those kept in this folder, or the installed's.

    python -m tests.models.config.written

replaces the installed line's file, `written_by_4.json` or `written_by_5.json`. It has a line for
each of `SOME`: what `save_pretrained` writes, less what decides nothing.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from jaxscore.models.config.check import INERT
from jaxscore.models.model_types import WITHOUT_4
from tests.models.checkpoints import spelled
from tests.models.families import (
    BASE,
    CASES,
    FULL,
    GATED,
    LINEAR,
    LLAMA3,
    MIXTURE,
    OWN_HEADS,
    SLOW_YARN,
)

HERE = Path(__file__).parent
FOUR = {**GATED, "num_hidden_layers": 4}
YARN = {"rope_scaling": SLOW_YARN, "rope_theta": 300.0}
NTK = {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}
# Families of which both lines know the config, in the spelling of 4.57, besides those of `CASES`
MORE: list[tuple[str, dict[str, Any]]] = [
    ("apertus", GATED),
    ("apertus", GATED | {"rope_scaling": LLAMA3}),
    ("arcee", OWN_HEADS | YARN),
    ("cohere2", FOUR | {"rope_theta": 300.0, "sliding_window_pattern": 2}),
    ("ernie4_5", OWN_HEADS | {"use_bias": True}),
    ("exaone4", FOUR | {"sliding_window": 5, "rope_scaling": LLAMA3}),
    ("exaone4", FOUR | {"sliding_window": None, "layer_types": [FULL] * 4}),
    ("granitemoe", GATED | {"num_local_experts": 4, "rope_theta": 300.0}),
    ("hunyuan_v1_dense", OWN_HEADS | NTK),
    ("nemotron", GATED | {"partial_rotary_factor": 0.25}),
    # Its two layer types have their own base in 5, so that the old spelling gives them one only
    # where it is the default.
    ("olmo3", FOUR | {"sliding_window": 5, "rope_theta": 5e5, "rope_scaling": SLOW_YARN}),
    ("phimoe", GATED | {"num_local_experts": 4, "rope_theta": 300.0}),
    ("qwen3_moe", OWN_HEADS | MIXTURE | {"rope_scaling": LINEAR}),
    ("seed_oss", OWN_HEADS | {"attention_out_bias": True}),
    ("xglm", {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 56}),
]
# Where the lines have different defaults
SAID = {"cohere": {"rope_theta": 3e4}, "falcon_h1": {"rope_theta": 3e4}}
SOME = [
    (one.kind, SAID.get(one.kind, {}) | BASE[one.kind] | one.config)
    for one in CASES
    if one.kind not in WITHOUT_4
    # of which 4.57 writes false whatever it is given
    and not (one.kind == "llama4_text" and "attention_bias" in one.config)
] + MORE


def path(line: str) -> Path:
    """The kept file of a line, "4" or "5"."""
    return HERE / f"written_by_{line}.json"


def kept(line: str) -> list[dict[str, Any]]:
    """What a line has written, for each of `SOME`."""
    return json.loads(path(line).read_text(encoding="utf-8"))


def written() -> list[dict[str, Any]]:
    """What the installed line writes, for each of `SOME`."""
    out = []
    for kind, config in SOME:
        made = CONFIG_MAPPING[kind](**spelled(config), pad_token_id=None)
        found = json.loads(made.to_json_string(use_diff=True))
        out.append({k: v for k, v in found.items() if k not in INERT or k == "model_type"})
    return out


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(one, sort_keys=True) for one in written())
    path(transformers.__version__[0]).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
