"""Two runs on the same items: differences of means, and of shares of right decisions."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion


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
