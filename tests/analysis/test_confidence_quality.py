"""AUROC, PRR, AURC and the risk-coverage curve, by enumeration and by scikit-learn."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from jaxscore.analysis.confidence_quality import _Order, quality, risk_coverage

pytestmark = pytest.mark.numeric

RESPONSES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, -3.0, math.inf, -math.inf]), st.booleans()),
    min_size=1,
    max_size=6,
)


def by_pairs(confidence, right):
    """O(n^2)."""
    wins = [
        1.0 if one > other else 0.5 if one == other else 0.0
        for one, good in zip(confidence, right, strict=True)
        if good
        for other, bad in zip(confidence, right, strict=True)
        if not bad
    ]
    return sum(wins) / len(wins) if wins else None


def kept_right(confidence, right):
    """S(k) for k = 1..n, the mean over all orders that the confidences allow."""
    places = range(len(right))
    orders = [
        order
        for order in itertools.permutations(places)
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean([np.cumsum([right[k] for k in order]) for order in orders], axis=0)


def area(confidence, right):
    sums = kept_right(confidence, right)
    return np.mean(sums / np.arange(1, len(right) + 1))


def ratio(confidence, right):
    p = np.mean(right)
    best = area([float(one) for one in right], right)
    return (area(confidence, right) - p) / (best - p)


def values(confidence, right):
    found = quality(confidence, right, [*range(len(right))], 1, 0)
    return found.auroc.value, found.prr.value, found.aurc.value


@settings(derandomize=True, deadline=None, max_examples=80)
@given(RESPONSES)
def test_figures_by_enumeration(responses):
    confidence, right = [c for c, _ in responses], [r for _, r in responses]
    auroc, prr, aurc = values(confidence, right)
    if len(right) < 2:
        assert (auroc, prr, aurc) == (None, None, None)
        return
    assert aurc == pytest.approx(1 - area(confidence, right), abs=1e-12)
    if len({*right}) < 2:
        assert (auroc, prr) == (None, None)
        return
    assert auroc == pytest.approx(by_pairs(confidence, right), abs=1e-12)
    assert prr == pytest.approx(ratio(confidence, right), abs=1e-9)
    assert prr <= 1 + 1e-12


@settings(derandomize=True, deadline=None, max_examples=100)
@given(RESPONSES, st.integers(1, 12))
def test_the_curve_by_enumeration(responses, n_points):
    confidence, right = [c for c, _ in responses], [r for _, r in responses]
    sums, n, falling = kept_right(confidence, right), len(right), sorted(confidence, reverse=True)
    found = risk_coverage(confidence, right, n_points)
    assert [one.n for one in found] == sorted(
        {-(-n * k // n_points) for k in range(1, n_points + 1)}
    )
    for one in found:
        assert one.coverage == one.n / n
        assert one.confidence == falling[one.n - 1]
        assert one.risk == pytest.approx(1 - sums[one.n - 1] / one.n, abs=1e-12)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(2, 300), st.sampled_from([1, 3, 100]))
def test_auroc_is_that_of_scikit_learn(seed, n, digits):
    rng = np.random.default_rng(seed)
    confidence = np.round(rng.normal(size=n) * digits) / digits
    right = rng.random(n) < 0.4
    right[:2] = [True, False]
    auroc, _, _ = values(confidence, right)
    assert auroc == pytest.approx(roc_auc_score(right, confidence), abs=1e-12)


def test_figures_by_hand():
    # S = 1, 1, 2, 2: A = (1 + 1/2 + 2/3 + 1/2)/4 = 2/3; A* = (1 + 1 + 2/3 + 1/2)/4 = 19/24; p = 1/2
    auroc, prr, aurc = values([4, 3, 2, 1], [True, False, True, False])
    assert (auroc, aurc) == (0.75, pytest.approx(1 / 3))
    assert prr == pytest.approx((2 / 3 - 1 / 2) / (19 / 24 - 1 / 2))
    auroc, prr, aurc = values([4, 3, 2, 1], [True, True, False, False])
    assert (auroc, prr, aurc) == (1.0, pytest.approx(1.0), pytest.approx(5 / 24))
    auroc, prr, aurc = values([1, 1, 1, 1], [True, True, False, False])  # no information
    assert (auroc, prr, aurc) == (0.5, pytest.approx(0.0), pytest.approx(0.5))
    auroc, prr, _ = values([1, 2, 3, 4], [True, True, False, False])
    assert auroc == 0.0
    assert prr < 0


@pytest.mark.parametrize(
    ("right", "why"),
    [
        ([], "there are fewer than two responses"),
        ([True], "there are fewer than two responses"),
        ([True, True], "all responses are right"),
        ([False, False, False], "all responses are wrong"),
        ([False, True], None),
    ],
)
def test_what_is_not_defined_says_why(right, why):
    found = quality([1.0, 2.0, 3.0][: len(right)], right, [*"abc"][: len(right)], 50, 0)
    assert found.undefined == why
    assert (found.n, found.n_right) == (len(right), sum(right))
    assert (found.auroc.value is None) is (found.prr.value is None) is (why is not None)
    assert (found.aurc.value is None) is (len(right) < 2)
    assert risk_coverage([], []) == []


@settings(derandomize=True, deadline=None, max_examples=60)
@given(RESPONSES, st.integers(0, 2**31))
def test_weights_are_repetitions(responses, seed):
    """A draw of a bootstrap is the data with each response as often as it is drawn."""
    confidence, right = (np.array([one[k] for one in responses]) for k in (0, 1))
    weights = np.random.default_rng(seed).integers(0, 4, (5, len(right)))
    weights[:, 0] += 1
    found = _Order(confidence, right).figures(weights)
    for drawn, figures in zip(weights, found.T, strict=True):
        times = np.repeat(np.arange(len(right)), drawn)
        again = _Order(confidence[times], right[times]).figures(np.ones((1, len(times)), np.int64))
        np.testing.assert_allclose(figures, again[:, 0], rtol=0, atol=1e-9)


def test_intervals_draw_whole_groups():
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    right = rng.random(len(groups)) < 0.5
    confidence = np.round(right + rng.normal(size=len(groups)), 1)
    found = quality(confidence, right, groups.tolist(), 400, 7)
    drawn = np.random.default_rng(7).multinomial(30, np.full(30, 1 / 30), size=400)
    slow = []
    for counts in drawn:
        times = np.concatenate(
            [np.flatnonzero(groups == g).repeat(c) for g, c in enumerate(counts)]
        )
        slow.append(roc_auc_score(right[times], confidence[times]))
    low, high = np.percentile(slow, [2.5, 97.5])
    assert (found.auroc.low, found.auroc.high) == (pytest.approx(low), pytest.approx(high))
    assert found.n_draws == 400
    for one in (found.auroc, found.prr, found.aurc):
        assert one.low < one.value < one.high
    names = [f"q{g}" for g in groups]
    assert quality(confidence, right, names, 400, 7) == found
    assert quality(confidence, right, names, 400, 8) != found
    assert quality(confidence, right, names, 400, -1).auroc.low is not None


def test_draws_of_one_class_are_left_out():
    found = quality([1, 2, 3], [True, False, True], [0, 1, 2], 500, 0)
    assert 0 < found.n_draws < 500  # 3 of 27 draws have one class, or more
    alone = quality([1, 2, 3], [True, False, True], [0, 0, 0], 500, 0)
    assert (alone.auroc.low, alone.aurc.low, alone.n_draws) == (None, None, 0)
    assert alone.auroc.value == found.auroc.value


def test_what_cannot_be_ordered():
    with pytest.raises(ValueError, match="a confidence is NaN"):
        quality([math.nan, 1.0], [True, False], [0, 1], 1, 0)
    with pytest.raises(ValueError, match="2 confidences of 1 responses"):
        risk_coverage([1.0, 2.0], [True])
    with pytest.raises(ValueError, match="1 groups of 2 responses"):
        quality([1.0, 2.0], [True, False], [0], 1, 0)
