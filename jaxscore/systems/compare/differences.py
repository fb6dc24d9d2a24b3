"""Differences of two runs: means, shares of right decisions, and single decisions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxscore.analysis import paired
from jaxscore.analysis.bootstrap import Estimate, estimate, proportion, ratio
from jaxscore.analysis.paired import FourCells
from jaxscore.report.counts import counted
from jaxscore.shell.fields import Decision
from jaxscore.systems.compare.columns import UNKNOWN, Choices, Column

LEVEL = 0.05
SIGN_FLIPS, MCNEMAR = "sign flips", "McNemar"
BOOTSTRAP, NEWCOMBE = "bootstrap", "Newcombe"
LONGEST = 200  # characters of a decision's text in the report's data


class Draws(NamedTuple):
    """Numbers of bootstrap means and of patterns of signs that are drawn, and the seed."""

    n_bootstrap: int
    n_resamples: int
    seed: int


class Places(NamedTuple):
    """Indices of each pair's units in A and in B, and its group; None if pairs are independent."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None


class Values(NamedTuple):
    """One number of all pairs.

    Attributes:
        a, b: float64 [n].
        pair, groups: int64 [n]; no groups if the values are independent.
        n_left_out: values that one run or both do not have.
        weights: float64 [n], such as the bytes of each text; None if values count the same.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    pair: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    n_left_out: int
    weights: NDArray[np.float64] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of one number, or of the share of one right decision.

    Attributes:
        n: values that both runs have.
        n_left_out: values that one run or both do not have, or not finite.
        n_groups: groups of values that are drawn and flipped together; None without groups.
        mean_a, mean_b: None below two values or groups, as are the fields after them.
        difference: B - A, with its 95% interval.
        interval_by: `BOOTSTRAP` or `NEWCOMBE`.
        test: `SIGN_FLIPS` or `MCNEMAR`.
        exact: True if the test is exact; otherwise patterns of signs were drawn.
        n_patterns: number of patterns that were enumerated or drawn; None for McNemar's.
        smallest_p: the lowest that the test can give here.
        p, p_holm: p of the test, and corrected for the number of tests.
        cells: counts of decisions.
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

    def verdict(self, n_tests: int, label: str = "B") -> str:
        """Return a line that claims no more than the interval and the corrected p say.

        Args:
            n_tests: number of tests over which p is corrected.
            label: the letter of B.
        """
        over = f"n = {counted(self.n, 'pairs')}"
        if self.n_groups is not None:
            over = f"n = {counted(self.n, 'values')} in {counted(self.n_groups, 'groups')}"
        few = "too few pairs for an interval or a test"
        if self.difference is None or self.difference.mean is None or self.p_holm is None:
            return f"{self.title}: {few}, {over}"
        mean, span = self.difference.mean, self.difference.span(before="")
        line = f"{self.title}: A {self.mean_a:.4g}, {label} {self.mean_b:.4g}, "
        is_equal = self.mean_a == self.mean_b and self.p == 1.0 and not mean
        is_untestable = self.smallest_p is not None and self.smallest_p >= LEVEL
        if not span and is_untestable and not (is_equal and (self.n_groups or self.n) > 1):
            return f"{line}{few}, {label} - A = {mean:.4g}, {over}"
        if is_equal:
            span = f" ({span})" if span else ""
            return f"{line}no difference shown, the means are equal{span}, {over}"
        corrected = f" after Holm over {n_tests} tests" if n_tests > 1 else ""
        evidence = f"{span}, p = {self.p_holm:.2g}{corrected}".removeprefix(", ")
        if self.p_holm < LEVEL:
            side = "higher" if mean > 0 else "lower"
            return f"{line}{label} is {side} by {abs(mean):.4g} ({evidence}), {over}"
        least = ""
        if is_untestable:
            least = f"; too few pairs for a test, whose p is at least {self.smallest_p:.2g}"
        difference = f"{label} - A = {mean:.4g}"
        return f"{line}no difference shown, {difference} ({evidence}), {over}{least}"


def paired_values(a: Column, b: Column, places: Places) -> Values:
    """Return the values of two columns, pair by pair.

    Several values of a pair are a group, unless the pair is part of a larger one. A pair whose
    runs have different numbers of values is left out.
    """
    (start_a, count_a), (start_b, count_b) = _extents(a, places.a), _extents(b, places.b)
    same = count_a == count_b
    n_other_lengths = int(np.maximum(count_a, count_b)[~same].sum())
    counts = count_a[same]
    pair = np.repeat(np.flatnonzero(same), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    values_a = np.asarray(a.values)[np.repeat(start_a[same], counts) + within]
    values_b = np.asarray(b.values)[np.repeat(start_b[same], counts) + within]
    in_both = ~(np.isnan(values_a) | np.isnan(values_b))
    pair = pair[in_both]
    groups = pair if places.groups is None else places.groups[pair]
    is_independent = len(np.unique(groups)) == len(groups)
    return Values(
        values_a[in_both],
        values_b[in_both],
        pair,
        None if is_independent else groups,
        int((~in_both).sum()) + n_other_lengths,
    )


def _extents(
    column: Column, units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the index of the first value of each unit, and the number of its values."""
    ends = np.asarray(column.ends)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    return starts[units], (ends - starts)[units]


def difference_of_means(name: str, title: str, values: Values, draws: Draws) -> Difference:
    """Return the difference of a number's means, with bootstrap interval and sign-flip test.

    Values with weights are not in groups.
    """
    result, is_enough = _counted(name, title, values)
    if not is_enough:
        return result
    groups, weights, differences = values.groups, values.weights, values.b - values.a
    if weights is not None:
        differences = differences * weights
    if groups is not None:  # a group's differences change signs together
        _, members = np.unique(groups, return_inverse=True)
        differences = np.bincount(members, differences).astype(np.float64)
    flipped = paired.sign_flips(differences.tolist(), draws.n_resamples, draws.seed)
    return dataclasses.replace(
        result,
        mean_a=float(np.average(values.a, weights=weights)),
        mean_b=float(np.average(values.b, weights=weights)),
        difference=paired.difference_of_means(
            values.a.tolist(),
            values.b.tolist(),
            draws.n_bootstrap,
            draws.seed,
            None if groups is None else groups.tolist(),
        )
        if weights is None
        else ratio(differences, weights, draws.n_bootstrap, draws.seed),
        interval_by=BOOTSTRAP,
        test=SIGN_FLIPS,
        exact=flipped.exact,
        n_patterns=flipped.n_patterns,
        smallest_p=flipped.smallest,
        p=flipped.p,
    )


def difference_of_shares(name: str, title: str, values: Values, draws: Draws) -> Difference:
    """Return the difference of the shares that are right; the values are 1 and 0.

    Independent pairs have McNemar's test and Newcombe's interval; those of groups are tested and
    drawn as groups.
    """
    cells = paired.four_cells((values.a > 0).tolist(), (values.b > 0).tolist())
    if values.groups is not None:
        return dataclasses.replace(difference_of_means(name, title, values, draws), cells=cells)
    result, is_enough = _counted(name, title, values)
    if not is_enough:
        return result
    return dataclasses.replace(
        result,
        mean_a=(cells.both + cells.only_a) / cells.n,
        mean_b=(cells.both + cells.only_b) / cells.n,
        difference=paired.difference_of_shares(cells),
        interval_by=NEWCOMBE,
        test=MCNEMAR,
        exact=True,
        smallest_p=min(1.0, 2.0 ** (1 - cells.only_a - cells.only_b)),
        p=paired.mcnemar(cells.only_a, cells.only_b),
        cells=cells,
    )


def _counted(name: str, title: str, values: Values) -> tuple[Difference, bool]:
    """Return the counts alone, and True if there are two values, in two groups."""
    n, n_groups = len(values.a), None
    if values.groups is not None:
        n_groups = len(np.unique(values.groups))
    result = Difference(
        name=name, title=title, n=n, n_left_out=values.n_left_out, n_groups=n_groups
    )
    return result, min(n, n if n_groups is None else n_groups) >= 2


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Add the p-values by Holm's method, over all that have one."""
    adjusted = iter(paired.holm([each.p for each in differences if each.p is not None]))
    return [
        each if each.p is None else dataclasses.replace(each, p_holm=next(adjusted))
        for each in differences
    ]


def right_column(choices: Choices) -> Column:
    """Return right and wrong as 1 and 0."""
    column = Column()
    for value in choices.values:
        column.add(float(value) if isinstance(value, bool) else None)
    return column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """Decisions of two runs on the same pairs.

    Attributes:
        name, title, statistic: see `Decision`; `statistic` is None if margins are not known.
        n: number of pairs that both runs decided.
        n_left_out: number of pairs that one of them did not decide.
        agree: share of equal decisions.
        audited: "both", "A", "B" or None: the runs with a known noise floor.
        n_within: number of flips within the noise floor of a run; None if none is known.
        flips: pairs with different decisions, largest margins first, with `name`, `a`, `b`,
            `margin_a`, `margin_b`, `moved` (the sum of the margins) and `within_noise`.
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


def agreement(
    name: str,
    decision: Decision,
    runs: tuple[Choices, Choices],
    places: Places,
    names: Sequence[str],
    draws: Draws,
) -> Agreement:
    """Compare the decisions of each pair.

    A flip is within the noise if rounding could turn the decision of either run: then the runs
    could agree.

    Args:
        runs: decisions of A and B.
        names: names of A's units.
    """
    a, b = runs
    agree: list[bool] = []
    members: list[int] = []
    flips: list[dict[str, Any]] = []
    for pair, (i, j) in enumerate(zip(places.a.tolist(), places.b.tolist(), strict=True)):
        if a.values[i] is None or b.values[j] is None:
            continue
        agree.append(a.values[i] == b.values[j])
        members.append(pair if places.groups is None else int(places.groups[pair]))
        if not agree[-1]:
            flips.append({"name": names[i], **_flip(a, i, b, j)})
    flips.sort(key=lambda flip: -math.inf if flip["moved"] is None else flip["moved"], reverse=True)
    has_margins = any(flip["moved"] is not None for flip in flips)
    audited = [side for side, run in zip("AB", runs, strict=True) if set(run.within) - {UNKNOWN}]
    is_grouped = len(set(members)) < len(agree)
    return Agreement(
        name=name,
        title=decision.title,
        statistic=decision.statistic if has_margins or not flips else None,
        n=len(agree),
        n_left_out=len(places.a) - len(agree),
        agree=estimate([float(same) for same in agree], draws.n_bootstrap, draws.seed, members)
        if is_grouped
        else proportion(agree),
        audited="both" if len(audited) == 2 else "".join(audited) or None,
        n_within=sum(flip["within_noise"] is True for flip in flips) if audited else None,
        flips=flips,
    )


def _flip(a: Choices, i: int, b: Choices, j: int) -> dict[str, Any]:
    margins = a.margins[i], b.margins[j]
    marks = [mark for mark in (a.within[i], b.within[j]) if mark != UNKNOWN]
    finite = [margin if math.isfinite(margin) else None for margin in (*margins, sum(margins))]
    return {
        "a": _shortened(a.values[i]),
        "b": _shortened(b.values[j]),
        **dict(zip(("margin_a", "margin_b", "moved"), finite, strict=True)),
        "within_noise": any(marks) if marks else None,
    }


def _shortened(value: str | bool | None) -> str | bool | None:
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    return f"{value[:LONGEST]} … ({len(value) - LONGEST} more characters)"
