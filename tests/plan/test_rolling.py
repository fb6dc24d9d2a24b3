"""Windows over a long text: every token scored once, after as many tokens as promised."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jaxscore.plan.requests import rolling_windows

lengths = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def parts(window):
    """(what is read before the first scored token, scored tokens)."""
    return window.ids[: window.start].tolist(), window.ids[window.start :].tolist()


def test_the_drawing():
    found = [parts(one) for one in rolling_windows(np.arange(9), 1, 4, 2)]
    assert found == [([0], [1, 2, 3, 4]), ([2, 3, 4], [5, 6]), ([4, 5, 6], [7, 8])]


@given(st.integers(1, 60), lengths, st.integers(1, 3))
def test_every_token_is_scored_once_after_what_stands_before_it(n, length_and_stride, first):
    max_length, stride = length_and_stride
    first = min(first, max_length)
    found = rolling_windows(np.arange(n), first, max_length, stride)
    scored = [token for one in found for token in parts(one)[1]]
    assert scored == list(range(first, n))
    for k, one in enumerate(found):
        before, own = parts(one)
        whole = before + own
        assert whole == list(range(whole[0], whole[0] + len(whole)))
        assert 1 <= len(one.input_ids) <= max_length
        assert len(own) <= (stride if k else max_length)
        if k:  # all the context that a window has room for
            assert len(one.input_ids) == min(max_length, own[-1])
            assert len(before) > max_length - stride


@given(st.lists(st.integers(1, 99), max_size=50), lengths)
def test_the_windows_of_lm_evaluation_harness(ids, length_and_stride):
    max_length, stride = length_and_stride
    theirs = get_rolling_token_windows(ids, 0, max_length, max_length - stride + 1)
    ours = rolling_windows(np.array([0, *ids]), 1, max_length, stride)
    assert [parts(one) for one in ours] == [make_disjoint_window(pair) for pair in theirs]
