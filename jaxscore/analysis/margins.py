"""Margins of decisions, and which of them rounding could have turned.

A score moves by up to its noise's spread when the same request is computed in another layout, so
the difference of two scores moves by up to twice that. Margins are differences of the scores that
a decision is made on, before any softmax: that keeps their order and moves their distances.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of one kind.

    Attributes:
        what: name of the decision, for messages.
        statistic: name of the statistic whose difference is the margin, for messages.
        margin: up to which a decision lies within the noise, in the statistic's units.
        n: how many there are.
        n_within: how many of them lie within.
    """

    what: str
    statistic: str
    margin: float
    n: int
    n_within: int


def gap(one: float, other: float) -> float:
    """`one - other`, which is 0 for two equal infinities."""
    return 0.0 if one == other else one - other


def lead(scores: Sequence[float]) -> float:
    """The best score less the next one; infinite if there is only one.

    Raises:
        ValueError: no scores.
    """
    best, *others = sorted(scores, reverse=True)
    return gap(best, others[0]) if others else math.inf


def right_from_wrong(scores: Sequence[float], right: Sequence[bool]) -> float:
    """How far the best right candidate is from the best wrong one, whichever leads.

    Infinite where all are right or all are wrong: then no score decides about that.
    """
    best = {True: -math.inf, False: -math.inf}
    for score, kind in zip(scores, right, strict=True):
        best[kind] = max(best[kind], score)
    return abs(gap(best[True], best[False])) if len(set(right)) == 2 else math.inf


def within(margin: float, spread: float) -> bool:
    """Whether two scores that move by up to `spread` each can make up a margin."""
    return math.isfinite(margin) and margin <= 2 * spread


def count(what: str, statistic: str, spread: float, marks: Iterable[bool | None]) -> Decisions:
    """Decisions that have been marked by `within`; None is none."""
    made = [mark for mark in marks if mark is not None]
    return Decisions(what, statistic, 2 * spread, len(made), sum(made))


def sum_decisions(marked: Iterable[Sequence[Decisions]]) -> list[Decisions]:
    """Add up the counts of several groups of records that are marked with one spread."""
    out: dict[str, Decisions] = {}
    for found in (one for decisions in marked for one in decisions):
        before = out.get(found.what)
        if before is not None:
            n, n_within = before.n + found.n, before.n_within + found.n_within
            found = dataclasses.replace(before, n=n, n_within=n_within)
        out[found.what] = found
    return list(out.values())
