"""Margins against every way in which the scores may move."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis import margins

INF = math.inf
# Eighths, so that sums and differences are exact.
SCORES = st.lists(st.integers(-16, 16).map(lambda n: n / 8), min_size=1, max_size=5)
SPREAD = st.integers(0, 8).map(lambda n: n / 16)


def moved(scores, spread):
    """The corners of all that the scores can become."""
    return itertools.product(*((score - spread, score + spread) for score in scores))


def winners(scores):
    """Those that are best or tie for it."""
    return {k for k, score in enumerate(scores) if score == max(scores)}


@given(SCORES, SPREAD)
def test_a_lead_is_within_where_another_may_be_best_or_tie(scores, spread):
    best = scores.index(max(scores))
    turned = any(winners(one) - {best} for one in moved(scores, spread))
    assert margins.within(margins.lead(scores), spread) == turned


@given(SCORES, SPREAD, st.data())
def test_right_from_wrong_is_within_where_the_verdict_may_turn_or_tie(scores, spread, data):
    right = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    verdicts = {right[k] for one in moved(scores, spread) for k in winners(one)}
    assert margins.within(margins.right_from_wrong(scores, right), spread) == (len(verdicts) == 2)


@given(SCORES, st.data())
def test_a_doubtful_verdict_is_a_doubtful_best(scores, data):
    right = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    assert margins.right_from_wrong(scores, right) >= margins.lead(scores)


@pytest.mark.parametrize(
    ("scores", "lead"),
    [
        ([1.0], INF),
        ([1.0, 3.0, 2.5], 0.5),
        ([2.0, 2.0], 0.0),
        ([-INF, 0.0], INF),
        ([-INF, -INF], 0.0),
    ],
)
def test_lead(scores, lead):
    assert margins.lead(scores) == lead


def test_what_no_score_decides_is_never_within():
    assert margins.right_from_wrong([1.0, 1.0], [True, True]) == INF
    assert not margins.within(INF, INF)
    assert margins.within(1.0, INF)


def test_counts_leave_out_what_is_no_decision():
    found = margins.count("winner", "score", 0.25, [True, None, False, False])
    assert (found.what, found.statistic, found.margin) == ("winner", "score", 0.5)
    assert (found.n, found.n_within) == (3, 1)
