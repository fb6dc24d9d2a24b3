"""Differences of two columns: groups, values that are missing, and what few values do not say."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from jaxscore.analysis.bootstrap import estimate
from jaxscore.analysis.paired import FourCells, mcnemar, sign_flips
from jaxscore.systems.compare.columns import Column
from jaxscore.systems.compare.differences import (
    Difference,
    Draws,
    Places,
    corrected,
    difference_of_means,
    difference_of_shares,
    paired_values,
)

pytestmark = pytest.mark.numeric

DRAWS = Draws(500, 999, seed=3)


def column(*values):
    out = Column()
    for one in values:
        out.add(one)
    return out


def values(a, b, groups=None):
    groups = None if groups is None else np.array(groups)
    places = Places(np.arange(len(a.ends)), np.arange(len(b.ends)), groups)
    return paired_values(a, b, places)


def test_a_number_of_independent_pairs():
    drawn = np.random.default_rng(0).normal(size=(2, 30))
    a, b = drawn[0], drawn[1] + 0.7
    found = difference_of_means("x", "x", values(column(*a), column(*b)), DRAWS)
    assert (found.n, found.n_groups, found.n_left_out) == (30, None, 0)
    assert (found.mean_a, found.mean_b) == (pytest.approx(a.mean()), pytest.approx(b.mean()))
    assert found.difference == estimate((b - a).tolist(), 500, 3)
    expected = sign_flips(b - a, 999, 3)
    assert (found.p, found.exact, found.n_patterns) == (expected.p, False, 999)
    assert abs(found.p - stats.ttest_rel(a, b).pvalue) < 0.02


def test_values_that_one_run_lacks_are_left_out_and_counted():
    a = column(1.0, None, 3.0, float("inf"), 5.0)
    b = column(2.0, 2.0, float("nan"), 4.0, 7.0)
    found = difference_of_means("x", "x", values(a, b), DRAWS)
    assert (found.n, found.n_left_out) == (2, 3)
    assert found.difference.mean == 1.5


def test_parts_of_an_item_are_drawn_and_flipped_together():
    a, b = column([1.0, 2.0], [3.0], [4.0, 5.0, 6.0]), column([2.0, 4.0], [3.5], [4.0, 5.0, 7.0])
    found = difference_of_means("x", "x", values(a, b), DRAWS)
    assert (found.n, found.n_groups) == (6, 3)
    assert found.p == sign_flips([3.0, 0.5, 1.0], 999, 3).p == 2 / 8
    groups = [0, 0, 1, 2, 2, 2]
    assert found.difference == estimate([1.0, 2.0, 0.5, 0.0, 0.0, 1.0], 500, 3, groups)
    by_item = values(column(1.0, 2.0, 3.0), column(2.0, 4.0, 3.5), [7, 7, 9])
    assert difference_of_means("x", "x", by_item, DRAWS).p == sign_flips([3.0, 0.5], 999, 3).p


def test_units_are_taken_by_their_places_and_other_lengths_are_left_out():
    a, b = column([1.0, 2.0], [9.0], [5.0, 6.0]), column([50.0, 60.0], [1.0, 2.0, 3.0])
    found = paired_values(a, b, Places(np.array([2, 0]), np.array([0, 1])))
    assert (found.a.tolist(), found.b.tolist()) == ([5.0, 6.0], [50.0, 60.0])
    assert (found.pair.tolist(), found.n_left_out) == ([0, 0], 3)


def test_right_and_wrong():
    a = column(1.0, 1.0, 1.0, 0.0, 1.0, None)
    b = column(1.0, 0.0, 0.0, 1.0, 0.0, 1.0)
    found = difference_of_shares("acc", "right", values(a, b), DRAWS)
    assert found.cells == FourCells(both=1, only_a=3, only_b=1, neither=0)
    assert (found.test, found.interval_by) == ("McNemar", "Newcombe")
    assert (found.p, found.smallest_p) == (mcnemar(3, 1), 2 / 2**4)
    assert (found.mean_a, found.mean_b, found.n_left_out) == (0.8, 0.4, 1)
    grouped = difference_of_shares("acc", "right", values(a, b, [0, 0, 1, 1, 2, 2]), DRAWS)
    assert (grouped.test, grouped.interval_by) == ("sign flips", "bootstrap")
    assert (grouped.n, grouped.n_groups, grouped.cells.n) == (5, 3, 5)


@pytest.mark.parametrize("kind", [difference_of_means, difference_of_shares])
def test_below_two_values_or_groups_only_n_is_told(kind):
    for found in (
        kind("x", "x", values(column(1.0), column(0.0)), DRAWS),
        kind("x", "x", values(column(None), column(1.0)), DRAWS),
        kind("x", "x", values(column(1.0, 1.0), column(0.0, 1.0), [4, 4]), DRAWS),
    ):
        assert found.difference is found.mean_a is found.p is found.p_holm is None
        assert "too few pairs for an interval or a test" in found.verdict(3)


def test_holm_counts_the_tests_that_were_made():
    few = difference_of_means("x", "x", values(column(1.0), column(2.0)), DRAWS)
    other = difference_of_means(
        "y", "y", values(column(1.0, 2.0, 4.0), column(3.0, 3.0, 8.0)), DRAWS
    )
    found = corrected([few, other, other])
    assert found[0].p_holm is None
    assert found[1].p_holm == min(1.0, 2 * other.p)


def difference(mean, p, low=0.1, high=0.3, **more):
    reported = difference_of_means("x", "it", values(column(1.0, 2.0), column(1.5, 3.0)), DRAWS)
    changed = dataclasses.replace(reported.difference, mean=mean, low=low, high=high)
    return dataclasses.replace(reported, difference=changed, p=p, p_holm=p, smallest_p=1e-4, **more)


def test_what_a_verdict_claims():
    assert difference(0.2, 0.012).verdict(3) == (
        "it: A 1.5, B 2.25, B is higher by 0.2 (95% interval 0.1 to 0.3, p = 0.012 after Holm "
        "over 3 tests), n = 2 pairs"
    )
    assert "B 2.25, B is lower by 0.2 (95% interval -0.3 to -0.1, p = 0.012), n" in difference(
        -0.2, 0.012, -0.3, -0.1
    ).verdict(1)
    shown = difference(0.2, 0.05, None, None).verdict(1)
    assert shown.endswith("B 2.25, no difference shown, B - A = 0.2 (p = 0.05), n = 2 pairs")
    few = corrected([difference(0.2, 0.5)])[0]
    few = dataclasses.replace(few, smallest_p=0.5)
    assert few.verdict(1).endswith("; too few pairs for a test, whose p is at least 0.5")


def test_one_pair_has_no_interval_and_no_test():
    a, b = column(1.0), column(1.5)
    [found] = corrected([difference_of_means("x", "it", values(a, b), DRAWS)])
    few = "too few pairs for an interval or a test"
    assert found.verdict(1) == f"it: {few}, n = 1 pair"
    [found] = corrected([difference_of_means("x", "it", values(column(1, 2), column(2, 3)), DRAWS)])
    assert found.verdict(1) == f"it: A 1.5, B 2.5, {few}, B - A = 1, n = 2 pairs"


def test_equal_runs():
    same = column(1.0, 2.0, 3.0)
    [found] = corrected([difference_of_means("x", "it", values(same, same), DRAWS)])
    assert (found.p, found.difference.mean, found.difference.low) == (1.0, 0.0, None)
    expected = "it: A 2, B 2, no difference shown, the means are equal, n = 3 pairs"
    assert found.verdict(1) == expected
    assert isinstance(found, Difference)
