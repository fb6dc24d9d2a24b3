"""Objects of log-probabilities from numbers made by hand."""

import numpy as np
import pytest

from jaxscore.plan.requests import SequenceScores
from jaxscore.server import logprobs
from jaxscore.server.errors import ApiError


class Letters:
    """Tokens 0 to 9; those from 7 read alike."""

    def of(self, id):
        return b"\xe2" if id >= 7 else b"abcdefg"[id : id + 1]

    def text(self, id):
        return self.of(id).decode("utf-8", "replace")


def scores(logprob, top_id, top_logprob):
    nothing = np.zeros(len(logprob), np.float32)
    found = [np.array(one, np.float32) for one in (logprob, top_logprob)]
    return SequenceScores(
        found[0], nothing, nothing, nothing > 0, np.array(top_id, np.int32), found[1]
    )


SCORES = scores(
    [-0.5, -3.0, -1.25],
    [[1, 2, 3], [7, 8, 0], [9, 4, 7]],
    [[-0.5, -1.5, -2.5], [-0.75, -1.0, -2.0], [-0.25, -1.25, -2.0]],
)


def test_the_token_is_among_the_most_probable_or_comes_last():
    found = logprobs.numbers([5, 1, 9, 4], SCORES, 2, "it")
    listed = logprobs.of_completion(Letters(), 5, found, [0, 0, 1, 2], as_ids=False)
    assert listed == {
        "tokens": ["f", "b", "\ufffd", "e"],
        "token_logprobs": [None, -0.5, -3.0, -1.25],
        "top_logprobs": [
            None,
            {"b": -0.5, "c": -1.5},
            {"\ufffd": -0.75},  # of 7, 8 and 9, which read alike, the most probable one
            {"\ufffd": -0.25, "e": -1.25},
        ],
        "text_offset": [0, 0, 1, 2],
    }


def test_by_ids_nothing_is_alike():
    found = logprobs.numbers([5, 1, 9, 4], SCORES, 2, "it")
    listed = logprobs.of_completion(Letters(), None, found, [0, 1, 2], as_ids=True)
    assert listed["tokens"] == ["token_id:1", "token_id:9", "token_id:4"]
    assert listed["top_logprobs"][1] == {
        "token_id:7": -0.75,
        "token_id:8": -1.0,
        "token_id:9": -3.0,
    }


def test_without_most_probable_tokens():
    found = logprobs.numbers([5, 1, 9, 4], SCORES, 0, "it")
    listed = logprobs.of_completion(Letters(), 5, found, [0, 0, 1, 2], as_ids=False)
    assert listed["top_logprobs"] == [None, {"b": -0.5}, {"\ufffd": -3.0}, {"e": -1.25}]


def test_a_chats_list_keeps_what_reads_alike():
    found = logprobs.numbers([5, 1, 9, 4], SCORES, 3, "it")
    content = logprobs.of_chat(Letters(), found)
    assert [one["token"] for one in content] == ["b", "\ufffd", "e"]
    assert content[1]["bytes"] == [0xE2]
    assert content[1]["logprob"] == -3.0
    assert [one["logprob"] for one in content[1]["top_logprobs"]] == [-0.75, -1.0, -2.0]
    assert [one["token"] for one in content[1]["top_logprobs"]] == ["\ufffd", "\ufffd", "a"]


def test_the_most_probable_token_after_a_text():
    after = scores([-9.0], [[3, 1]], [[-0.5, -2.0]])  # of the choice that was asked about
    found = logprobs.most_probable(after, 2, "it")
    assert (found.ids.tolist(), found.logprob.tolist()) == ([3], [-0.5])
    both = logprobs.joined(logprobs.numbers([5, 1, 9, 4], SCORES, 2, "it"), found)
    assert both.ids.tolist() == [1, 9, 4, 3]
    assert both.top_id[-1].tolist() == [3, 1]


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("where", ["logprob", "top_logprob"])
def test_numbers_that_json_does_not_have(value, where):
    broken = getattr(SCORES, where).copy()
    broken.flat[-1] = value
    with pytest.raises(ApiError) as caught:
        logprobs.numbers([5, 1, 9, 4], SCORES._replace(**{where: broken}), 3, "prompt 7")
    assert (caught.value.status, caught.value.code) == (500, "numbers_not_finite")
    assert "prompt 7" in caught.value.message
