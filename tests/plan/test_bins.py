"""Bins: nothing is lost, nothing overflows, and counting gives what filling gives."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.plan.packing import best_fit, rooms_left


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_best_fit(data):
    capacity = data.draw(st.integers(1, 40))
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=40))
    bins = best_fit(sizes, capacity)
    assert sorted(k for contents in bins for k in contents) == list(range(len(sizes)))
    filled = sorted(sum(sizes[k] for k in contents) for contents in bins)
    assert all(0 < total <= capacity for total in filled)
    # A bin is opened only for what fits in no other, so no two of them could be one.
    assert len(filled) < 2 or filled[0] + filled[1] > capacity


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_rooms_are_counted_as_bins_are_filled(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    filled = best_fit(sizes, capacity)
    rooms = Counter(capacity - sum(sizes[k] for k in contents) for contents in filled)
    assert rooms_left(Counter(sizes), capacity) == rooms
