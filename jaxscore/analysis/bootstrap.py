"""Means with 95% confidence intervals: bootstrap, and Wilson's for shares."""

import dataclasses
import math
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

DRAWN_TOGETHER = 1 << 16  # indices drawn at a time, so that they stay in the cache
Z95 = 1.959963984540054  # the normal distribution's 97.5% point


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over n values with a 95% interval.

    Attributes:
        n: number of values.
        mean: None if there are no values.
        low, high: None if undefined: fewer than two of them or of their groups,
            or all values or all groups' means equal and no proportion.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None

    def span(self, form: str = ".4g", before: str = ", ", after: str = "") -> str:
        """The interval in a sentence, such as `, 95% interval 0.1 to 0.2`; empty without one."""
        if self.low is None or self.high is None:
            return ""
        return f"{before}95% interval {self.low:{form}} to {self.high:{form}}{after}"


def estimate(
    values: Sequence[float] | np.ndarray,
    n_bootstrap: int,
    seed: int,
    groups: Sequence[Hashable] | np.ndarray | None = None,
) -> Estimate:
    """The mean with its percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    The values are drawn with replacement n_bootstrap times; 2.5% of the means drawn lie below
    `low` and 2.5% above `high`. The same values and seed give the same interval.

    Args:
        groups: the group of each value, such as its question. Whole groups are then drawn (the
            cluster bootstrap: Davison and Hinkley 1997, section 3.8), since values of one group
            are not independent.
    """
    if not len(values):
        return Estimate(0, None, None, None)
    found = np.asarray(values, np.float64)
    mean = float(found.mean())
    sums: np.ndarray = found
    counts: np.ndarray = np.ones(len(found))
    if groups is not None:
        members = members_of(groups)
        sums, counts = np.bincount(members, found), np.bincount(members).astype(np.float64)
    if len(sums) < 2 or (found == found[0]).all():
        return Estimate(len(found), mean, None, None)
    return Estimate(len(found), mean, *_interval(sums, counts, n_bootstrap, seed))


def members_of(groups: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """The number of each value's group, from 0 in the order of their first values."""
    if isinstance(groups, np.ndarray):
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]
    number = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    return np.array([number[group] for group in groups])


def estimate_of_groups(
    sums: Sequence[float], counts: Sequence[int], n_bootstrap: int, seed: int
) -> Estimate:
    """What `estimate` with groups gives, from the sum and the number of each group's values.

    For values that are too many to keep, such as values of all tokens of all texts.

    Args:
        counts: each at least 1.
    """
    total, n = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    if not len(total):
        return Estimate(0, None, None, None)
    mean = float(total.sum() / n.sum())
    if len(total) < 2:
        return Estimate(int(n.sum()), mean, None, None)
    return Estimate(int(n.sum()), mean, *_interval(total, n, n_bootstrap, seed))


def ratio(
    numerators: Sequence[float] | np.ndarray,
    denominators: Sequence[float] | np.ndarray,
    n_bootstrap: int,
    seed: int,
) -> Estimate:
    """Σ numerators / Σ denominators, such as the bits of all documents over their bytes.

    Pairs are drawn with replacement, and each draw gives the ratio of its own sums (Efron and
    Tibshirani 1993, chapter 13; Davison and Hinkley 1997, example 2.22).

    Args:
        numerators, denominators: [n], of the same unit each, such as a document; denominators are
            above 0.

    Returns:
        With n the number of pairs; no ratio without any, and no interval if there are fewer than
        two or all have the same ratio.
    """
    top, bottom = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not len(top):
        return Estimate(0, None, None, None)
    found = float(top.sum() / bottom.sum())
    each = top / bottom
    if len(top) < 2 or (each == each[0]).all():
        return Estimate(len(top), found, None, None)
    return Estimate(len(top), found, *_interval(top, bottom, n_bootstrap, seed))


def _interval(
    sums: np.ndarray, counts: np.ndarray, n_bootstrap: int, seed: int
) -> tuple[float | None, float | None]:
    """Interval of the mean of all values, drawing whole groups; (None, None) if it has no width."""
    n, drawn = len(sums), np.random.default_rng(seed % 2**128)  # NumPy takes none below 0
    together = max(1, DRAWN_TOGETHER // n)
    means = []
    for done in range(0, n_bootstrap, together):
        index = drawn.integers(n, size=(min(together, n_bootstrap - done), n))
        means.append(sums[index].sum(axis=1) / counts[index].sum(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    if low == high:  # one draw, or groups of one mean
        return None, None
    return float(low), float(high)


def proportion(hits: Sequence[bool] | np.ndarray) -> Estimate:
    """The share of hits with Wilson's 95% score interval (Wilson 1927).

    It holds where all values are hits or none is, which a bootstrap cannot: the interval of 4 of
    4 is 0.51 to 1. Below two values there is no interval.
    """
    n = len(hits)
    if not n:
        return Estimate(0, None, None, None)
    share = int(np.count_nonzero(hits)) / n
    if n < 2:
        return Estimate(n, share, None, None)
    denominator = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n**2)) / denominator
    # At 0 and n hits a bound is the share itself, which rounding would miss.
    return Estimate(
        n, share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))
    )


class Column(NamedTuple):
    """A number that each record of a run has.

    Attributes:
        field: of a record.
        share: whether it is true or false, so that its mean is a `proportion`.
    """

    field: str
    share: bool = False


def summarise(
    records: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Column],
    n_bootstrap: int,
    seed: int,
    category: str,
) -> dict[str, Any]:
    """Means over all records and per category, in alphabetical order.

    Args:
        records: those with an `error` are left out, and a field that is None leaves its record
            out of its mean.
        columns: by name.
        category: the field that has the category.

    Returns:
        `{"overall": {name: Estimate}, "by_category": {category: {name: Estimate}}}`.
    """
    table = {name: array("d") for name in columns}
    categories: dict[str, int] = {}
    members = array("q")
    for record in records:
        if "error" in record:
            continue
        members.append(categories.setdefault(record[category], len(categories)))
        for name, column in columns.items():
            table[name].append(_number(record[column.field]))
    values = {name: np.array(column) for name, column in table.items()}

    def means(part: np.ndarray | slice) -> dict[str, Estimate]:
        out = {}
        for name, column in columns.items():
            found = values[name][part]
            found = found[~np.isnan(found)]
            out[name] = proportion(found) if column.share else estimate(found, n_bootstrap, seed)
        return out

    number = np.array(members)
    return {
        "overall": means(slice(None)),
        "by_category": {name: means(number == categories[name]) for name in sorted(categories)},
    }


def numbers_of(
    records: Iterable[Mapping[str, Any]], fields: Sequence[str]
) -> dict[str, np.ndarray]:
    """float64 [n] of each field of all records, NaN for null."""
    columns = {name: array("d") for name in fields}
    for record in records:
        for name, column in columns.items():
            column.append(_number(record[name]))
    return {name: np.array(column) for name, column in columns.items()}


def _number(value: Any) -> float:
    """A number of a record; infinities are text in a file."""
    return math.nan if value is None else float(value)
