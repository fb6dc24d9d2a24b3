"""Comparison of two runs on the same items: differences with intervals, significance tests."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion

MOST_EXACT = 16  # maximum number of values for full enumeration: 65,536 sign patterns
ROUNDING = 1e-12  # relative to the sum of absolute values: sums closer than this are equal
BLOCK = 1 << 10  # values per lookup table: 256 KB, which fits in the cache
LOOKED_UP_TOGETHER = 1 << 16  # bytes of signs drawn at a time
# The eight signs of each byte, bit 0 first: bit 1 is minus.
SIGNS = 1.0 - 2.0 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)


@dataclasses.dataclass(frozen=True, slots=True)
class FourCells:
    """Counts of pairs of decisions by correctness.

    Attributes:
        both, neither: the number of pairs in which both runs, or neither, are right.
        only_a, only_b: the number of pairs in which only run A, or only run B, is right.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither


def four_cells(a: Sequence[bool], b: Sequence[bool]) -> FourCells:
    """Count two runs' decisions, pair by pair."""
    in_a, in_b = np.asarray(a, bool), np.asarray(b, bool)
    both, only_a = int((in_a & in_b).sum()), int((in_a & ~in_b).sum())
    only_b = int((~in_a & in_b).sum())
    return FourCells(both, only_a, only_b, len(in_a) - both - only_a - only_b)


def difference_of_means(
    a: Sequence[float],
    b: Sequence[float],
    n_bootstrap: int,
    seed: int,
    groups: Sequence[int] | None = None,
) -> Estimate:
    """Compute the mean of B - A over the pairs, with the interval of `bootstrap.estimate`.

    Args:
        a, b: one value per pair, all finite.
        groups: the group of each pair; if set, whole groups are drawn instead of pairs.
    """
    differences = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    return estimate(differences.tolist(), n_bootstrap, seed, groups)


def difference_of_shares(cells: FourCells) -> Estimate:
    """Compute the share of B minus the share of A, with an interval by method 10 of Newcombe 1998.

    (Statistics in Medicine 17, 2635-2650.) The distances from each share to the bounds of its
    Wilson interval are combined like the sides of a triangle. The cosine of the angle between them
    is the correlation of the pairs, corrected for continuity. With fewer than two pairs the
    interval is None.
    """
    n = cells.n
    if not n:
        return Estimate(0, None, None, None)
    in_b, in_a = cells.both + cells.only_b, cells.both + cells.only_a
    difference = (in_b - in_a) / n
    if n < 2:
        return Estimate(n, difference, None, None)
    (low_b, high_b), (low_a, high_a) = _distances(in_b, n), _distances(in_a, n)
    product: float = cells.both * cells.neither - cells.only_a * cells.only_b
    if product > 0:
        product = max(product - n / 2, 0.0)
    margins = in_b * (n - in_b) * in_a * (n - in_a)
    cosine = product / math.sqrt(margins) if margins else 0.0
    low = difference - _side(low_b, high_a, cosine)
    high = difference + _side(high_b, low_a, cosine)
    return Estimate(n, difference, max(-1.0, low), min(1.0, high))


def _distances(hits: int, n: int) -> tuple[float, float]:
    """Return the distances from the share of hits to its lower and upper bound."""
    share = proportion([k < hits for k in range(n)])
    assert share.mean is not None
    assert share.low is not None
    assert share.high is not None
    return share.mean - share.low, share.high - share.mean


def _side(a: float, b: float, cosine: float) -> float:
    """Return the third side of a triangle by the law of cosines."""
    return math.sqrt(max(0.0, a**2 - 2 * cosine * a * b + b**2))


class SignFlips(NamedTuple):
    """A two-sided sign-flip test.

    Attributes:
        p: the p-value, from `smallest` to 1.
        exact: True if all sign patterns were enumerated.
        n_patterns: the number of sign patterns enumerated or drawn.
        smallest: the smallest possible p for this number of values or draws.
    """

    p: float
    exact: bool
    n_patterns: int
    smallest: float


def sign_flips(differences: Sequence[float], n_resamples: int, seed: int) -> SignFlips:
    """Compute the sign-flip test of paired differences (Fisher 1935, section 21; Pitman 1937).

    Under the null hypothesis both signs of each difference are equally probable and independent, as
    if A and B were assigned randomly in each pair. p is the share of sign patterns with an absolute
    sum of at least the observed one. With up to `MOST_EXACT` nonzero differences, all patterns are
    enumerated; with more, n_resamples are drawn and p is (b + 1) / (m + 1), which is never 0
    (Phipson and Smyth 2010).

    scipy.stats.permutation_test implements the same test, but takes fifty times as long on 10,000
    differences, since it permutes an array of indices for each draw. Here eight signs are one byte,
    and the signed sum of eight values is looked up in a table.

    Args:
        differences: one per pair. If pairs are not independent, pass the sum of each group, so that
            its pairs change signs together.

    Raises:
        ValueError: `differences` is empty or has a value that is not finite.
    """
    values = np.asarray(differences, np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("expected differences, all of them finite")
    values = values[values != 0]  # zeros do not change sums
    n = len(values)
    if not n:
        return SignFlips(1.0, True, 1, 1.0)
    values = values / np.abs(values).max()  # avoid overflow in sums
    least = abs(values.sum()) - ROUNDING * np.abs(values).sum()
    if n <= MOST_EXACT:
        return _enumerated(values, least)
    sums = _drawn(values, n_resamples, np.random.default_rng(seed % 2**128))  # no negative seeds
    n_extreme = int((np.abs(sums) >= least).sum())
    p = (n_extreme + 1) / (n_resamples + 1)
    return SignFlips(p, False, n_resamples, 1 / (n_resamples + 1))


def _enumerated(values: NDArray[np.float64], least: float) -> SignFlips:
    n_patterns = 1 << len(values)
    patterns = np.arange(n_patterns, dtype="<u2" if len(values) > 8 else np.uint8)
    sums = _sums(_table(values), patterns.view(np.uint8).reshape(n_patterns, -1))
    p = float((np.abs(sums) >= least).mean())
    return SignFlips(p, True, n_patterns, 2 / n_patterns)


def _drawn(
    values: NDArray[np.float64], n_resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the sums of the values under n_resamples random sign patterns."""
    sums = np.zeros(n_resamples)
    for first in range(0, len(values), BLOCK):
        table = _table(values[first : first + BLOCK])
        together = max(1, LOOKED_UP_TOGETHER // len(table))
        for done in range(0, n_resamples, together):
            rows = min(together, n_resamples - done)
            signs = np.frombuffer(rng.bytes(rows * len(table)), np.uint8)
            sums[done : done + rows] += _sums(table, signs.reshape(rows, -1))
    return sums


def _table(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of each eight values under each byte of signs: [ceil(n / 8), 256]."""
    padded = np.concatenate([values, np.zeros(-len(values) % 8)])
    table: NDArray[np.float64] = padded.reshape(-1, 8) @ SIGNS.T
    return table


def _sums(table: NDArray[np.float64], signs: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the sum of all values under each row of signs, uint8 [rows, ceil(n / 8)]."""
    index = signs + 256 * np.arange(len(table))
    sums: NDArray[np.float64] = table.ravel().take(index).sum(axis=1)
    return sums


def mcnemar(only_a: int, only_b: int) -> float:
    """Return the two-sided p of McNemar's exact test (McNemar 1947).

    Under the null hypothesis, a pair in which only one run is right is equally often A's and B's,
    so their numbers have a binomial distribution with probability 1/2. p is 1 without such pairs.

    Args:
        only_a, only_b: the number of pairs in which only A, or only B, is right.
    """
    from scipy import stats  # deferred: the import takes half a second, also for --help

    n = only_a + only_b
    return float(stats.binomtest(only_a, n).pvalue) if n else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests, in the order of the input (Holm 1979).

    The k-th lowest of m values is multiplied by m - k + 1, and raised to at least the previous
    result, up to 1. The probability of rejecting any true null hypothesis at a level is then at
    most that level, for any dependence of the tests.
    """
    adjusted, reached = [0.0] * len(ps), 0.0
    for k, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        reached = max(reached, min(1.0, (len(ps) - k) * ps[index]))
        adjusted[index] = reached
    return adjusted
