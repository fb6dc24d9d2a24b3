"""Fields of completions, one by one: what is accepted, and what is refused by name."""

import pytest

from jaxscore.server import MAX_PROMPTS
from tests.server.conftest import refused

PATH = "/v1/completions"
BASE = {"prompt": "Oslo is", "max_tokens": 1, "temperature": 0}

TAKEN = {
    "model": [None, "tiny", "alias"],
    "prompt": ["a b", ["a b"], ["a b", "c"], [5, 6], [[5, 6]], [[5, 6], [7]], ""],
    "max_tokens": [None, 0, 1, 3],
    "logprobs": [None, 0, 1, 2, 20],
    "prompt_logprobs": [None, 0, 1, 20],
    "echo": [None, True, False],
    "stream": [None, False],
    "temperature": [None, 0, 0.0, 0.5, 2, 1e30, 1e-300],
    "top_p": [None, 0, 0.5, 1, 1.0],
    "n": [None, 1, 2],
    "stop": [None, "a", ["a", "b"], [], ["a" * 1000] * 64],
    "seed": [None, 0, 7, -7, 2**63],
    "stream_options": [None, {}, {"include_usage": True}],
    "add_special_tokens": [None, True, False],
    "return_tokens_as_token_ids": [None, True, False],
    "user": [None, "me", 7, {"a": []}],
    "logit_bias": [None, {}],
    "presence_penalty": [None, 0, 0.0],
    "frequency_penalty": [None, 0],
    "suffix": [None, ""],
    "best_of": [None, 1],
    "repetition_penalty": [None, 1, 1.0],
    "top_k": [None, 0, -1],
    "min_p": [None, 0],
    "response_format": [None, {"type": "text"}],
}

REFUSED = {
    "model": [7, True, ["tiny"], {}],
    "prompt": [
        None, 7, 1.5, True, [], [[]], [[5], []], ["a", 5], [5, "a"], [5, 1.0], [True], [[True]],
        [[5], "a"], [-1], [[5, 1208]], [2**70], [[[5]]], {}, [None], [[None]],
    ],
    "max_tokens": [-1, 1.0, 1.5, True, "1", [], {}],
    "logprobs": [-1, 21, 1.0, True, "1", [1]],
    "prompt_logprobs": [-1, 21, 1.0, True, "1", [1]],
    "echo": [0, 1, "true", []],
    "stream": [0, "false"],
    "temperature": [-0.1, 1e31, "1", True, []],
    "top_p": [-0.1, 1.1, "1", True],
    "n": [0, -1, 129, 1.0, True, "1"],
    "stop": [7, "", "\ufffd", ["a", ""], ["a", 7], {}, [None], ["a"] * 65, "a" * 1001],
    "seed": [1.0, "1", True],
    "stream_options": [[], True, {"include_usage": 1}, {"other": True}],
    "add_special_tokens": [0, "true"],
    "return_tokens_as_token_ids": [1],
    "logit_bias": [{"5": 1}, [], 0, False],
    "presence_penalty": [0.1, True, False, "0"],
    "frequency_penalty": [1],
    "suffix": ["a", 0],
    "best_of": [2, True],
    "repetition_penalty": [1.1, True],
    "top_k": [5, False],
    "min_p": [0.1],
    "response_format": [{"type": "json_object"}, "text"],
    "unheard_of": [1, None, "a"],
}  # fmt: skip


def cases(table):
    pairs = [(field, value) for field, values in table.items() for value in values]
    return pytest.mark.parametrize(("field", "value"), pairs, ids=lambda one: str(one)[:20])


@cases(TAKEN)
def test_taken(served, field, value):
    answer = served.ask(PATH, {**BASE, field: value})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")


@cases(REFUSED)
def test_refused(served, field, value):
    error = refused(served.ask(PATH, {**BASE, field: value}), 400, param=field)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_a_field_that_is_required(served):
    error = refused(served.ask(PATH, {"max_tokens": 1}), 400, param="prompt")
    assert "prompt is missing" in error["message"]


def test_a_model_that_is_not_served(served):
    body = {**BASE, "model": "other"}
    refused(served.ask(PATH, body), 404, param="model", code="model_not_found")


def test_half_a_surrogate_pair(served):
    raw = b'{"prompt": "a \\ud800 b", "max_tokens": 0}'
    headers = {"Content-Type": "application/json"}
    refused(served.ask(PATH, content=raw, headers=headers), 400, code="invalid_json")


def test_a_prompt_is_refused_by_its_place_and_all_with_it(served):
    error = refused(served.ask(PATH, {**BASE, "prompt": [[5], [6, 9999]]}), 400, param="prompt")
    assert "prompt 1" in error["message"]
    assert "9999" in error["message"]


@pytest.mark.parametrize(("n", "more", "param"), [(1000, 25, "max_tokens"), (1030, 0, "prompt")])
def test_more_than_the_positions(served, n, more, param):
    body = {"prompt": [[5], [5] * n], "max_tokens": more}
    error = refused(served.ask(PATH, body), 400, param=param, code="context_length_exceeded")
    for found in ("prompt 1", str(n), str(more), str(n + more), "1024"):
        assert found in error["message"]


def test_exactly_the_positions(served):
    answer = served.ask(PATH, {**BASE, "prompt": [5] * 1023})
    assert answer.json()["usage"]["total_tokens"] == 1024


def test_a_text_that_cannot_fit_is_not_even_tokenized(served, monkeypatch):
    def prompts(*args, **options):
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(served.service.encoder, "prompts", prompts)
    longest = served.service.longest_token
    body = {**BASE, "prompt": "a" * (1024 * longest + 1)}
    refused(served.ask(PATH, body), 400, param="prompt", code="context_length_exceeded")


def test_an_empty_text_where_no_bos_is_added(served):
    body = {**BASE, "prompt": "", "add_special_tokens": False}
    error = refused(served.ask(PATH, body), 400, param="prompt")
    assert "is empty" in error["message"]


def test_more_prompts_than_memory_should_hold(served):
    """Millions of prompts of one id fit in a body."""
    n = MAX_PROMPTS
    error = refused(served.ask(PATH, {**BASE, "prompt": [[5]] * (n + 1)}), 400, param="prompt")
    assert str(n) in error["message"]
    body = {**BASE, "prompt": [[5]] * (n // 128 + 1), "n": 128}
    refused(served.ask(PATH, body), 400, param="n")
    body = {"requests": [{"continuation": "a"}] * (n + 1)}
    error = refused(served.ask("/jaxscore/score", body), 400, param="requests")
    assert "application/x-ndjson" in error["message"]


def test_more_numbers_than_memory_should_hold(served):
    """Tokens of all choices, times the most probable tokens of each and the token itself."""
    body = {"prompt": [[5] * 1000] * 30, "max_tokens": 0, "echo": True, "logprobs": 20}
    error = refused(served.ask(PATH, {**body, "n": 13}), 400, param="logprobs")
    assert str(30 * 1000 * 13 * 21) in error["message"]
    of_prompts = {**body, "echo": False, "prompt_logprobs": 20}
    refused(served.ask(PATH, {**of_prompts, "n": 13}), 400, param="prompt_logprobs")
    for smaller in ({"n": 1, "logprobs": 0}, {"n": 13, "echo": False}):
        assert served.ask(PATH, {**body, **smaller}).status_code == 200
