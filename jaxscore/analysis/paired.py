"""Two runs on the same items: differences with intervals, and tests of their significance."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion

MOST_EXACT = 16  # values whose signs are all enumerated: 65,536 patterns
ROUNDING = 1e-12  # of the sum of absolute values: sums that are nearer than that are equal
BLOCK = 1 << 10  # values whose sums are looked up together: a table of 256 KB stays in the cache
LOOKED_UP_TOGETHER = 1 << 16  # bytes of signs that are drawn at a time
# The eight signs of each byte, bit 0 first: 1 is minus.
SIGNS = 1.0 - 2.0 * np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)


@dataclasses.dataclass(frozen=True, slots=True)
class FourCells:
    """Pairs of right and wrong decisions.

    Attributes:
        both, neither: pairs in which both runs, and no run, are right.
        only_a, only_b: pairs in which one run alone is right.
    """

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither


def four_cells(a: Sequence[bool], b: Sequence[bool]) -> FourCells:
    """The table of two runs' decisions, pair by pair."""
    one, other = np.asarray(a, bool), np.asarray(b, bool)
    both, only_a = int((one & other).sum()), int((one & ~other).sum())
    only_b = int((~one & other).sum())
    return FourCells(both, only_a, only_b, len(one) - both - only_a - only_b)


def difference_of_means(
    a: Sequence[float],
    b: Sequence[float],
    n_bootstrap: int,
    seed: int,
    groups: Sequence[int] | None = None,
) -> Estimate:
    """The mean of B - A over the pairs, with the interval of `bootstrap.estimate`.

    Pairs are drawn whole, or where `groups` has the group of each, all pairs of a group.

    Args:
        a, b: one value per pair, all finite.
    """
    differences = np.asarray(b, np.float64) - np.asarray(a, np.float64)
    return estimate(differences.tolist(), n_bootstrap, seed, groups)


def difference_of_shares(cells: FourCells) -> Estimate:
    """The share of B less the share of A, with method 10 of Newcombe 1998.

    (Statistics in Medicine 17, 2635-2650.) The distances from each share to the bounds of its
    Wilson interval are combined as the sides of a triangle, with the correlation of the pairs,
    corrected for continuity, as the cosine of the angle between them. Below two pairs there is no
    interval.
    """
    n = cells.n
    if not n:
        return Estimate(0, None, None, None)
    in_b, in_a = cells.both + cells.only_b, cells.both + cells.only_a
    found = (in_b - in_a) / n
    if n < 2:
        return Estimate(n, found, None, None)
    (low_b, high_b), (low_a, high_a) = _distances(in_b, n), _distances(in_a, n)
    product: float = cells.both * cells.neither - cells.only_a * cells.only_b
    if product > 0:
        product = max(product - n / 2, 0.0)
    margins = in_b * (n - in_b) * in_a * (n - in_a)
    cosine = product / math.sqrt(margins) if margins else 0.0
    low = found - _side(low_b, high_a, cosine)
    high = found + _side(high_b, low_a, cosine)
    return Estimate(n, found, max(-1.0, low), min(1.0, high))


def _distances(hits: int, n: int) -> tuple[float, float]:
    """From the share of hits down to its lower bound, and up to its upper one."""
    one = proportion([k < hits for k in range(n)])
    assert one.mean is not None
    assert one.low is not None
    assert one.high is not None
    return one.mean - one.low, one.high - one.mean


def _side(one: float, other: float, cosine: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * cosine * one * other + other**2))


class SignFlips(NamedTuple):
    """A two-sided sign-flip test.

    Attributes:
        p: from `smallest` to 1.
        exact: whether all patterns of signs were enumerated.
        n_patterns: how many were enumerated or drawn.
        smallest: the lowest p that the test could give with so many values or draws.
    """

    p: float
    exact: bool
    n_patterns: int
    smallest: float


def sign_flips(differences: Sequence[float], n_resamples: int, seed: int) -> SignFlips:
    """The sign-flip test of paired differences (Fisher 1935, section 21; Pitman 1937).

    Under the null hypothesis each difference has either sign with the same probability,
    independently of the others, as if which run is A and which is B had been drawn for each pair.
    p is the share of sign patterns in which the absolute sum is at least the one found. Up to
    `MOST_EXACT` differences that are not 0 all patterns are enumerated; of more,
    n_resamples are drawn and p is (b + 1) / (m + 1), which is never 0 (Phipson and Smyth 2010).

    scipy.stats.permutation_test has the same test. It permutes an array of indices for each draw,
    which takes fifty times as long on 10,000 differences; here eight signs are one byte, and the
    sum of eight values under them is looked up.

    Args:
        differences: one per pair. Where pairs are not independent, the sum of each group: its
            pairs then change signs together.

    Raises:
        ValueError: no differences, or one that is not finite.
    """
    values = np.asarray(differences, np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError("expected differences, all of them finite")
    values = values[values != 0]  # a sign of 0 changes no sum
    n = len(values)
    if not n:
        return SignFlips(1.0, True, 1, 1.0)
    values = values / np.abs(values).max()  # the sums of huge values overflow
    least = abs(values.sum()) - ROUNDING * np.abs(values).sum()
    if n <= MOST_EXACT:
        return _enumerated(values, least)
    sums = _drawn(values, n_resamples, np.random.default_rng(seed % 2**128))  # none below 0
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
    values: NDArray[np.float64], n_resamples: int, drawn: np.random.Generator
) -> NDArray[np.float64]:
    """The sums of the values under n_resamples patterns of signs."""
    sums = np.zeros(n_resamples)
    for first in range(0, len(values), BLOCK):
        table = _table(values[first : first + BLOCK])
        together = max(1, LOOKED_UP_TOGETHER // len(table))
        for done in range(0, n_resamples, together):
            rows = min(together, n_resamples - done)
            signs = np.frombuffer(drawn.bytes(rows * len(table)), np.uint8)
            sums[done : done + rows] += _sums(table, signs.reshape(rows, -1))
    return sums


def _table(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every eight values their sum under each byte of signs: [ceil(n / 8), 256]."""
    padded = np.concatenate([values, np.zeros(-len(values) % 8)])
    table: NDArray[np.float64] = padded.reshape(-1, 8) @ SIGNS.T
    return table


def _sums(table: NDArray[np.float64], signs: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The sum of all values under each row of signs, uint8 [rows, ceil(n / 8)]."""
    places = signs + 256 * np.arange(len(table))
    sums: NDArray[np.float64] = table.ravel().take(places).sum(axis=1)
    return sums


def mcnemar(only_a: int, only_b: int) -> float:
    """p of McNemar's exact test, two-sided (McNemar 1947).

    Of the pairs in which one run alone is right each is as often A's as B's, so their number has
    a binomial distribution with probability 1/2. 1 if there is no such pair.

    Args:
        only_a, only_b: pairs in which A alone, and B alone, is right.
    """
    from scipy import stats  # here: importing it takes half a second, and --help needs none

    n = only_a + only_b
    return float(stats.binomtest(only_a, n).pvalue) if n else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """p-values that are corrected for their number, in their order (Holm 1979).

    Of m values the k-th lowest is multiplied by m - k + 1, is at least the one before it, and at
    most 1. The chance that any true null hypothesis is rejected at a level is then no more than
    that level, however the tests depend on each other.
    """
    adjusted, reached = [0.0] * len(ps), 0.0
    for k, place in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
        reached = max(reached, min(1.0, (len(ps) - k) * ps[place]))
        adjusted[place] = reached
    return adjusted
