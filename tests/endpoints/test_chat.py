"""Conversations: what is asked, and what is made of the answers, of both kinds of server."""

import pytest

from jaxscore.endpoints import ChatEndpoint, OllamaEndpoint
from jaxscore.errors import InputError
from jaxscore.types.requests import ChatRequest
from tests.endpoints.conftest import QUICK, always
from tests.endpoints.server import Answer

MESSAGES = [
    {"role": "system", "content": "Judge."},
    {"role": "user", "content": "Is it ö?\n\u05d0"},
]
PLAIN = ChatRequest("q1", MESSAGES, 8)
FULL = ChatRequest("q2", MESSAGES[1:], 8, 0.5, 11, ("\n",))


def chat(server):
    return ChatEndpoint("gpt", server.url, limits=QUICK)


def ollama(server):
    return OllamaEndpoint("phi3:latest", server.url.removesuffix("/v1"), limits=QUICK)


def openai_answer(text, finish="stop", **more):
    message = {"role": "assistant", "content": text}
    return Answer({"choices": [{"message": message, "finish_reason": finish, **more}]})


def ollama_answer(text, finish="stop"):
    message = {"role": "assistant", "content": text}
    return Answer({"message": message, "done": True, "done_reason": finish})


KINDS = [(chat, openai_answer), (ollama, ollama_answer)]


def test_what_an_openai_server_is_asked(serve):
    server = serve(always(openai_answer("Yes")))
    one, two = chat(server).generate([PLAIN, FULL])
    assert (one.id, one.text, one.finish, one.error) == ("q1", "Yes", "eos", None)
    assert (two.id, two.text) == ("q2", "Yes")
    assert {seen.path for seen in server.seen} == {"/v1/chat/completions"}
    assert [seen.body for seen in server.seen] == [
        {"model": "gpt", "messages": MESSAGES, "temperature": 0.0, "seed": 0, "max_tokens": 8},
        {
            "model": "gpt", "messages": MESSAGES[1:], "temperature": 0.5, "seed": 11,
            "max_tokens": 8, "stop": ["\n"],
        },
    ]  # fmt: skip


def test_what_an_ollama_server_is_asked(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-ollama")
    server = serve(always(ollama_answer("Yes")))
    one, two = ollama(server).generate([PLAIN, FULL])
    assert (one.id, one.text, one.finish, one.error) == ("q1", "Yes", "eos", None)
    assert (two.id, two.text) == ("q2", "Yes")
    assert {seen.path for seen in server.seen} == {"/api/chat"}
    assert not any("Authorization" in seen.headers for seen in server.seen)
    assert [seen.body for seen in server.seen] == [
        {
            "model": "phi3:latest", "messages": MESSAGES, "stream": False,
            "options": {"temperature": 0.0, "seed": 0, "num_predict": 8},
        },
        {
            "model": "phi3:latest", "messages": MESSAGES[1:], "stream": False,
            "options": {"temperature": 0.5, "seed": 11, "num_predict": 8, "stop": ["\n"]},
        },
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "made"), KINDS)
def test_answers(serve, kind, made):
    answers = {
        "end": made("No."), "limit": made("Because", "length"), "empty": made("", "length"),
        "stop": made("No.\nQ"), "null": made(None), "list": made(["No."]), "none": Answer({}),
        "odd": Answer({"message": "x", "choices": [{"message": "x"}]}), "busy": Answer(b"", 500),
        "error": Answer({"error": "sick"}), "gone": Answer(b"", 404),
    }  # fmt: skip
    requests = [
        ChatRequest(name, [{"role": "user", "content": name}], 4, stop=("\n",)) for name in answers
    ]
    server = serve(lambda path, body, _: answers[body["messages"][0]["content"]])
    one = kind(server)
    got = one.generate(requests)
    assert [x.id for x in got] == list(answers)
    assert [(x.text, x.finish) for x in got[:4]] == [
        ("No.", "eos"), ("Because", "length"), ("", "length"), ("No.", "stop"),
    ]  # fmt: skip
    assert all(x.error is None for x in got[:4])
    assert [(x.text, x.finish) for x in got[4:]] == [("", None)] * 7
    errors = [x.error for x in got[4:]]
    assert errors[0] == 'the message has no "content"'
    assert errors[1] == 'the message has an unusable "content"'
    assert 'the answer has no "' in errors[2]
    assert 'the answer has an unusable "message"' in errors[3]
    assert "HTTP 500 (6 attempts)" in errors[4]
    assert "the server's error: sick" in errors[5]
    assert "HTTP 404; give the URL before" in errors[6]


@pytest.mark.parametrize("error", ["{}", {"message": "{}"}])
def test_a_complaint_within_a_success_is_cut_and_shows_no_key(serve, monkeypatch, error):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    said = "bad\nkey sk-secret " + "x" * 100_000
    body = said if error == "{}" else {"message": said}
    [one] = chat(serve(always(Answer({"error": body})))).generate([PLAIN])
    assert "the server's error: bad key [OPENAI_API_KEY] xxx" in one.error
    assert "sk-secret" not in one.error
    assert len(one.error) < 500


def picky(refused):
    def behave(path, body, attempt):
        for name in refused:
            if name in body:
                return Answer({"error": {"message": f"unsupported: {name}"}}, 400)
        return openai_answer("Yes")

    return behave


@pytest.mark.parametrize(
    ("refused", "attempts", "sent"),
    [
        ((), 1, {"max_tokens", "temperature", "seed"}),
        (("max_tokens",), 2, {"max_completion_tokens", "temperature", "seed"}),
        (("max_tokens", "temperature"), 3, {"max_completion_tokens"}),
        (("max_tokens", "seed"), 3, {"max_completion_tokens"}),
    ],
)
def test_models_that_refuse_settings(serve, refused, attempts, sent):
    server = serve(picky(refused))
    one = chat(server)
    assert one.remarks == ()
    got = one.generate([ChatRequest(k, MESSAGES, 8) for k in range(5)])
    assert [x.text for x in got] == ["Yes"] * 5
    assert len(server.seen) == attempts - 1 + 5
    assert set(server.seen[-1].body) - {"model", "messages"} == sent
    assert bool(one.remarks) == (attempts == 3)
    if one.remarks:
        assert "gpt accepts neither a temperature nor a seed" in one.remarks[0]


def test_a_request_that_no_spelling_helps(serve):
    server = serve(picky(["messages"]))
    [one] = chat(server).generate([PLAIN])
    assert one.error == f"{server.url}/chat/completions: HTTP 400, unsupported: messages"
    server = serve(picky(["max_tokens", "messages"]))
    [one] = chat(server).generate([PLAIN])
    assert "unsupported: max_tokens; then " in one.error
    assert one.error.endswith("unsupported: messages")


@pytest.mark.parametrize(
    ("kind", "message"),
    [(chat, "a model that the server has"), (ollama, "a model that `ollama list` prints")],
)
def test_a_model_that_is_not_there(serve, kind, message):
    server = serve(always(Answer({"error": "model 'x' not found"}, 404)))
    with pytest.raises(InputError, match=f"HTTP 404, model 'x' not found; give .*{message}"):
        kind(server).generate([PLAIN] * 5)
    assert len(server.seen) == 1


def test_an_ollama_server_that_wants_a_key(serve):
    with pytest.raises(
        InputError, match="the server requires a key, but this interface does not send"
    ):
        ollama(serve(always(Answer(b"", 401)))).generate([PLAIN])
