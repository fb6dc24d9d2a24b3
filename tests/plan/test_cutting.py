"""Tries in pieces: their sizes without the pieces, and bins without their items."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.plan.cutting import Cutter, best_fit, n_bins
from jaxscore.plan.forest import Share, build
from tests.sequences import sequence_lists


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_bins_are_counted_as_they_are_filled(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    filled = best_fit([(size, k) for k, size in enumerate(sizes)], capacity)
    assert n_bins(np.array(sizes, np.int64), capacity) == len(filled)


@settings(deadline=None)
@given(sequence_lists(), st.sampled_from([2, 4, 8, 16]))
def test_sizes_and_the_least_of_them_are_those_of_the_pieces(sequences, base):
    cutter = Cutter(build(sequences, share=Share.TRIES), [2, 4, 8, 16, 32, 64])
    found: dict[int, list[int]] = {}
    for length, piece in cutter.cut(base):
        found.setdefault(length, []).append(piece.size)
    assert {n: sorted(sizes.tolist()) for n, sizes in cutter.sizes(base).items()} == {
        n: sorted(sizes) for n, sizes in found.items()
    }
    cost = sum(n * sum(sizes) for n, sizes in found.items())  # longer rows cost more
    assert sum(n * tokens for n, tokens in cutter.least(base).items()) <= cost
