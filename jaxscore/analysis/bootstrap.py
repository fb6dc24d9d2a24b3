"""Means with 95% confidence intervals: bootstrap, and Wilson's interval for shares."""

import dataclasses
import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

DRAWN_TOGETHER = 1 << 16  # indices drawn at a time, so that they stay in the cache
Z95 = 1.959963984540054  # the normal distribution's 97.5% point


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over n values with a 95% interval.

    Attributes:
        n: the number of values.
        mean: the mean, or None without values.
        low, high: the bounds, or None if undefined: with fewer than two values or groups, or if all
            values or all groups' means are equal and the estimate is not a proportion.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None

    def changed_by(self, change: Callable[[float], float | None]) -> "Estimate":
        """Return the estimate of a rising or falling function of the mean.

        Such a function keeps the order of the bootstrap's draws, or reverses it.
        """
        mean, low, high = (
            None if value is None else change(value) for value in (self.mean, self.low, self.high)
        )
        if low is not None and high is not None and low > high:
            low, high = high, low
        return Estimate(self.n, mean, low, high)

    def span(self, form: str = ".4g", before: str = ", ", after: str = "") -> str:
        """Format the interval, such as `, 95% interval 0.1 to 0.2`; empty without interval."""
        if self.low is None or self.high is None:
            return ""
        return f"{before}95% interval {self.low:{form}} to {self.high:{form}}{after}"


def estimate(
    values: Sequence[float] | np.ndarray,
    n_bootstrap: int,
    seed: int,
    groups: Sequence[Hashable] | np.ndarray | None = None,
) -> Estimate:
    """Compute the mean with its percentile bootstrap interval (Efron and Tibshirani 1993, ch. 13).

    The values are drawn with replacement n_bootstrap times; 2.5% of the drawn means are below `low`
    and 2.5% above `high`. The interval is deterministic for given values and seed.

    Args:
        groups: the group of each value, such as its question. Whole groups are then drawn (the
            cluster bootstrap: Davison and Hinkley 1997, section 3.8), since values of one group
            are not independent.
    """
    if not len(values):
        return Estimate(0, None, None, None)
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    sums: np.ndarray = array
    counts: np.ndarray = np.ones(len(array))
    if groups is not None:
        members = members_of(groups)
        sums, counts = np.bincount(members, array), np.bincount(members).astype(np.float64)
    if len(sums) < 2 or (array == array[0]).all():
        return Estimate(len(array), mean, None, None)
    return Estimate(len(array), mean, *_interval(sums, counts, n_bootstrap, seed))


def members_of(groups: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Return the index of each value's group; groups are numbered by first occurrence."""
    if isinstance(groups, np.ndarray):
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[inverse]
    number = {group: k for k, group in enumerate(dict.fromkeys(groups))}
    return np.array([number[group] for group in groups])


def estimate_of_groups(
    sums: Sequence[float], counts: Sequence[int], n_bootstrap: int, seed: int
) -> Estimate:
    """Compute `estimate` with groups from the sum and the number of each group's values.

    Use it if the values do not fit in memory, such as those of all tokens of all texts.

    Args:
        sums: the sum of each group's values.
        counts: the number of each group's values, at least 1.
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
    """Compute Σ numerators / Σ denominators, such as the bits over the bytes of all documents.

    Pairs are drawn with replacement, and the ratio of sums is computed for each draw (Efron and
    Tibshirani 1993, chapter 13; Davison and Hinkley 1997, example 2.22).

    Args:
        numerators, denominators: [n], a pair for each unit, such as a document; denominators are
            above 0.

    Returns:
        An estimate with n the number of pairs. The ratio is None without pairs, and the interval is
        None if there are fewer than two pairs, all have the same ratio, or one is infinite.
    """
    top, bottom = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not len(top):
        return Estimate(0, None, None, None)
    mean = float(top.sum() / bottom.sum())
    ratios = top / bottom
    if len(top) < 2 or (ratios == ratios[0]).all() or not math.isfinite(mean):
        return Estimate(len(top), mean, None, None)
    return Estimate(len(top), mean, *_interval(top, bottom, n_bootstrap, seed))


def _interval(
    sums: np.ndarray, counts: np.ndarray, n_bootstrap: int, seed: int
) -> tuple[float | None, float | None]:
    """Return the interval of the mean from draws of groups, or (None, None) if its width is 0."""
    n, rng = len(sums), np.random.default_rng(seed % 2**128)  # NumPy refuses negative seeds
    batch_size = max(1, DRAWN_TOGETHER // n)
    means = []
    for done in range(0, n_bootstrap, batch_size):
        index = rng.integers(n, size=(min(batch_size, n_bootstrap - done), n))
        means.append(sums[index].sum(axis=1) / counts[index].sum(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    if low == high:  # a single draw, or equal means of all groups
        return None, None
    return float(low), float(high)


def proportion(hits: Sequence[bool] | np.ndarray) -> Estimate:
    """Compute the share of hits with Wilson's 95% score interval (Wilson 1927).

    Unlike a bootstrap, the interval is also valid if all values are hits or none is: for 4 of 4 it
    is 0.51 to 1. With fewer than two values the interval is None.
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
    # With 0 or n hits a bound equals the share; min and max correct rounding errors.
    return Estimate(
        n, share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))
    )


class Column(NamedTuple):
    """A numeric field of all records of a run.

    Attributes:
        field: the name of the field.
        share: True for a boolean field, whose mean is a `proportion`.
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
    """Compute means over all records and per category, in alphabetical order.

    Args:
        records: the records. Those with an `error` are ignored, and so are fields that are None.
        columns: the columns by name.
        category: the name of the category field.

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
            table[name].append(_number(record.get(column.field)))
    values = {name: np.array(column) for name, column in table.items()}

    def means(rows: np.ndarray | slice) -> dict[str, Estimate]:
        out = {}
        for name, column in columns.items():
            selected = values[name][rows]
            selected = selected[~np.isnan(selected)]
            if column.share:
                out[name] = proportion(selected)
            else:
                out[name] = estimate(selected, n_bootstrap, seed)
        return out

    category_of_row = np.array(members)
    return {
        "overall": means(slice(None)),
        "by_category": {
            name: means(category_of_row == categories[name]) for name in sorted(categories)
        },
    }


def numbers_of(
    records: Iterable[Mapping[str, Any]], fields: Sequence[str]
) -> dict[str, np.ndarray]:
    """Read each field of all records as float64 [n], with NaN for null."""
    columns = {name: array("d") for name in fields}
    for record in records:
        for name, column in columns.items():
            column.append(_number(record[name]))
    return {name: np.array(column) for name, column in columns.items()}


def _number(value: Any) -> float:
    """Convert a number of a record; infinities are strings in files."""
    return math.nan if value is None else float(value)
