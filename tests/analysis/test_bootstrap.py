"""Intervals of means and shares: against known answers, and the same from the same seed."""

import math

import numpy as np
import pytest

from jaxscore.analysis import bootstrap
from jaxscore.analysis.bootstrap import Estimate, estimate, proportion


def test_the_interval_is_that_of_the_normal_distribution_on_many_values():
    values = np.random.default_rng(0).normal(2.0, 3.0, 2000)
    found = estimate(values.tolist(), 4000, seed=1)
    spread = 1.96 * values.std() / math.sqrt(2000)
    assert (found.n, found.mean) == (2000, pytest.approx(values.mean()))
    assert found.low == pytest.approx(values.mean() - spread, abs=0.01)
    assert found.high == pytest.approx(values.mean() + spread, abs=0.01)


def test_two_values_have_three_means():
    """0, 1/2 and 1 with shares 1/4, 1/2 and 1/4, so the interval is everything."""
    assert estimate([0.0, 1.0], 1000, seed=0) == Estimate(2, 0.5, 0.0, 1.0)


def test_the_same_seed_gives_the_same_interval_however_it_is_drawn(monkeypatch):
    values = np.random.default_rng(2).random(50).tolist()
    whole = estimate(values, 300, seed=7)
    assert estimate(values, 300, seed=7) == whole
    assert len({estimate(values, 300, seed) for seed in (7, 8, -7, 2**200)}) == 4
    monkeypatch.setattr(bootstrap, "DRAWN_TOGETHER", 333)  # six draws at a time
    assert estimate(values, 300, seed=7) == whole


def test_values_that_cannot_tell_have_no_interval():
    assert estimate([], 10, seed=0) == Estimate(0, None, None, None)
    assert estimate([0.25], 10, seed=0) == Estimate(1, 0.25, None, None)
    assert estimate([0.25] * 9, 10, seed=0) == Estimate(9, 0.25, None, None)
    assert estimate([0.0, 1.0, 0.5], 10, seed=0, groups="aaa") == Estimate(3, 0.5, None, None)
    assert estimate([0.0, 1.0, 0.0, 1.0], 10, 0, groups="aabb") == Estimate(4, 0.5, None, None)
    assert estimate([0.0, 0.5, 1.0], 1, seed=0).low is None  # one draw has one mean
    assert estimate([], 10, seed=0, groups=[]) == Estimate(0, None, None, None)


def test_groups_of_one_are_the_plain_bootstrap():
    values = np.random.default_rng(3).random(40).tolist()
    plain, grouped = (estimate(values, 500, 1, groups) for groups in (None, list(range(40))))
    assert grouped.mean == plain.mean
    assert (grouped.low, grouped.high) == pytest.approx((plain.low, plain.high), rel=1e-12)


def test_whole_groups_are_drawn():
    """Of groups a = (0, 0) and b = (1, 1, 1, 1) the draws aa, ab, ba and bb have the means 0, 4/6,
    4/6 and 1. Values drawn one by one have many more means between."""
    values, groups = [0.0, 1.0, 0.0, 1.0, 1.0, 1.0], list("ababbb")
    found = estimate(values, 2000, seed=0, groups=groups)
    assert (found.n, found.mean) == (6, pytest.approx(4 / 6))
    assert (found.low, found.high) == (0.0, 1.0)
    alone = estimate(values, 2000, seed=0)
    assert 0.0 < alone.low < alone.high <= 1.0


def test_the_cluster_bootstrap_by_hand():
    """The same draws of groups, each mean taken over the values of the groups drawn."""
    values = [0.1, 0.9, 0.4, 0.3, 0.2, 0.8, 0.7]
    groups = ["x", "y", "x", "z", "z", "y", "x"]
    members = {
        name: [v for v, g in zip(values, groups, strict=True) if g == name] for name in "xyz"
    }
    drawn = np.random.default_rng(5).integers(3, size=(200, 3))
    means = []
    for row in drawn:
        taken = [value for k in row for value in members["xyz"[k]]]
        means.append(sum(taken) / len(taken))
    low, high = np.percentile(means, [2.5, 97.5])
    found = estimate(values, 200, seed=5, groups=groups)
    assert found.mean == pytest.approx(sum(values) / 7)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_groups_make_the_interval_of_copies_no_narrower():
    """Each value ten times over says no more than once, where the copies are one group."""
    values = np.random.default_rng(1).random(20)
    once = estimate(values.tolist(), 1000, seed=2)
    copies = np.repeat(values, 10).tolist()
    grouped = estimate(copies, 1000, seed=2, groups=np.repeat(range(20), 10).tolist())
    assert (grouped.low, grouped.high) == (pytest.approx(once.low), pytest.approx(once.high))
    alone = estimate(copies, 1000, seed=2)
    assert alone.high - alone.low < 0.5 * (once.high - once.low)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        # the first four: Newcombe 1998 (Statistics in Medicine 17, 857-872), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (4, 4, 0.5101, 1.0),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_wilsons_interval(hits, n, low, high):
    found = proportion([k < hits for k in range(n)])
    assert (found.n, found.mean) == (n, hits / n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_a_share_has_an_interval_that_holds_it_and_lies_in_0_to_1(n):
    for hits in range(0, n + 1, max(1, n // 10)):
        found = proportion([k < hits for k in range(n)])
        assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
        assert found.low < found.high
        other = proportion([k >= hits for k in range(n)])  # misses mirror hits
        assert (other.low, other.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_shares_of_one_and_none():
    assert proportion([]) == Estimate(0, None, None, None)
    assert proportion([True]) == Estimate(1, 1.0, None, None)
    assert proportion([False]) == Estimate(1, 0.0, None, None)
