"""The reliability table and its error against a loop over the events."""

import math

import numpy as np
import pytest

from jaxscore.analysis.forecasts import calibration, expected_calibration_error, reliability


def slow_error(probability, outcome, n_bins):
    total = 0.0
    for k in range(n_bins):
        inside = [
            (p, y)
            for p, y in zip(probability, outcome, strict=True)
            if math.floor(p * n_bins) == k or (k == n_bins - 1 and p == 1.0)
        ]
        if inside:
            gap = sum(p for p, _ in inside) - sum(y for _, y in inside)
            total += abs(gap)
    return total / len(probability)


@pytest.mark.parametrize("n_bins", [1, 7, 10])
def test_the_error_is_the_weighted_gap(n_bins):
    drawn = np.random.default_rng(n_bins)
    probability = np.concatenate([drawn.random(500), [0.0, 1.0, 0.1, 0.3, 0.7]])
    outcome = (drawn.random(505) < probability**2).astype(float)
    bins = reliability(probability, outcome, n_bins)
    assert sum(one.n for one in bins) == 505
    want = slow_error(probability.tolist(), outcome.tolist(), n_bins)
    assert expected_calibration_error(bins) == pytest.approx(want, abs=1e-12)
    for one in bins:
        assert one.low <= one.mean_probability <= one.high + 1e-12


def test_bins_by_hand():
    bins = reliability([0.05, 0.05, 0.95, 1.0], [0.0, 1.0, 1.0, 1.0])
    assert [(one.low, one.high) for one in bins[:2]] == [(0.0, 0.1), (0.1, 0.2)]
    assert [one.n for one in bins] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert (bins[0].mean_probability, bins[0].frequency) == (0.05, 0.5)
    assert (bins[1].mean_probability, bins[1].frequency) == (None, None)
    assert expected_calibration_error(bins) == pytest.approx((2 * 0.45 + 2 * 0.025) / 4)


def test_nothing_has_no_error():
    assert expected_calibration_error(reliability([], [])) is None


def test_calibration_takes_every_answer_as_an_event():
    found = calibration([[0.9, 0.1], [0.35, 0.65]], [[1.0, 0.0], [1.0, 0.0]])
    assert found["ece"] == pytest.approx((0.1 + 0.1 + 0.65 + 0.65) / 4)
    assert [one["n"] for one in found["bins"]] == [0, 1, 0, 1, 0, 0, 1, 0, 0, 1]
    assert calibration([], [])["ece"] is None
