"""A sample of a run's items that is also scored in other ways, to measure how far the result moves.

The sample's answers are scored with a blank before them, in the same call as the run's, so that
they share their prompts; and those that another boundary policy would change, under that policy.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, failed

PART_OF_ANSWERS = "a blank is part of the answers already"
SAMPLED = 32  # items, evenly spread over the run's

# (scores of the sample's requests, name of the boundary) -> name of a result -> its number for
# each item of the sample, None for an item without one
Measure = Callable[[Sequence[ScoredRequest], str], Mapping[str, Sequence[float | None]]]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Items of a run that are scored in other ways too.

    Attributes:
        what: the items, such as "paths".
        places: of the sample's requests among those of the run.
        measure: see `Measure`.
        blanks: the same requests with a blank before each answer, None for an answer that has
            one already; empty if none is tried.
        why_no_blanks: why `blanks` is empty.
        with_blank: sentence opening for the finding.
        statistic: the log-probability of an answer that the system compares.
    """

    what: str
    places: Sequence[int]
    measure: Measure
    blanks: Sequence[Request | None] = ()
    why_no_blanks: str = ""
    with_blank: str = "With a blank before the answer"
    statistic: str = "mean_logprob"


def spread(n: int, most: int = SAMPLED) -> list[int]:
    """At most `most` of n places, evenly spread, in order."""
    return [k * n // min(n, most) for k in range(min(n, most))]


def places(sizes: Sequence[int], chosen: Iterable[int]) -> list[int]:
    """Places of the requests of some items.

    Args:
        sizes: number of requests of each item of the run.
        chosen: places of items.
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return [place for k in chosen for place in range(starts[k], starts[k + 1])]


def unless_blank(requests: Iterable[Request], answers: Iterable[str]) -> list[Request | None]:
    """Requests with a blank before their answers, None for an answer that begins with a blank.

    Args:
        answers: of the requests, as the system writes them.
    """
    pairs = zip(requests, answers, strict=True)
    return [None if answer[:1].isspace() else request for request, answer in pairs]


def blank_scores(sample: Sample, scored: Sequence[ScoredRequest]) -> list[ScoredRequest]:
    """Results for all of a sample's requests from those of its `blanks` that are not None."""
    left = iter(scored)
    return [
        failed("", "the answer begins with a blank") if request is None else next(left)
        for request in sample.blanks
    ]


def compared(ways: Mapping[str, Mapping[str, Sequence[float | None]]]) -> dict[str, dict[str, Any]]:
    """Means of each result over the items that have it in all ways of scoring.

    Args:
        ways: name of a way -> what `Sample.measure` gives.

    Returns:
        Name of a result -> `n`, the number of items, and the mean by the name of each way. A
        result that no item has is left out.
    """
    out: dict[str, dict[str, Any]] = {}
    for name in next(iter(ways.values())):
        rows = [
            row
            for row in zip(*(values[name] for values in ways.values()), strict=True)
            if all(value is not None and math.isfinite(value) for value in row)
        ]
        if rows:
            means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
            out[name] = {"n": len(rows), **dict(zip(ways, means, strict=True))}
    return out


def blank_record(
    sample: Sample, own: Sequence[ScoredRequest], blanks: Sequence[ScoredRequest], boundary: str
) -> dict[str, Any]:
    """Effect of a blank before the answers, as JSON has it.

    Args:
        own, blanks: scores of the sample's requests, as they are and with the blank.

    Returns:
        `n_items`; `n_answers`, scored in both ways, and `n_raised`, whose probability the blank
        raises; `raises_most`; `results`, see `compared`; `finding`, a sentence if it raises most.
    """
    pairs = [
        (published_logprob, blank_logprob)
        for published, with_blank in zip(own, blanks, strict=True)
        if (published_logprob := getattr(published, sample.statistic)) is not None
        and (blank_logprob := getattr(with_blank, sample.statistic)) is not None
    ]
    n_raised = sum(blank_logprob > published_logprob for published_logprob, blank_logprob in pairs)
    ways = {
        "as_published": sample.measure(own, boundary),
        "with_blank": sample.measure(blanks, boundary),
    }
    results = compared(ways)
    out = {
        "n_items": max((one["n"] for one in results.values()), default=0),
        "n_answers": len(pairs),
        "n_raised": n_raised,
        "raises_most": 2 * n_raised > len(pairs),
        "results": results,
        "finding": None,
    }
    if out["raises_most"] and results:
        moved = " and the ".join(
            f"{name} is {one['with_blank']:.4g} instead of {one['as_published']:.4g}"
            for name, one in results.items()
        )
        out["finding"] = (
            f"{sample.with_blank} the {moved}; see --answer-separator (a sample of "
            f"{out['n_items']} {sample.what}; the blank raises the probability of {n_raised} of "
            f"{len(pairs)} answers)"
        )
    return out
