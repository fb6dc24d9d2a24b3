"""Softmax, Brier and skill scores against what their definitions give by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis.forecasts import brier, skill, softmax, uniform_brier

SCORES = st.lists(st.floats(-1000, 1000), min_size=1, max_size=8)


@given(SCORES)
def test_softmax_is_the_definition_with_exact_sums(scores):
    shifted = [math.exp(value - max(scores)) for value in scores]
    total = math.fsum(shifted)
    np.testing.assert_allclose(softmax(scores), [value / total for value in shifted], atol=1e-15)


def test_softmax_at_the_ends():
    assert softmax([3.0]).tolist() == [1.0]
    assert softmax([0.0, -1e9]).tolist() == [1.0, 0.0]
    assert softmax([1e9, 1e9]).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="zero-size"):
        softmax([])


def test_brier_by_hand():
    assert brier([1.0, 0.0], [1.0, 0.0]) == 0.0
    assert brier([0.0, 1.0], [1.0, 0.0]) == 1.0
    assert brier([0.7, 0.2, 0.1], [1.0, 0.0, 0.0]) == pytest.approx((0.09 + 0.04 + 0.01) / 3)
    assert uniform_brier([1.0, 0.0, 0.0, 1.0]) == pytest.approx((2 * 0.5625 + 2 * 0.0625) / 4)


@given(st.integers(1, 26), st.data())
def test_guessing_has_no_skill_on_average(k, data):
    r = data.draw(st.integers(1, k))
    right, wrong = skill(True, r, k), skill(False, r, k)
    assert right == pytest.approx(1.0)
    if r < k:
        assert r / k * right + (1 - r / k) * wrong == pytest.approx(0.0, abs=1e-12)
        assert wrong < 0
    else:
        assert wrong == 1.0


@pytest.mark.parametrize(("r", "k"), [(0, 3), (4, 3), (0, 0)])
def test_skill_needs_something_to_choose(r, k):
    with pytest.raises(ValueError, match=f"{r} correct of {k}"):
        skill(True, r, k)
