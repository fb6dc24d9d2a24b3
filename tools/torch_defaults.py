"""How far transformers' defaults, and `sdpa`, move a family's numbers from PyTorch's eager ones.

    python tools/torch_defaults.py [MODEL_TYPE ...]

jaxscore follows `attn_implementation="eager"` and, under transformers 5, eager experts. This
computes every case of tests/models/families.py, but for families that transformers 4.57 lacks or
computes wrongly however it is asked, with equal weights in each way, and prints for each family the
largest difference of any token's logprob, entropy or self-certainty, in nats, and in which cases it
is above 1e-4. jaxscore/models/README.md lists those.

Falcon with ALiBi is compared with its own `sdpa`: see tests/models/checkpoints.py.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from transformers import AutoModelForCausalLM

from jaxscore.models.families import FAMILIES
from tests.models.checkpoints import (
    EXPERTS,
    FIFTH,
    NO_INIT,
    NOT_BY_4,
    distance,
    ragged,
    torch_model,
    torch_scores,
)
from tests.models.families import CASES

MOVED = 1e-4  # nats


class Measured(NamedTuple):
    """Largest differences of one family, in nats.

    Attributes:
        default: what attention transformers takes unless it is told.
        sdpa: by `attn_implementation="sdpa"`, experts as here; None where the class refuses it.
        defaults: by default attention and default experts.
        moved: configs of the cases in which one of them is above `MOVED`.
    """

    default: str
    sdpa: float | None
    defaults: float
    moved: list[dict[str, Any]]


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
    found = Measured("", 0.0, 0.0, [])
    for case in CASES:
        if case.kind != kind:
            continue
        model = torch_model(kind, **case.config)
        want = torch_scores(model, ragged())
        other = in_another_way(model)
        both = distance(torch_scores(other, ragged()), want)
        try:
            asked = in_another_way(model, attn_implementation="sdpa", **EXPERTS)
        except ValueError:  # says that the class does not support it
            sdpa = None
        else:
            sdpa = distance(torch_scores(asked, ragged()), want)
        if max(both, sdpa or 0.0) > MOVED:
            found.moved.append(case.config)
        worst = None if sdpa is None or found.sdpa is None else max(sdpa, found.sdpa)
        way = other.config._attn_implementation
        found = found._replace(default=way, sdpa=worst, defaults=max(both, found.defaults))
    return found


def rows(kinds: list[str]) -> Iterator[str]:
    """Markdown, a row per family that the installed line computes as we follow it."""
    yield f"transformers {transformers.__version__}, torch {torch.__version__}"
    yield ""
    yield "| `model_type` | default | `sdpa` | defaults, experts too | cases above 1e-4 |"
    yield "|---|---|---|---|---|"
    for kind in kinds:
        if FIFTH or kind not in NOT_BY_4:
            one = measured(kind)
            sdpa = "refused" if one.sdpa is None else f"{one.sdpa:.1g}"
            moved = "; ".join(str(config) for config in one.moved)
            yield f"| `{kind}` | {one.default} | {sdpa} | {one.defaults:.1g} | {moved} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="MODEL_TYPE", help="default: every family")
    for row in rows(parser.parse_args().kinds or sorted(FAMILIES)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
