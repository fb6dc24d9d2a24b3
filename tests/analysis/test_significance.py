"""Sign flips, McNemar and Holm: against enumeration by hand, scipy and published values."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxscore.analysis import paired as significance
from jaxscore.analysis.paired import holm, mcnemar, sign_flips

pytestmark = pytest.mark.numeric

WHOLE = st.integers(-50, 50)


def enumerated(values):
    """The share of all patterns of signs whose absolute sum is at least the one found."""
    found = abs(sum(values))
    signs = itertools.product((1, -1), repeat=len(values))
    sums = [abs(sum(s * v for s, v in zip(one, values, strict=True))) for one in signs]
    return sum(one >= found for one in sums) / len(sums)


@settings(max_examples=60, deadline=None)
@given(st.lists(WHOLE, min_size=1, max_size=10))
def test_all_patterns_of_signs_are_enumerated(values):
    found = sign_flips(values, 10, seed=0)
    assert found.exact
    assert found.p == enumerated(values)


@pytest.mark.parametrize("n", [2, 7, 8, 9, 13])
def test_it_is_scipys_exact_test(n):
    values = np.random.default_rng(n).normal(0.3, 1.0, n)
    expected = stats.permutation_test(
        (values,),
        lambda one, axis: np.abs(one.sum(axis=axis)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flips(values, 10, seed=0).p == expected.pvalue


def test_of_many_values_patterns_are_drawn():
    values = np.random.default_rng(0).normal(0.2, 1.0, 100)
    found = sign_flips(values, 9999, seed=1)
    expected = stats.permutation_test(
        (values,),
        lambda one, axis: np.abs(one.sum(axis=axis)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=9999,
        rng=np.random.default_rng(2),
    )
    assert (found.exact, found.n_patterns, found.smallest) == (False, 9999, 1e-4)
    spread = 4 * math.sqrt(found.p * (1 - found.p) / 9999)
    assert abs(found.p - expected.pvalue) < 2 * spread
    assert sign_flips(values, 9999, seed=1) == found != sign_flips(values, 9999, seed=-3)


def test_sums_are_those_of_the_signs_drawn_whatever_is_looked_up_together(monkeypatch):
    values = np.random.default_rng(3).normal(size=37)
    monkeypatch.setattr(significance, "BLOCK", 16)
    monkeypatch.setattr(significance, "LOOKED_UP_TOGETHER", 7)
    sums = significance._drawn(values, 50, np.random.default_rng(4))
    drawn, expected = np.random.default_rng(4), np.zeros(50)
    for block in (values[:16], values[16:32], values[32:]):
        n_bytes = -(-len(block) // 8)
        together = max(1, 7 // n_bytes)
        for done in range(0, 50, together):
            rows = min(together, 50 - done)
            bits = np.frombuffer(drawn.bytes(rows * n_bytes), np.uint8).reshape(rows, n_bytes)
            for k, row in enumerate(bits):
                signs = [-1 if row[j // 8] >> (j % 8) & 1 else 1 for j in range(len(block))]
                expected[done + k] += sum(s * v for s, v in zip(signs, block, strict=True))
    assert sums == pytest.approx(expected, abs=1e-12)


def test_p_is_never_0_and_a_difference_of_0_says_nothing():
    assert sign_flips([1.0] * 50, 999, seed=0).p == 1 / 1000
    assert sign_flips([0.0] * 50, 999, seed=0) == (1.0, True, 1, 1.0)
    assert sign_flips([0.0, 3.0, 0.0, 1.0], 9, seed=0) == sign_flips([3.0, 1.0], 9, seed=0)
    assert sign_flips([2.0, 1.0, 1.0], 9, seed=0).smallest == 2 / 8


def test_sums_that_differ_by_rounding_are_equal():
    """0.1 + 0.2 - 0.3 is not 0 in binary; one pattern of two has to count it."""
    assert sign_flips([0.1, 0.2, -0.3], 9, seed=0).p == 1.0
    tied = [0.1, 0.2, 0.3, 0.6]  # |0.6 - 0.3 ...| ties of sums in several orders
    assert sign_flips(tied, 9, seed=0).p == enumerated([1, 2, 3, 6])


def test_scale_does_not_matter():
    values = np.random.default_rng(5).normal(0.2, 1.0, 12)
    found = sign_flips(values, 9, seed=0)
    assert sign_flips(values * 1e300, 9, seed=0) == sign_flips(values * 1e-300, 9, 0) == found


@pytest.mark.parametrize("values", [[], [math.nan, 1.0], [math.inf]])
def test_values_that_are_no_differences(values):
    with pytest.raises(ValueError, match="finite"):
        sign_flips(values, 9, seed=0)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 5), (10, 2), (0, 12), (59, 31)])
def test_mcnemar_by_the_binomial_distribution(b, c):
    n, fewer = b + c, min(b, c)
    tail = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail), rel=1e-12)


@given(st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_mcnemar_is_the_sign_flip_test_of_right_and_wrong(b, c):
    found = sign_flips([1.0] * b + [-1.0] * c + [0.0], 9, seed=0).p
    assert mcnemar(b, c) == pytest.approx(found, rel=1e-12)


def test_holm_by_hand():
    """Holm 1979: 4 times the lowest, 3 times the next, and so on, none below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(ps):
    """The step-down procedure: the k-th lowest is rejected while p <= level / (m - k + 1)."""
    adjusted = holm(ps)
    for level in (0.01, 0.05, 0.5):
        rejected = set()
        for k, place in enumerate(sorted(range(len(ps)), key=lambda one: ps[one])):
            if (len(ps) - k) * ps[place] > level:
                break
            rejected.add(place)
        assert {k for k, one in enumerate(adjusted) if one <= level} == rejected
    assert all(p <= one <= 1 for p, one in zip(ps, adjusted, strict=True))


@pytest.mark.slow
def test_the_level_holds_where_no_difference_exists():
    """Of 2,000 draws of skewed pairs in which A and B are exchangeable 5% have p <= 0.05."""
    drawn = np.random.default_rng(6)
    ps = []
    for k in range(2000):
        a, b = drawn.exponential(size=(2, 40))
        ps.append(sign_flips(b - a, 399, seed=k).p)
    for level in (0.05, 0.2):
        share = np.mean(np.array(ps) <= level)
        assert abs(share - level) < 3.5 * math.sqrt(level * (1 - level) / 2000)
