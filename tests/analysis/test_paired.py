"""Differences of two runs: against published intervals and by hand."""

import itertools
import math

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.analysis.paired import (
    FourCells,
    difference_of_means,
    difference_of_shares,
    four_cells,
)

pytestmark = pytest.mark.numeric


def test_the_cells_count_pairs():
    a = [True, True, False, False, True, True]
    b = [True, False, True, False, False, True]
    assert four_cells(a, b) == FourCells(both=2, only_a=2, only_b=1, neither=1)
    assert four_cells([], []).n == 0


def test_the_mean_difference_by_hand():
    """The same draws of pairs, each mean taken over the differences drawn."""
    a, b = [0.1, 0.9, 0.4, 0.3], [0.3, 0.7, 0.9, 0.4]
    found = difference_of_means(a, b, 200, seed=5)
    drawn = np.random.default_rng(5).integers(4, size=(200, 4))
    means = [sum(b[k] - a[k] for k in row) / 4 for row in drawn]
    low, high = np.percentile(means, [2.5, 97.5])
    assert (found.n, found.mean) == (4, pytest.approx(0.15))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_whole_groups_are_drawn():
    """Two groups whose differences are 0 and 1: draws have no means but 0, 1/2 and 1."""
    a, b = [0.0] * 8, [0.0] * 4 + [1.0] * 4
    grouped = difference_of_means(a, b, 1000, 0, groups=[0] * 4 + [1] * 4)
    assert (grouped.low, grouped.high) == (0.0, 1.0)
    alone = difference_of_means(a, b, 1000, 0)
    assert 0.0 < alone.low < alone.high < 1.0


def test_pairs_that_cannot_tell():
    assert difference_of_means([1.0], [2.0], 9, 0) == Estimate(1, 1.0, None, None)
    assert difference_of_means([1.0, 2.0], [2.0, 3.0], 9, 0) == Estimate(2, 1.0, None, None)
    assert difference_of_shares(FourCells(0, 0, 0, 0)) == Estimate(0, None, None, None)
    assert difference_of_shares(FourCells(0, 0, 1, 0)) == Estimate(1, 1.0, None, None)


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    [
        # Newcombe 1998 (Statistics in Medicine 17, 2635-2650), method 10
        (FourCells(36, 2, 12, 0), 0.0569, 0.3404),
        # Altman 2000, Statistics with Confidence, 2nd edition, page 52
        (FourCells(14, 0, 5, 22), 0.011, 0.226),
        # Fagerland, Lydersen and Laake 2014 (Statistics in Medicine 33, 2850-2875)
        (FourCells(1, 7, 1, 12), -0.507, -0.026),
    ],
)
def test_published_intervals_of_paired_shares(cells, low, high):
    found = difference_of_shares(cells)
    assert found.mean == (cells.only_b - cells.only_a) / cells.n
    digits = 5e-4 if low in (0.011, -0.507) else 5e-5
    assert (found.low, found.high) == (
        pytest.approx(low, abs=digits),
        pytest.approx(high, abs=digits),
    )


def test_an_interval_holds_its_difference_and_mirrors():
    for both, a, b, neither in itertools.product(range(4), repeat=4):
        cells = FourCells(both, a, b, neither)
        if cells.n < 2:
            continue
        found, other = (
            difference_of_shares(cells),
            difference_of_shares(FourCells(both, b, a, neither)),
        )
        assert -1.0 <= found.low <= found.mean <= found.high <= 1.0
        assert found.low < found.high
        assert (other.low, other.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def covers(interval, true):
    return interval.low is not None and interval.low <= true <= interval.high


@pytest.mark.slow
def test_intervals_of_shares_cover_the_difference():
    """Of 3,000 draws of 50 pairs about 95% of the intervals hold the true difference."""
    drawn = np.random.default_rng(0)
    for shares in ((0.4, 0.1, 0.2, 0.3), (0.75, 0.05, 0.15, 0.05), (0.1, 0.3, 0.3, 0.3)):
        true = shares[2] - shares[1]
        tables = drawn.multinomial(50, shares, size=3000)
        share = np.mean(
            [covers(difference_of_shares(FourCells(*t)), true) for t in tables.tolist()]
        )
        assert 0.93 < share < 0.985


@pytest.mark.slow
def test_intervals_of_means_cover_the_difference():
    """Of 600 draws of 30 groups of 4 pairs about 95% hold it, drawn as groups, and far fewer drawn
    pair by pair."""
    drawn, groups = np.random.default_rng(1), np.repeat(np.arange(30), 4).tolist()
    grouped, alone = [], []
    for seed in range(600):
        shared = np.repeat(drawn.normal(size=30), 4)
        a, b = drawn.normal(size=(2, 120))
        b = b + 0.5 + shared
        grouped.append(covers(difference_of_means(a, b, 400, seed, groups), 0.5))
        alone.append(covers(difference_of_means(a, b, 400, seed), 0.5))
    assert abs(np.mean(grouped) - 0.94) < 3.5 * math.sqrt(0.94 * 0.06 / 600)
    assert np.mean(alone) < np.mean(grouped) - 0.04
