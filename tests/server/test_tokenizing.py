"""The tokenizer over HTTP."""

import pytest

from tests.server.conftest import refused

TEXT = "Oslo is naïve"


@pytest.mark.parametrize("special", [True, False])
def test_there_and_back(served, special):
    tokenizer = served.scorer.encoder.tokenizer
    body = {"prompt": TEXT, "add_special_tokens": special}
    found = served.ask("/tokenize", body).json()
    assert found["tokens"] == tokenizer(TEXT, add_special_tokens=special)["input_ids"]
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 1024)
    back = served.ask("/detokenize", {"tokens": found["tokens"]}).json()
    assert back == {"prompt": tokenizer.decode(found["tokens"])}


def test_what_lm_eval_asks_for(served):
    info = served.ask("/tokenizer_info").json()
    tokenizer = served.scorer.encoder.tokenizer
    assert info["eos_token"] == tokenizer.eos_token
    assert info["bos_token"] == tokenizer.bos_token
    assert info["pad_token"] is None
    assert info["chat_template"] == tokenizer.chat_template
    assert served.ask("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1208]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**64]}, "tokens"),
        ("/tokenize", {"prompt": "a" * 60}, "prompt"),
        ("/detokenize", {"tokens": [5] * 60}, "tokens"),
    ],
)
def test_refused(served, monkeypatch, path, body, param):
    monkeypatch.setattr(served.service, "room", lambda *, cut: 50)
    refused(served.ask(path, body), 400, param=param)
