"""Scores of a window as results: in order, and a bad one touches no other."""

import numpy as np
import pytest

from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.text import result_assembly
from jaxscore.text.result_assembly import assemble_scores
from jaxscore.text.tokenize_requests import INVALID_UNICODE, TokenizedRequest
from jaxscore.types.requests import Request


class Encoder:
    def tokens(self, ids):
        return [f"t{id}" for id in ids.tolist()]


def sequence(*ids, start=1):
    return TokenSequence(np.array(ids, np.int32), start)


def scores(*logprob):
    values = np.array(logprob, np.float32)
    return SequenceScores(values, values + 10, values + 20, values > -1)


WINDOW = [
    (Request("a", "", ""), TokenizedRequest((sequence(5, 6, 7, start=0),), 0, None)),
    (Request("b", "", ""), TokenizedRequest(error=INVALID_UNICODE)),
    (Request("c", "", ""), TokenizedRequest((sequence(1, 2), sequence(1, 3, 4)), 2, None)),
    (Request("d", "", ""), TokenizedRequest((sequence(8, 9),), 0, None)),
    (Request("e", "", ""), TokenizedRequest((), 0, None)),
]
SCORES = [scores(-1.5, -0.5), scores(-2), scores(-3, -4), scores(-5)]


@pytest.mark.parametrize("together", [1, 2, 256])
def test_each_request_has_its_own_in_order(monkeypatch, together):
    monkeypatch.setattr(result_assembly, "TOGETHER", together)
    a, b, c, d, e = assemble_scores(WINDOW, SCORES, Encoder())
    assert [one.id for one in (a, b, c, d, e)] == ["a", "b", "c", "d", "e"]
    # The first token of a text without a context has nothing before it.
    np.testing.assert_array_equal(a.logprob, np.array([np.nan, -1.5, -0.5], np.float32))
    assert (a.tokens, a.greedy.tolist()) == (["t5", "t6", "t7"], [False, False, True])
    assert b.error == INVALID_UNICODE
    assert (c.tokens, c.logprob.tolist(), c.truncated) == (["t2", "t3", "t4"], [-2, -3, -4], 2)
    assert (d.entropy.tolist(), d.self_certainty.tolist()) == ([5], [15])
    assert (e.error, e.n_tokens, e.logprob.dtype, e.greedy.dtype) == (None, 0, np.float32, bool)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [(0, np.nan, "not finite"), (1, np.inf, "not finite"), (2, np.inf, "certainty is infinite")],
)
def test_a_request_whose_numbers_are_not_finite_fails_alone(column, value, why):
    bad = SCORES[2]._replace(**{SequenceScores._fields[column]: np.array([-3, value], np.float32)})
    found = list(assemble_scores(WINDOW, [*SCORES[:2], bad, SCORES[3]], Encoder()))
    assert why in found[2].error
    assert [one.error is None for one in found] == [True, False, False, True, True]
    assert found[3].logprob.tolist() == [-5]
