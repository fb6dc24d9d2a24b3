"""Ranking metrics: trec_eval's order and counts, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis import ranking

SCORES = st.dictionaries(
    st.sampled_from(["a", "B", "10", "9", "zz", "z", "é", "😀"]),
    st.sampled_from([0.0, -1.5, 1.0, 1.00000001, 2.0, 1e39, 2e39]),
    min_size=1,
)


def test_ties_go_to_the_higher_id():
    assert ranking.ranked({"a": 1.0, "z": 1.0, "Z": 1.0, "é": 1.0}) == ["é", "z", "a", "Z"]
    assert ranking.ranked({"9": 1.0, "10": 1.0}) == ["9", "10"]  # as text


def test_scores_are_single_precision():
    assert ranking.ranked({"a": 1.00000001, "z": 1.0}) == ["z", "a"]
    assert ranking.ranked({"a": 1.000001, "z": 1.0}) == ["a", "z"]
    assert ranking.ranked({"z": 1e39, "a": 2e39}) == ["z", "a"]  # both infinite


def test_precision_and_recall():
    found = ["a", "b", "c"]
    assert ranking.precision(found, {"a", "c"}, 1) == 1.0
    assert ranking.precision(found, {"a", "c"}, 4) == 0.5
    assert ranking.recall(found, {"a", "c", "x"}, 2) == pytest.approx(1 / 3)
    assert ranking.recall(found, {"a", "c", "x"}, 9) == pytest.approx(2 / 3)


@given(SCORES, st.sets(st.sampled_from(["a", "B", "9", "é"]), min_size=1), st.integers(1, 9))
def test_against_places_counted_one_by_one(scores, relevant, k):
    def before(one, other):
        limit = 3.4028235677973366e38  # from here a double rounds to infinity in single precision
        sizes = [2.0**200 if scores[x] >= limit else round(scores[x], 7) for x in (one, other)]
        return (sizes[0], one.encode()) > (sizes[1], other.encode())

    place = {x: sum(before(y, x) for y in scores if y != x) for x in scores}
    assert [place[x] for x in ranking.ranked(scores)] == list(range(len(scores)))
    top = [x for x in scores if place[x] < k]
    hits = len(relevant.intersection(top))
    assert ranking.precision(ranking.ranked(scores), relevant, k) == hits / k
    assert ranking.recall(ranking.ranked(scores), relevant, k) == hits / len(relevant)
