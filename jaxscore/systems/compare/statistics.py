"""Differences of the numbers and the right decisions of two runs, pair by pair."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxscore.analysis import paired, significance
from jaxscore.analysis.bootstrap import Estimate
from jaxscore.analysis.paired import FourCells
from jaxscore.systems.compare.run import Choices, Column

LEVEL = 0.05
SIGN_FLIPS, MCNEMAR = "sign flips", "McNemar"
BOOTSTRAP, NEWCOMBE = "bootstrap", "Newcombe"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """What is said of one number, or of one kind of right decision.

    Attributes:
        name, title: of it; `title` for people.
        n: values that both runs have.
        n_left_out: values that one run or both do not have, or not finite.
        n_groups: groups of values that are drawn and flipped together; None where each value
            stands alone.
        mean_a, mean_b: None below two values or groups, like all that follows.
        difference: B - A, with its 95% interval.
        interval_by: `BOOTSTRAP` or `NEWCOMBE`.
        test: `SIGN_FLIPS` or `MCNEMAR`.
        exact: whether the test is exact; else patterns of signs were drawn.
        n_patterns: how many were enumerated or drawn; None for McNemar's.
        smallest_p: the lowest that the test can give here.
        p, p_holm: of the test, and corrected for the number of tests.
        cells: of decisions.
    """

    name: str
    title: str
    n: int
    n_left_out: int
    n_groups: int | None
    mean_a: float | None = None
    mean_b: float | None = None
    difference: Estimate | None = None
    interval_by: str | None = None
    test: str | None = None
    exact: bool | None = None
    n_patterns: int | None = None
    smallest_p: float | None = None
    p: float | None = None
    p_holm: float | None = None
    cells: FourCells | None = None


@dataclasses.dataclass(frozen=True)
class Draws:
    """How much is drawn.

    Attributes:
        n_bootstrap: means of an interval.
        n_resamples: patterns of signs of a test, where they are too many to enumerate.
    """

    n_bootstrap: int
    n_resamples: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Values:
    """One number of all pairs.

    Attributes:
        a, b: float64 [n].
        pair: int64 [n], the pair that each value is of.
        groups: int64 [n]; None where each value stands alone.
        n_left_out: values of one run or both that are not there.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    pair: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    n_left_out: int


def values(
    a: Column,
    b: Column,
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
    groups: NDArray[np.int64] | None,
) -> Values:
    """The values of two columns, pair by pair.

    Where a pair has several values these are a group, unless the pair is part of a larger one.
    A pair whose runs have different numbers of values is left out.

    Args:
        places: units of A and of B, pair by pair.
        groups: of each pair.
    """
    (at_a, counts_a), (at_b, counts_b) = (
        _places(column, own) for column, own in zip((a, b), places, strict=True)
    )
    same = counts_a == counts_b
    n_others = int(np.maximum(counts_a, counts_b)[~same].sum())
    counts = counts_a[same]
    pair = np.repeat(np.flatnonzero(same), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    one = np.asarray(a.values)[np.repeat(at_a[same], counts) + within]
    other = np.asarray(b.values)[np.repeat(at_b[same], counts) + within]
    known = ~(np.isnan(one) | np.isnan(other))
    pair = pair[known]
    own = pair if groups is None else groups[pair]
    if len(np.unique(own)) == len(own):  # each value stands alone
        own = None
    return Values(one[known], other[known], pair, own, int((~known).sum()) + n_others)


def _places(
    column: Column, units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the values of units begin, and how many there are."""
    ends = np.asarray(column.ends)
    begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    return begins[units], (ends - begins)[units]


def number(name: str, title: str, found: Values, draws: Draws) -> Difference:
    """The difference of a number's means, with its interval and the sign-flip test."""
    plain = _difference(name, title, found)
    if not _enough(plain):
        return plain
    groups = None if found.groups is None else found.groups.tolist()
    sums = _sums(found)
    flipped = significance.sign_flips(sums.tolist(), draws.n_resamples, draws.seed)
    return dataclasses.replace(
        plain,
        mean_a=float(found.a.mean()),
        mean_b=float(found.b.mean()),
        difference=paired.difference_of_means(
            found.a.tolist(), found.b.tolist(), draws.n_bootstrap, draws.seed, groups
        ),
        interval_by=BOOTSTRAP,
        test=SIGN_FLIPS,
        exact=flipped.exact,
        n_patterns=flipped.n_patterns,
        smallest_p=flipped.smallest,
        p=flipped.p,
    )


def right(name: str, title: str, found: Values, draws: Draws) -> Difference:
    """The difference of the shares that are right; `found` has 1 and 0.

    Pairs that stand alone have McNemar's test and Newcombe's interval; those of groups are tested
    and drawn as groups.
    """
    cells = paired.four_cells((found.a > 0).tolist(), (found.b > 0).tolist())
    if found.groups is not None:
        return dataclasses.replace(number(name, title, found, draws), cells=cells)
    plain = _difference(name, title, found)
    if not _enough(plain):
        return plain
    n_apart = cells.only_a + cells.only_b
    return dataclasses.replace(
        plain,
        mean_a=(cells.both + cells.only_a) / cells.n,
        mean_b=(cells.both + cells.only_b) / cells.n,
        difference=paired.difference_of_shares(cells),
        interval_by=NEWCOMBE,
        test=MCNEMAR,
        exact=True,
        smallest_p=min(1.0, 2.0 ** (1 - n_apart)),
        p=significance.mcnemar(cells.only_a, cells.only_b),
        cells=cells,
    )


def _difference(name: str, title: str, found: Values) -> Difference:
    n_groups = None if found.groups is None else len(np.unique(found.groups))
    return Difference(
        name=name, title=title, n=len(found.a), n_left_out=found.n_left_out, n_groups=n_groups
    )


def _enough(one: Difference) -> bool:
    """Whether anything can be said: two values, and two groups of them."""
    return one.n >= 2 and (one.n_groups is None or one.n_groups >= 2)


def _sums(found: Values) -> NDArray[np.float64]:
    """The differences, those of a group added: they change signs together."""
    differences = found.b - found.a
    if found.groups is None:
        return differences
    _, members = np.unique(found.groups, return_inverse=True)
    sums: NDArray[np.float64] = np.bincount(members, differences).astype(np.float64)
    return sums


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """The same with p-values by Holm's method, over all that have one."""
    tested = [k for k, one in enumerate(found) if one.p is not None]
    ps = significance.holm([found[k].p or 0.0 for k in tested])
    out = list(found)
    for k, p in zip(tested, ps, strict=True):
        out[k] = dataclasses.replace(out[k], p_holm=p)
    return out


def as_column(choices: Choices) -> Column:
    """Right and wrong as 1 and 0."""
    column = Column()
    for one in choices.values:
        column.add(float(one) if isinstance(one, bool) else None)
    return column
