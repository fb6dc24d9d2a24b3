"""Results as values, as dicts, as frames and in a notebook."""

import dataclasses

import numpy as np
import pandas
import pytest

from jaxscore.errors import InputError
from jaxscore.types.results import Generated, LabelScores, Results, ScoredRequest, failed

ONE = ScoredRequest(
    "a",
    np.array([1, 2], np.int32),
    ["Ġx", "<y>"],
    np.array([np.nan, -2.0], np.float32),
    np.array([np.nan, 1.0], np.float32),
    np.array([np.nan, 3.0], np.float32),
    np.array([False, True]),
)


def test_equal_by_value():
    same = dataclasses.replace(ONE, logprob=ONE.logprob.copy())
    assert same == ONE
    assert dataclasses.replace(ONE, logprob=ONE.logprob + 1) != ONE
    assert dataclasses.replace(ONE, token_ids=ONE.token_ids[:1]) != ONE
    assert dataclasses.replace(ONE, error="x") != ONE
    assert failed("a", "why") == failed("a", "why")
    label = LabelScores("q", np.array([0.5]), np.array([1.0]), float("nan"))
    assert label == dataclasses.replace(label)
    assert label != ONE
    assert Generated("g", "t", np.array([1]), "eos") != Generated("g", "t", np.array([2]), "eos")
    with pytest.raises(TypeError, match="unhashable"):
        hash(ONE)


def test_a_dict():
    reported = ONE.to_dict()
    assert reported["token_ids"] == [1, 2]
    assert reported["sum_logprob"] == -2.0
    assert (reported["n_tokens"], reported["n_scored"]) == (2, 1)
    assert np.isnan(reported["logprob"][0])
    assert set(reported) > {"id", "tokens", "greedy", "perplexity", "error"}


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 127, 128, 129, 1000])
@pytest.mark.parametrize("first_known", [True, False])
def test_the_sums_together_are_those_one_by_one_to_the_last_bit(n, first_known):
    columns = np.random.default_rng(n).normal(-3, 2, (3, n)).astype(np.float32)
    columns[:, :1] = columns[:, :1] if first_known else np.nan
    one = ScoredRequest("a", np.arange(n), ["x"] * n, *columns, np.zeros(n, bool))
    for name, value in one.sums().items():
        assert value == getattr(one, name), name
        assert type(value) is type(getattr(one, name))


def test_short_representations():
    assert repr(ONE) == "<ScoredRequest 'a': -2.00 nats, 1 of 2 tokens>"
    assert repr(failed("b", "too long")) == "<ScoredRequest 'b': failed, too long>"
    assert repr(Results([ONE, failed("b", "x")])) == "<2 results, 1 failed: ScoredRequest>"
    assert repr(Results()) == "<0 results: none>"


def test_in_a_notebook():
    page = Results([ONE, failed("<b>", "too <long>")])._repr_html_()
    assert "&lt;y&gt;" in page
    assert "&lt;b&gt;" in page
    assert "too &lt;long&gt;" in page
    assert "<y>" not in page
    many = Results([ONE] * 25)._repr_html_()
    assert many.count("-2.00 nats</small>") == 20
    assert "and 5 more" in many


def test_frames():
    frame = ONE.to_frame()
    assert list(frame.columns)[:3] == ["token_ids", "tokens", "logprob"]
    assert len(frame) == 2
    whole = Results([ONE, ONE]).to_frame()
    assert isinstance(whole, pandas.DataFrame)
    assert whole["sum_logprob"].tolist() == [-2.0, -2.0]
    assert "logprob" not in whole


def test_frames_without_pandas(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        ONE.to_frame()
    with pytest.raises(InputError, match="pip install pandas"):
        Results([ONE]).to_frame()
