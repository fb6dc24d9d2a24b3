"""Decisions that differ between two runs: by how much, and whether rounding could explain it."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.systems.compare.run import UNKNOWN, Choices
from jaxscore.systems.compare.statistics import Draws
from jaxscore.systems.compare.unit import Title

LONGEST = 200  # characters of a decision's text in the report's data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """The decisions of one kind.

    Attributes:
        name, title, statistic: see `Title`; `statistic` is None where margins are not known.
        n: pairs that both runs decided.
        n_left_out: pairs that one of them did not decide.
        agree: the share that is decided alike.
        audited: "both", "A", "B" or None: the runs that say what lies within their noise floor.
        n_within: flips that lie within the noise floor of a run that says so; None where none does.
        flips: those that differ, largest margins first, with `name`, `a`, `b`, `margin_a`,
            `margin_b`, `moved` (the sum of the margins) and `within_noise`.
    """

    name: str
    title: str
    statistic: str | None
    n: int
    n_left_out: int
    agree: Estimate
    audited: str | None
    n_within: int | None
    flips: list[dict[str, Any]]


def decided(
    name: str,
    title: Title,
    a: Choices,
    b: Choices,
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
    names: list[str],
    groups: NDArray[np.int64] | None,
    draws: Draws,
) -> Decided:
    """Compare the decisions of each pair.

    A flip lies within the noise where rounding could turn the decision of either run: then the
    two could be alike.

    Args:
        places: units of A and of B, pair by pair.
        names: of A's units.
        groups: of each pair; None where each stands alone.
    """
    agree: list[bool] = []
    members: list[int] = []
    flips: list[dict[str, Any]] = []
    marks_a, marks_b = (np.asarray(one.within) for one in (a, b))
    audited = [bool((one != UNKNOWN).any()) for one in (marks_a, marks_b)]
    n_within = 0
    for pair, (i, j) in enumerate(zip(*(one.tolist() for one in places), strict=True)):
        one, other = a.values[i], b.values[j]
        if one is None or other is None:
            continue
        agree.append(one == other)
        members.append(pair if groups is None else int(groups[pair]))
        if one == other:
            continue
        margins = a.margins[i], b.margins[j]
        marks = [mark for mark in (int(marks_a[i]), int(marks_b[j])) if mark != UNKNOWN]
        within = any(marks) if marks else None
        n_within += within is True
        flips.append(
            {
                "name": names[i],
                "a": _short(one),
                "b": _short(other),
                "margin_a": _known(margins[0]),
                "margin_b": _known(margins[1]),
                "moved": _known(sum(margins)),
                "within_noise": within,
            }
        )
    flips.sort(key=lambda one: -math.inf if one["moved"] is None else one["moved"], reverse=True)
    known = any(flip["moved"] is not None for flip in flips)
    return Decided(
        name=name,
        title=title.title,
        statistic=title.statistic if known or not flips else None,
        n=len(agree),
        n_left_out=len(places[0]) - len(agree),
        agree=_share(agree, members, draws),
        audited={(1, 1): "both", (1, 0): "A", (0, 1): "B"}.get((audited[0], audited[1])),
        n_within=n_within if any(audited) else None,
        flips=flips,
    )


def _share(hits: list[bool], members: list[int], draws: Draws) -> Estimate:
    """With Wilson's interval, or where pairs share an item the bootstrap's."""
    if len(set(members)) == len(hits):
        return proportion(hits)
    return estimate([float(one) for one in hits], draws.n_bootstrap, draws.seed, members)


def _short(value: str | bool) -> str | bool:
    if isinstance(value, bool) or len(value) <= LONGEST:
        return value
    return f"{value[:LONGEST]} … ({len(value) - LONGEST} more characters)"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
