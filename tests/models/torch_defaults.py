"""Distance of PyTorch's numbers from those that jaxscore follows, in nats.

    python -m tests.models.torch_defaults [MODEL_TYPE ...]

jaxscore follows `attn_implementation="eager"` and, under transformers 5, eager experts. The first
table has a row for each family. Every case of tests/models/families.py, and those of `MORE`, is
computed with equal weights in each of `WAYS`. A row has the largest difference from eager, of any
token's logprob, entropy or self-certainty, and names the cases above 1e-4. Families that
transformers 4.57 lacks or computes wrongly are left out under 4.57.

The second table has the cases of `OTHERWISE`, where one line of transformers computes something
else however it is asked. Each is saved as a checkpoint, whose config has the attributes as 4.57
spells them. PyTorch's eager numbers of that folder are compared with jaxscore's own.

jaxscore/models/README.md has what is found. Falcon with ALiBi is compared with its own `sdpa`: see
tests/models/checkpoints.py.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM

from jaxscore.models.families import FAMILIES
from tests.models.case_parts import Case, case, scaled
from tests.models.checkpoints import (
    EXPERTS,
    FIFTH,
    MISSING,
    NO_INIT,
    NOT_BY_4,
    distance,
    from_folder,
    loaded,
    ragged,
    random_model,
    scorer,
    torch_scores,
    with_attributes,
)
from tests.models.families import CASES
from tests.models.llamalike_families import MSCALED
from tests.models.mixture_families import DEEP_YARN

MOVED = 1e-4  # nats
EAGER = {"attn_implementation": "eager", **EXPERTS}
# How transformers builds a model: by default, or with explicit implementations
WAYS: dict[str, dict[str, str]] = {
    "defaults": {},
    "sdpa": EAGER | {"attn_implementation": "sdpa"},
    "eager": EAGER,
}
MORE = [case("gemma2", attn_logit_softcapping=50.0)]  # as published
OTHERWISE = [
    case("apertus"),
    case("deepseek_v2", **scaled(DEEP_YARN)),
    case("deepseek_v3"),
    case("glm4_moe", n_group=3, topk_group=2),
    case("gpt_oss"),
    case("gpt_oss", swiglu_limit=1.0),
    case("olmo3", rope_theta=300.0),
    case("phimoe", **scaled(MSCALED)),
]


class Measured(NamedTuple):
    """Largest differences of one family, in nats.

    Attributes:
        attention: the default of transformers.
        largest: for each of `WAYS`, or None if the class refuses it.
        moved: configs of the cases in which one of them is above `MOVED`, and the largest.
    """

    attention: str
    largest: dict[str, float | None]
    moved: list[tuple[dict[str, Any], float]]


def in_another_way(model: torch.nn.Module, **ways: str) -> torch.nn.Module:
    """The same weights in a model made with transformers' defaults but for these ways."""
    config = type(model.config).from_dict(model.config.to_dict())
    with NO_INIT():
        other = AutoModelForCausalLM.from_config(config, **ways).eval()
    other.tie_weights()
    other.load_state_dict(model.state_dict())
    return other


def measured(kind: str) -> Measured:
    """A family's largest differences over its cases."""
    found = Measured("", dict.fromkeys(WAYS, 0.0), [])
    for one in [*CASES, *MORE]:
        if one.kind != kind:
            continue
        model = random_model(kind, **one.config)
        want = torch_scores(model, ragged())
        here: dict[str, float | None] = {}
        for name, way in WAYS.items():
            try:
                other = in_another_way(model, **way)
            except ValueError:  # says that the class does not support it
                here[name] = None
                continue
            here[name] = distance(torch_scores(other, ragged()), want)
            if not way:
                found = found._replace(attention=other.config._attn_implementation)
        for name, value in here.items():
            before = found.largest[name]
            found.largest[name] = None if None in (value, before) else max(value, before)
        if (most := max(value or 0.0 for value in here.values())) > MOVED:
            found.moved.append((one.config, most))
    return found


def otherwise(one: Case) -> float:
    """The largest difference of PyTorch's eager numbers of a checkpoint from jaxscore's own."""
    model = random_model(one.kind, **one.config)
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            value.normal_(mean=-0.5, std=0.2)  # some scores below zero, where the lines differ
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder)
        file = folder / "config.json"
        written = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(with_attributes(written, one.config)), encoding="utf-8")
        own = scorer(loaded(folder)).score_sequences(ragged())
        return distance(torch_scores(from_folder(folder), ragged()), own)


def rows(kinds: list[str]) -> Iterator[str]:
    """Markdown: both tables, for these families."""
    yield f"transformers {transformers.__version__}, torch {torch.__version__}"
    yield ""
    yield "| `model_type` | default attention | defaults | `sdpa` | eager | cases above 1e-4 |"
    yield "|---|---|---|---|---|---|"
    for kind in kinds:
        if FIFTH or kind not in NOT_BY_4:
            one = measured(kind)
            values = ("refused" if x is None else f"{x:.1g}" for x in one.largest.values())
            moved = "; ".join(f"{most:.1g} with {config}" for config, most in one.moved)
            yield f"| `{kind}` | {one.attention} | {' | '.join(values)} | {moved} |"
    yield ""
    yield "| `model_type` | config | difference from jaxscore |"
    yield "|---|---|---|"
    for one in OTHERWISE:
        if one.kind in kinds and (FIFTH or NOT_BY_4.get(one.kind) != MISSING):
            yield f"| `{one.kind}` | {one.config} | {otherwise(one):.1g} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE", help="default: every family")
    for row in rows(parser.parse_args().kinds or sorted(FAMILIES)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
