"""Tries in pieces: their sizes without the pieces."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.plan.packing import TrieCutter
from jaxscore.plan.tries import Share, build_forest
from tests.sequences import sequence_lists


@settings(deadline=None)
@given(sequence_lists(), st.sampled_from([2, 4, 8, 16]))
def test_sizes_and_the_least_of_them_are_those_of_the_pieces(sequences, base):
    cutter = TrieCutter(build_forest(sequences, share=Share.TRIES), [2, 4, 8, 16, 32, 64])
    found: dict[int, Counter[int]] = {}
    for length, pieces in cutter.cut(base).items():
        found[length] = Counter(piece.size for piece in pieces)
    assert cutter.count_sizes(base) == found
    cost = sum(n * sum(sizes.elements()) for n, sizes in found.items())  # longer rows cost more
    assert sum(n * tokens for n, tokens in cutter.least_tokens(base).items()) <= cost
