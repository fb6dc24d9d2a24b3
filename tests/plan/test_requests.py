"""Checks of a window equal checks of each sequence; rolling windows score every token once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jaxscore.plan.requests import TextWindows, TokenSequence, WindowedText, check_sequences
from tests.sequences import sequence

FACTS = {"vocab_size": 50, "max_positions": 6, "placeholders": {7: "image_token_id"}}
BAD = {
    "negative": (sequence([1, -1, 2], 1), "token id -1 is negative, expected 0 to 49"),
    "too large": (sequence([1, 50], 1), "token id 50 is beyond the model's vocabulary of 50"),
    "far too large": (TokenSequence(np.array([1, 2**40]), 1), f"token id {2**40} is beyond"),
    "no integers": (TokenSequence(np.array([1.0, 2.0]), 1), "expected a flat list of integers"),
    "truth values": (TokenSequence(np.array([True, False]), 1), "expected a flat list of integers"),
    "text": (TokenSequence(np.array(["a", "b"]), 1), "expected a flat list of integers"),
    "a table": (TokenSequence(np.zeros((2, 2), int), 1), "expected a flat list of integers"),
    "before the start": (sequence([1, 2], -1), "starts at -1, expected an index from 0 to 2"),
    "after the end": (sequence([1, 2], 3), "starts at 3, expected an index from 0 to 2"),
    "half an index": (sequence([1, 2], 1.0), "starts at 1.0, expected an index from 0 to 2"),
    "too long": (sequence([1] * 8, 7), "8 tokens (1 of them continuation)"),
    "a negative choice": (
        TokenSequence(np.array([1, 2]), 2, np.array([3, -2])),
        "token id -2 is negative",
    ),
    "a choice too large": (TokenSequence(np.array([1]), 1, np.array([50])), "beyond the model's"),
    "a choice of no integer": (
        TokenSequence(np.array([1]), 1, np.array([0.5])),
        "expected a flat list of integers",
    ),
    "an image": (sequence([1, 7], 1), "token id 7 is the model's image_token_id: it stands for"),
    "too long a prompt": (
        TokenSequence(np.array([1] * 7), 7, np.array([3])),
        "its prompt has 7 tokens, the model takes 6 positions",
    ),
}
GOOD = [
    sequence([], 0),
    sequence([0, 49], 0),
    sequence([1] * 7, 7),
    TokenSequence(np.zeros(0), 0),  # no ids of any type
    TokenSequence(np.array([1] * 6, np.uint8), 6, np.array([0, 49])),
    TokenSequence(np.array([1]), 1, np.array([7])),  # which only asks for an image
]


@pytest.mark.parametrize("name", BAD)
def test_unscorable_sequences_get_their_reason(name):
    bad, words = BAD[name]
    found = check_sequences([*GOOD, bad, *GOOD], **FACTS)
    assert list(found) == [len(GOOD)]
    assert words in found[len(GOOD)]


@given(picks=st.lists(st.sampled_from([*GOOD, *(bad for bad, _ in BAD.values())]), max_size=12))
@settings(max_examples=200, deadline=None)
def test_checks_of_a_window_equal_checks_of_each_sequence(picks):
    alone = {k: check_sequences([one], **FACTS) for k, one in enumerate(picks)}
    assert check_sequences(picks, **FACTS) == {k: one[0] for k, one in alone.items() if one}


def test_choices_follow_all_ids():
    for ids, start in (([1, 2], 1), ([], 0)):
        with pytest.raises(ValueError, match=f"start is {start} of {len(ids)} ids"):
            TokenSequence(np.array(ids, np.int32), start, np.array([3]))


def test_digests_distinguish_ids_start_and_choices():
    ids, two = np.array([1, 2, 3], np.int32), np.array([1, 2], np.int32)
    asked = [
        TokenSequence(ids, 3),
        TokenSequence(ids, 2),
        TokenSequence(two, 2),
        TokenSequence(two, 2, np.array([3])),
        TokenSequence(two, 2, np.array([3, 4])),
        TokenSequence(two, 2, np.array([4, 3])),
        TokenSequence(ids, 3, np.array([4])),
        TokenSequence(two[:1], 1, np.array([2, 3])),
        TokenSequence.at(ids, np.array([0, 2])),
    ]
    assert len({one.digest() for one in asked}) == len(asked)
    assert TokenSequence(two, 2, np.array([3], np.int64)).digest() == asked[3].digest()


def test_positions_without_gaps_are_a_plain_sequence():
    ids = np.array([5, 6, 7, 8], np.int32)
    plain = TokenSequence.at(ids, np.array([1, 2]))
    assert plain.positions is None
    assert plain.digest() == TokenSequence(ids[:3], 1).digest()
    gapped = TokenSequence.at(ids, np.array([0, 2]))
    assert gapped.continuation.tolist() == [5, 7]
    assert gapped.targets.tolist() == [7]  # the first token has nothing before it
    assert gapped.input_ids.tolist() == [5, 6]


lengths = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def parts(window):
    """(what is read before the first scored token, scored tokens)."""
    return window.ids[: window.start].tolist(), window.ids[window.start :].tolist()


def test_rolling_windows_are_those_of_the_drawing():
    found = [parts(one) for one in WindowedText(np.arange(9), 1, TextWindows(4, 2))]
    assert found == [([0], [1, 2, 3, 4]), ([2, 3, 4], [5, 6]), ([4, 5, 6], [7, 8])]


@given(st.integers(1, 60), lengths, st.integers(1, 3))
def test_rolling_windows_score_every_token_once_with_its_context(n, length_and_stride, first):
    max_length, stride = length_and_stride
    first = min(first, max_length)
    text = WindowedText(np.arange(n), first, TextWindows(max_length, stride))
    found = text[: text.n_windows]
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
def test_rolling_windows_equal_those_of_lm_evaluation_harness(ids, length_and_stride):
    max_length, stride = length_and_stride
    theirs = get_rolling_token_windows(ids, 0, max_length, max_length - stride + 1)
    ours = WindowedText(np.array([0, *ids]), 1, TextWindows(max_length, stride))
    assert [parts(one) for one in ours[: ours.n_windows]] == [
        make_disjoint_window(pair) for pair in theirs
    ]
