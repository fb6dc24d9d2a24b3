"""`/v1/score`: probabilities of labels after a query and its items."""

import numpy as np
import pytest

from jaxscore.plan.requests import TokenSequence
from jaxscore.server import MAX_PROMPTS
from jaxscore.types.requests import LabelRequest
from tests.server.conftest import refused

PATH = "/v1/score"
LABELS = [5, 9, 300]
BODY = {"query": "Oslo is in", "items": [" Norway", " Sweden", ""], "label_token_ids": LABELS}


def ask(served, **body):
    answer = served.ask(PATH, {**BODY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def distribution(served, ids):
    """Log-probability of every token after these ids, computed by itself."""
    every = np.arange(served.scorer.model.vocab_size, dtype=np.int32)
    [scores] = served.scorer.score_sequences([TokenSequence(ids, len(ids), every)])
    return scores.logprob.astype(np.float64)


def prompt_ids(served, text):
    [(ids, _)] = served.scorer.encoder.prompts([text])
    return ids


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("apply_softmax", [False, True])
def test_scores_are_probabilities_of_the_next_token(served, item_first, apply_softmax):
    body = ask(served, apply_softmax=apply_softmax, item_first=item_first)
    for item, found in zip(BODY["items"], body["scores"], strict=True):
        text = item + BODY["query"] if item_first else BODY["query"] + item
        expected = np.exp(distribution(served, prompt_ids(served, text)))
        assert expected.sum() == pytest.approx(1, abs=1e-5)
        expected = expected[LABELS]
        if apply_softmax:
            expected /= expected.sum()
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_softmax_gives_what_the_label_command_gives(served):
    request = LabelRequest("a", "Oslo is in Norway", tuple(LABELS))
    [expected] = served.scorer.label([request])
    [first, *_] = ask(served, apply_softmax=True)["scores"]
    np.testing.assert_allclose(first, expected.probability, rtol=1e-4)


def test_answer_has_the_fields_of_sglang_and_of_vllm(served):
    body = ask(served)
    assert body.keys() == {"id", "object", "created", "model", "scores", "data", "usage"}
    assert (body["object"], body["model"]) == ("scoring", "tiny")
    assert body["data"] == [
        {"index": k, "object": "score", "score": row[0]} for k, row in enumerate(body["scores"])
    ]
    n = sum(len(prompt_ids(served, BODY["query"] + item)) for item in BODY["items"])
    assert body["usage"] == {"prompt_tokens": n, "completion_tokens": 0, "total_tokens": n}


def test_ids_are_used_unchanged(served):
    ids = prompt_ids(served, "Oslo is in Norway").tolist()
    by_ids = ask(served, query=ids[:3], items=[ids[3:], []], label_token_ids=LABELS)["scores"]
    by_text = ask(served)["scores"]
    np.testing.assert_allclose(by_ids[0], by_text[0], rtol=1e-4)
    shorter = np.exp(distribution(served, np.array(ids[:3], np.int32)))[LABELS]
    np.testing.assert_allclose(by_ids[1], shorter, rtol=1e-4)
    whole = ask(served, query=None, items=[ids])["scores"]
    np.testing.assert_allclose(whole[0], by_text[0], rtol=1e-4)


def test_add_special_tokens_decides_about_the_bos(served):
    ids = prompt_ids(served, "Oslo is in Norway")
    [bare, *_] = ask(served, add_special_tokens=False)["scores"]
    np.testing.assert_allclose(bare, np.exp(distribution(served, ids[1:]))[LABELS], rtol=1e-4)


def test_one_text_is_one_item(served):
    assert len(ask(served, items=" Norway")["scores"]) == 1


REFUSED = [
    ("query", 7),
    ("query", ["a"]),
    ("query", [[5]]),
    ("query", [5]),  # with texts as items
    ("items", None),
    ("items", []),
    ("items", 7),
    ("items", [5]),
    ("items", ["a", [5]]),
    ("items", [[5], [True]]),
    ("items", [[5], [9999]]),
    ("items", [" Oslo" * 2000]),
    ("items", ["a"] * (MAX_PROMPTS + 1)),
    ("label_token_ids", None),
    ("label_token_ids", []),
    ("label_token_ids", [5, 5]),
    ("label_token_ids", [-1]),
    ("label_token_ids", [1208]),
    ("label_token_ids", [2**70]),
    ("label_token_ids", [[5]]),
    ("label_token_ids", "5"),
    ("apply_softmax", 1),
    ("item_first", "true"),
    ("temperature", 0.5),
    ("return_token_logprobs", True),
    ("unheard_of", 1),
]


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=lambda one: str(one)[:20])
def test_refused_by_name(served, field, value):
    body = {**BODY, field: value}
    if field == "items" and isinstance(value, list) and [9999] in value:
        body["query"] = [5]
    error = refused(served.ask(PATH, body), 400, param=field)
    assert error["type"] == "invalid_request_error"


def test_an_item_is_refused_by_its_place(served):
    body = {**BODY, "query": "", "items": ["a", ""], "add_special_tokens": False}
    error = refused(served.ask(PATH, body), 400, param="items")
    assert "item 1" in error["message"]
    assert "is empty" in error["message"]


def test_a_long_query_is_not_joined_with_many_items(served, monkeypatch):
    monkeypatch.setattr(served.service.encoder, "prompts", None)
    body = {**BODY, "query": "a" * 100_000, "items": ["b"] * 1000}
    error = refused(served.ask(PATH, body), 400, param="items")
    assert str(1000 * 100_001) in error["message"]


def test_numbers_that_are_not_finite(served, monkeypatch):
    real = served.scorer.engine.run

    def run(*args, **options):
        for window in real(*args, **options):
            yield [one._replace(logprob=np.full_like(one.logprob, np.nan)) for one in window]

    monkeypatch.setattr(served.scorer.engine, "run", run)
    error = refused(served.ask(PATH, BODY), 500, code="numbers_not_finite")
    assert "item 0" in error["message"]
