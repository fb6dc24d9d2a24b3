"""Margins of decisions, and counts of decisions that rounding could have changed.

A score changes by up to the spread of its noise if the same request is computed in another layout,
so the difference of two scores changes by up to twice the spread. Margins are differences of the
scores of a decision before any softmax, which would keep their order but change their distances.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """Counts of decisions of the same type.

    Attributes:
        what: the name of the decision, for messages.
        statistic: the name of the statistic whose difference is the margin, for messages.
        margin: the largest margin of a decision within the noise, in the statistic's units.
        n: the number of decisions.
        n_within: the number of decisions within the noise.
    """

    what: str
    statistic: str
    margin: float
    n: int
    n_within: int


def gap(first: float, second: float) -> float:
    """Return `first - second`, or 0 for two equal infinities."""
    return 0.0 if first == second else first - second


def lead(scores: Sequence[float]) -> float:
    """Return the best score minus the second best; infinity for a single score.

    Raises:
        ValueError: `scores` is empty.
    """
    best, *others = sorted(scores, reverse=True)
    return gap(best, others[0]) if others else math.inf


def right_from_wrong(scores: Sequence[float], right: Sequence[bool]) -> float:
    """Return the distance between the best right candidate and the best wrong one.

    The distance is infinite if all candidates are right or all are wrong.
    """
    best = {True: -math.inf, False: -math.inf}
    for score, is_right in zip(scores, right, strict=True):
        best[is_right] = max(best[is_right], score)
    return abs(gap(best[True], best[False])) if len(set(right)) == 2 else math.inf


def within(margin: float, spread: float) -> bool:
    """Return True if changes of two scores by up to `spread` each can reverse a margin."""
    return math.isfinite(margin) and margin <= 2 * spread


def count(name: str, statistic: str, spread: float, marks: Iterable[bool | None]) -> Decisions:
    """Count decisions by their result of `within`; None is not a decision."""
    decided = [mark for mark in marks if mark is not None]
    return Decisions(name, statistic, 2 * spread, len(decided), sum(decided))


def sum_decisions(marked: Iterable[Sequence[Decisions]]) -> list[Decisions]:
    """Add the counts of several groups of records with the same spread."""
    out: dict[str, Decisions] = {}
    for counts in itertools.chain.from_iterable(marked):
        total = out.get(counts.what)
        if total is not None:
            n, n_within = total.n + counts.n, total.n_within + counts.n_within
            counts = dataclasses.replace(total, n=n, n_within=n_within)
        out[counts.what] = counts
    return list(out.values())
