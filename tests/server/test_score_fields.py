"""Fields that `rank`, `top_k` and `texts` add to results of `/jaxscore/score`."""

import json

import numpy as np
import pytest

from jaxscore.server import scoring
from tests.server.conftest import refused

SCORE = "/jaxscore/score"
TEXT = "Oslo 挪威 🙂👩‍👧 naïve."
ITEMS = [{"id": "a", "context": "Oslo is in", "continuation": " Norway"}, {"continuation": TEXT}]
ADDED = {"rank", "top_id", "top_logprob", "top_token", "texts", "top_text"}
ALL = {"rank": True, "top_k": 3, "texts": True}


def ask(served, **fields):
    answer = served.ask(SCORE, {"requests": ITEMS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_ranks_and_alternatives_are_those_of_the_scorer(served):
    expected = served.scorer.score(
        [(item.get("context", ""), item["continuation"]) for item in ITEMS],
        measures=["rank"],
        top=3,
    )
    for result, scored in zip(ask(served, **ALL), expected, strict=True):
        assert result["rank"] == scored.measures["rank"].tolist()
        assert result["top_id"] == scored.top.id.tolist()
        assert result["top_token"] == scored.top.token
        np.testing.assert_allclose(result["top_logprob"], scored.top.logprob, atol=1e-5)


def test_fields_are_added_by_request_alone(served):
    assert not ADDED & ask(served)[0].keys()
    assert ADDED & ask(served, rank=True)[0].keys() == {"rank"}
    assert ADDED & ask(served, texts=True)[0].keys() == {"texts"}
    assert ADDED & ask(served, **ALL)[0].keys() == ADDED
    assert not ADDED & ask(served, **ALL, summary_only=True)[0].keys()


def test_tokens_that_share_a_character_have_their_text_together(served):
    _, result = ask(served, **ALL)
    assert len(result["texts"]) == len(result["tokens"]) == len(result["top_text"])
    texts = [text for text in result["texts"] if text is not None]
    assert "".join(texts).strip() == TEXT
    assert len(texts) < len(result["tokens"])
    assert any("挪" in text for text in texts)
    assert any("👩‍👧" in text for text in texts)
    assert not any("\ufffd" in text for text in texts)


def test_alternatives_have_readable_texts(served):
    result, _ = ask(served, **ALL)
    for ids, texts in zip(result["top_id"], result["top_text"], strict=True):
        assert len(ids) == len(texts) == 3
    assert all(isinstance(text, str) for texts in result["top_text"] for text in texts)


def test_lines_take_the_fields_from_the_query(served):
    body = b"".join(json.dumps(item).encode() + b"\n" for item in ITEMS)
    answer = served.ask(
        SCORE,
        content=body,
        headers={"Content-Type": "application/x-ndjson"},
        params={"rank": "true", "top_k": "3", "texts": "true"},
    )
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert [result["top_id"] for result in results] == [r["top_id"] for r in ask(served, **ALL)]
    assert all(result.keys() >= ADDED for result in results)


def test_a_window_of_several_requests_gives_each_its_number(served):
    wide, narrow, none = served.ask_all(
        [(SCORE, {"requests": ITEMS, "top_k": k}) for k in (20, 2, 0)]
    )
    assert {len(ids) for ids in wide.json()["results"][0]["top_id"]} == {20}
    assert {len(ids) for ids in narrow.json()["results"][0]["top_id"]} == {2}
    assert "top_id" not in none.json()["results"][0]


def test_a_field_of_an_item_is_not_replaced(served):
    item = {"continuation": "Oslo", "rank": 7}
    [result] = served.ask(SCORE, {"requests": [item]}).json()["results"]
    assert result["rank"] == 7
    [result] = served.ask(SCORE, {"requests": [item], "rank": True}).json()["results"]
    assert result == {"id": 1, "error": "has rank, a field of results; rename it", "rank": 7}


def test_an_empty_text_has_empty_lists(served):
    body = {"requests": [{"context": "Oslo", "continuation": ""}], **ALL}
    [result] = served.ask(SCORE, body).json()["results"]
    assert [result[name] for name in sorted(ADDED & result.keys())] == [[]] * len(
        ADDED & result.keys()
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 1), ("rank", "true"), ("texts", 0), ("top_k", 21), ("top_k", -1), ("top_k", "3"),
     ("top_k", True), ("top_k", 1.0)],
)  # fmt: skip
def test_unusable_values_are_refused_by_name(served, field, value):
    answer = served.ask(SCORE, {"requests": ITEMS, field: value})
    refused(answer, 400, param=field, type="invalid_request_error")


def test_the_limit_of_the_server_holds(start):
    served = start(max_logprobs=2)
    error = refused(served.ask(SCORE, {"requests": ITEMS, "top_k": 3}), 400, param="top_k")
    assert error["message"] == "top_k is 3; expected a whole number from 0 to 2"
    assert served.ask("/v1/models/tiny").json()["max_logprobs"] == 2


def test_a_request_for_too_many_numbers_is_refused(served, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_NUMBERS", 10)
    error = refused(served.ask(SCORE, {"requests": ITEMS, "top_k": 20}), 400, param="top_k")
    assert "expected at most 10 log-probabilities" in error["message"]
