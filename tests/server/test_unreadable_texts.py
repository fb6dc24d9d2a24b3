"""Texts that the tokenizer cannot read, and templates that never end: status 400 and why."""

import pytest
from tokenizers import Regex, pre_tokenizers

from jaxscore.text import checkpoint_process
from jaxscore.text.bounded_tokenizer import BoundedTokenizer
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer import load_tokenizer
from tests.conftest import CASES
from tests.server.conftest import MODEL, Served, refused
from tests.test_scorer import fresh

PANICS = "a" * 40 + "b"  # the pattern takes exponential time, and the library panics


@pytest.fixture
def panicking(scorers):
    """A server whose tokenizer panics on `PANICS`, in a conversation too."""
    tokenizer = load_tokenizer(CASES / "models" / MODEL)
    scorer = fresh(scorers(MODEL))
    scorer.encoder = TextEncoder(tokenizer)
    backend = scorer.encoder.bounded.backend
    pattern = pre_tokenizers.Split(Regex("(a|aa)+$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pattern, backend.pre_tokenizer])
    served = Served(scorer)
    yield served
    served.service.worker.stop(60)


def test_a_panic_is_a_refusal_on_every_path_and_the_next_request_is_answered(panicking):
    for path, body in (
        ("/tokenize", {"prompt": PANICS}),
        ("/v1/completions", {"prompt": ["The cat", PANICS], "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PANICS}]}),
    ):
        error = refused(panicking.ask(path, body), 400, type="invalid_request_error")
        assert "cannot read the text" in error["message"], path
    items = [{"continuation": PANICS}, {"context": "The cat", "continuation": " sat"}]
    bad, good = panicking.ask("/jaxscore/score", {"requests": items}).json()["results"]
    assert "cannot read the text" in bad["error"]
    assert "sum_logprob" in good
    items = [{"prompt": text, "labels": [" A", " B"]} for text in (PANICS, "The cat")]
    bad, good = panicking.ask("/jaxscore/label", {"requests": items}).json()["results"]
    assert "cannot read the text" in bad["error"]
    assert len(good["probability"]) == 2


def test_a_panic_in_decoding_is_a_refusal(panicking, monkeypatch):
    class Panic(BaseException):
        pass

    def decode(*_, **__):
        raise Panic("at the disco")

    monkeypatch.setattr(panicking.service.encoder.tokenizer, "decode", decode)
    error = refused(panicking.ask("/detokenize", {"tokens": [5]}), 400)
    assert "cannot decode its ids (at the disco)" in error["message"]


def test_a_template_that_never_ends_is_a_refusal(panicking, monkeypatch):
    monkeypatch.setattr(checkpoint_process, "RENDER_LIMIT", 0.5)
    tokenizer = panicking.service.encoder.tokenizer
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    assert panicking.ask("/v1/chat/completions", chat).status_code == 200
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", loop)
    error = refused(panicking.ask("/v1/chat/completions", chat), 400, param="messages")
    assert "more than 0.5 seconds" in error["message"]


def test_a_text_that_is_too_long_for_certain_is_refused_unread(panicking, monkeypatch):
    def encode(*_, **__):
        raise AssertionError("it is encoded")

    for name in ("ids", "pieces_of_each"):
        monkeypatch.setattr(BoundedTokenizer, name, encode)
    body = {"prompt": " " * 3_000_000, "max_tokens": 1}
    refused(panicking.ask("/v1/completions", body), 400, code="context_length_exceeded")
