"""Paths, methods, content types and bodies: a named error, and never status 500."""

import asyncio

import pytest
from tokenizers import Regex, pre_tokenizers

from jaxscore.text import checkpoint_process
from jaxscore.text.bounded_tokenizer import BoundedTokenizer
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES
from tests.server.conftest import MODEL, Served, refused
from tests.test_scorer import fresh

PATH = "/v1/completions"
JSON = {"Content-Type": "application/json"}

NO_JSON = {
    "empty": b"",
    "broken": b'{"prompt": ',
    "text behind": b'{"prompt": "a"} x',
    "two": b'{"prompt": "a"}{"prompt": "b"}',
    "no utf-8": b'{"prompt": "\xff"}',
    "utf-16": '{"prompt": "a"}'.encode("utf-16"),
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "Infinity": b'{"prompt": "a", "temperature": Infinity}',
    "1e999": b'{"prompt": "a", "temperature": 1e999}',
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "digits": b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    "half a pair": b'{"prompt": "\\ud83d"}',
}


@pytest.mark.parametrize("raw", NO_JSON.values(), ids=NO_JSON)
def test_no_json(served, raw):
    error = refused(served.ask(PATH, content=raw, headers=JSON), 400, code="invalid_json")
    assert "JSON" in error["message"]


@pytest.mark.parametrize("raw", [b"[]", b"7", b'"a"', b"null", b"true"])
def test_no_object(served, raw):
    error = refused(served.ask(PATH, content=raw, headers=JSON), 400)
    assert "expected an object" in error["message"]


def test_deep_values_in_fields_are_refused_by_name(served):
    deep = b"[" * 900 + b"]" * 900
    for field in ("prompt", "stop", "unheard_of", "logit_bias", "seed"):
        raw = b'{"prompt": "a", "%s": %s}' % (field.encode(), deep)
        refused(served.ask(PATH, content=raw, headers=JSON), 400, param=field)


OTHER_TYPES = [
    None,
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/x-ndjson",
]


@pytest.mark.parametrize("given", OTHER_TYPES)
def test_types_that_are_not_read(served, given):
    headers = {} if given is None else {"Content-Type": given}
    error = refused(served.ask(PATH, content=b"{}", headers=headers), 415)
    assert "application/json" in error["message"]


@pytest.mark.parametrize("given", ["application/json; charset=utf-8", "Application/JSON"])
def test_types_that_are_read(served, given):
    raw = b'{"prompt": "a", "max_tokens": 0}'
    assert served.ask(PATH, content=raw, headers={"Content-Type": given}).status_code == 200


def test_encodings(served):
    raw = b'{"prompt": "a", "max_tokens": 0}'
    for given, status in (("gzip", 415), ("br", 415), ("identity", 200)):
        headers = {**JSON, "Content-Encoding": given}
        assert served.ask(PATH, content=raw, headers=headers).status_code == status


@pytest.mark.parametrize("path", ["/v1", "/v1/completions/", "/%00", "/docs"])
def test_paths_that_are_none(served, path):
    error = refused(served.ask(path), 404)
    assert "/v1/completions" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", PATH, "POST"), ("PUT", PATH, "POST"), ("DELETE", "/v1/models", "GET"),
     ("POST", "/health", "GET"), ("PATCH", "/metrics", "GET")],
)  # fmt: skip
def test_methods(served, method, path, allowed):
    answer = served.ask(path, method=method)
    refused(answer, 405, type="invalid_request_error")
    assert answer.headers["allow"] == allowed


def test_head_is_get_without_a_body(served):
    assert served.ask("/health", method="HEAD").status_code == 200


@pytest.fixture
def small(start):
    return start(max_body=100)


def test_a_body_that_says_it_is_too_large(small):
    answer = small.ask(PATH, content=b" " * 101, headers=JSON)
    refused(answer, 413)
    assert answer.headers["connection"] == "close"


def test_a_body_in_chunks_that_is_too_large(small):
    """It says no length, so what arrives is counted; the rest is not read."""
    n_read = 0

    async def chunks():
        nonlocal n_read
        for _ in range(1000):
            n_read += 1
            yield b" " * 40

    async def one():
        async with small.client() as client:
            return await client.post(PATH, content=chunks(), headers=JSON)

    answer = asyncio.run(one())
    refused(answer, 413)
    assert answer.headers["connection"] == "close"
    assert n_read <= 5


def test_the_largest_body(small):
    raw = b'{"prompt": "a", "max_tokens": 0}'
    assert small.ask(PATH, content=raw.ljust(100), headers=JSON).status_code == 200


@pytest.mark.parametrize("stated", ["x", "-1", "1e3", "²"])
def test_a_length_that_is_none(small, stated):
    headers = {**JSON, "Content-Length": stated.encode()}
    refused(small.ask(PATH, content=b"{}", headers=headers), 400)


def test_a_length_of_many_digits(small):
    headers = {**JSON, "Content-Length": "9" * 5000}
    refused(small.ask(PATH, content=b"{}", headers=headers), 413)


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


@pytest.mark.slow
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
