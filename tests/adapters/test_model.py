"""Scores of questions, and how many tokens lm-evaluation-harness lets a family read."""

import json

import numpy as np
import pytest
from lm_eval.models.utils import resolve_max_length
from transformers import AutoConfig

from jaxscore.adapters.model import Question, answer_questions, max_length
from jaxscore.errors import InputError
from jaxscore.plan.requests import TokenSequence
from tests.models.checkpoints import FIFTH, spelled
from tests.models.families import BASE


def ids(*values):
    return np.array(values, np.int32)


def asked(n=60):
    draw = np.random.default_rng(0)
    contexts = [draw.integers(1, 300, draw.integers(1, 30)).astype(np.int32) for _ in range(9)]
    some = [
        Question(contexts[k], draw.integers(1, 300, m).astype(np.int32))
        for k, m in zip(draw.integers(0, 9, n), draw.integers(1, 5, n), strict=True)
    ]
    return [*some, *some[::7]]


def named(place):
    return f"task, document {place}"


@pytest.mark.parametrize("window", [{}, {"window": 7}, {"window_tokens": 50}], ids=str)
def test_every_question_has_the_scores_of_its_tokens(window, scorers):
    scorer, questions = scorers("tiny-llama3"), asked()
    whole = [np.concatenate(one) for one in questions]
    wanted = scorer.score_sequences(
        [TokenSequence(a, len(one.context)) for a, one in zip(whole, questions, strict=True)]
    )
    found = {}
    windows = list(answer_questions(scorer, questions, 512, named, **window))
    for one in (one for some in windows for one in some):
        assert one.cut == 0
        found |= dict.fromkeys(one.indices, one)
    assert sorted(found) == list(range(len(questions)))
    for place, want in enumerate(wanted):
        np.testing.assert_allclose(found[place].scores.logprob, want.logprob, atol=1e-5)
        assert found[place].total == pytest.approx(float(want.logprob.sum()), abs=1e-4)
        assert found[place].greedy == want.greedy.all()
    for place, twin in enumerate(range(0, 60, 7), 60):
        assert found[place] is found[twin]  # equal questions, equal bits
    if "window" in window:
        assert max(len(some) for some in windows) == 7


def test_equal_ids_are_one_question_whichever_arrays_hold_them(scorers):
    """Requests without context, and windows of a long text, have each an array of their own."""
    questions = [Question(ids(7), ids(k % 3 + 1)) for k in range(12)]
    windows = list(answer_questions(scorers("tiny-llama3"), questions, 512, named, window=2))
    places = [one.indices for some in windows for one in some]
    assert places == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_a_question_of_the_last_window_is_refused_before_the_first_is_computed(scorers):
    questions = [*(Question(ids(1, 2), ids(k)) for k in range(3, 9)), Question(ids(9), ids(99999))]
    scorer = scorers("tiny-llama3")
    before = scorer.facts()["counts"]
    with pytest.raises(InputError, match="document 6: token id 99999 is beyond"):
        next(answer_questions(scorer, questions, 512, named, window=2))
    assert scorer.facts()["counts"] == before


def test_the_newest_tokens_are_kept(scorers):
    scorer = scorers("tiny-llama3")
    one = Question(ids(*range(5, 25)), ids(30, 31, 32))
    [[answer]] = answer_questions(scorer, [one], 8, named)
    assert answer.sequence.ids.tolist() == [*range(19, 25), 30, 31, 32]
    assert (answer.cut, answer.sequence.start) == (14, 6)
    [[answer]] = answer_questions(scorer, [one], 3, named)
    assert answer.sequence.ids.tolist() == [24, 30, 31, 32]


@pytest.mark.parametrize(
    ("question", "length", "why"),
    [
        (Question(ids(), ids(1)), 9, "task, document 0: its context is empty"),
        (
            Question(ids(1), ids()),
            9,
            "task, document 0: its continuation adds no token to the context",
        ),
        (Question(ids(1), ids(1, 2, 3)), 2, "has 3 tokens, and max_length is 2"),
        (Question(ids(1), ids(99999)), 9, "task, document 0: token id 99999 is beyond"),
        (
            Question(ids(1) * np.ones(4000, np.int32), ids(3)),
            9999,
            "document 0: .* the model takes",
        ),
    ],
)
def test_questions_that_cannot_be_answered(question, length, why, scorers):
    with pytest.raises(InputError, match=why):
        list(answer_questions(scorers("tiny-llama3"), [question], length, named))


@pytest.mark.lines
@pytest.mark.parametrize("kind", BASE)
@pytest.mark.parametrize("written", ["whole", "without lengths"])
def test_as_lm_eval_resolves_it(kind, written, tmp_path):
    config = dict(BASE[kind])
    if kind in ("cohere", "falcon_h1"):  # whose defaults the releases of transformers disagree on
        config["rope_theta"] = 10000.0
    if written == "without lengths":
        config = {k: v for k, v in config.items() if k not in ("n_positions", "n_ctx")}
        config.pop("max_position_embeddings", None)
    try:
        made = AutoConfig.for_model(kind, **spelled(config))
    except ValueError:
        assert not FIFTH
        pytest.skip("this transformers does not have it")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 777}')

    class Tokenizer:
        model_max_length = 777

    assert max_length(tmp_path, tmp_path) == resolve_max_length(made, Tokenizer())


@pytest.mark.lines
def test_nobody_says(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bloom"}')
    assert max_length(tmp_path, tmp_path) == 2048
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert max_length(tmp_path, tmp_path) == 2048


@pytest.mark.lines
def test_the_text_of_a_wrapper(tmp_path):
    text = {**BASE["qwen3"], "model_type": "qwen3_vl_text", "rope_theta": 10000.0}
    raw = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert max_length(tmp_path, tmp_path) == BASE["qwen3"]["max_position_embeddings"]
