"""How sure is a ratio of two sums, such as the bits of all documents over their bytes?"""

from collections.abc import Sequence

import numpy as np

from jaxscore.analysis.bootstrap import DRAWN_TOGETHER, Estimate


def ratio(
    numerators: Sequence[float], denominators: Sequence[float], n_bootstrap: int, seed: int
) -> Estimate:
    """Σ numerators / Σ denominators with its percentile bootstrap interval.

    The pairs are drawn with replacement n_bootstrap times, and each draw gives the ratio of its
    own sums (Efron and Tibshirani 1993, chapter 13; Davison and Hinkley 1997, example 2.22). The
    same values and seed give the same interval.

    Args:
        numerators, denominators: [n], of the same unit each, such as a document; denominators are
            above 0.

    Returns:
        With n the number of pairs; no ratio without any, and no interval where there are fewer
        than two or all have the same ratio.
    """
    top, bottom = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    n = len(top)
    if not n:
        return Estimate(0, None, None, None)
    found = float(top.sum() / bottom.sum())
    each = top / bottom
    if n < 2 or (each == each[0]).all():
        return Estimate(n, found, None, None)
    drawn = np.random.default_rng(seed % 2**128)  # NumPy takes none below 0
    together = max(1, DRAWN_TOGETHER // n)
    ratios = []
    for done in range(0, n_bootstrap, together):
        index = drawn.integers(n, size=(min(together, n_bootstrap - done), n))
        ratios.append(top[index].sum(axis=1) / bottom[index].sum(axis=1))
    low, high = np.percentile(np.concatenate(ratios), [2.5, 97.5])
    if low == high:  # one draw
        return Estimate(n, found, None, None)
    return Estimate(n, found, float(low), float(high))
