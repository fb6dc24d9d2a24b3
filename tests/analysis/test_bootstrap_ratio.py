"""A ratio of sums, and its interval, against draws one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis import bootstrap as module
from jaxscore.analysis.bootstrap import Estimate, estimate, ratio

TOP, BOTTOM = [3.0, 1.0, 7.5, 2.0], [2.0, 5.0, 3.0, 1.0]


def test_draws_one_by_one():
    drawn = np.random.default_rng(7).integers(4, size=(500, 4))
    values = [sum(TOP[k] for k in row) / sum(BOTTOM[k] for k in row) for row in drawn]
    low, high = np.percentile(values, [2.5, 97.5])
    found = ratio(TOP, BOTTOM, 500, 7)
    assert (found.n, found.mean) == (4, sum(TOP) / sum(BOTTOM))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)


def test_many_values_are_drawn_some_at_a_time(monkeypatch):
    whole = ratio(TOP, BOTTOM, 50, 1)
    monkeypatch.setattr(module, "DRAWN_TOGETHER", 8)
    assert ratio(TOP, BOTTOM, 50, 1) == whole


def test_what_cannot_tell_has_no_interval():
    assert ratio([], [], 100, 0) == Estimate(0, None, None, None)
    assert ratio([3.0], [2.0], 100, 0) == Estimate(1, 1.5, None, None)
    assert ratio([3.0, 6.0], [2.0, 4.0], 100, 0) == Estimate(2, 1.5, None, None)
    assert ratio(TOP, BOTTOM, 1, 0).low is None


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9), st.integers(-5, 5))
def test_with_equal_weights_it_is_the_mean(values, seed):
    found, want = ratio(values, [1.0] * len(values), 60, seed), estimate(values, 60, seed)
    assert found.mean == pytest.approx(want.mean, abs=1e-9)
    assert (found.low is None) == (want.low is None)
    if want.low is not None:
        assert (found.low, found.high) == pytest.approx((want.low, want.high), abs=1e-9)
