"""Keys, hosts and origins, and the tokenizer's endpoints."""

import pytest
from starlette.routing import Route

from jaxscore.server import Settings
from jaxscore.server.app import GET, POST, Guard
from jaxscore.server.endpoint import Endpoint
from tests.server.conftest import Served, refused

KEY = "a-secret-of-this-test"
LOCKED_GET = sorted(GET.keys() - {"/"})  # the page is open, see test_page
EVERY = [("GET", path) for path in LOCKED_GET] + [("POST", path) for path in POST]
WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    f"Bearer {KEY}x",
    f"Bearer {KEY[:-1]}",
    f"Basic {KEY}",
    KEY,
]


@pytest.fixture(scope="module")
def locked(scorer):
    """A server with a key; its worker never runs, since nothing gets so far."""
    return Served(scorer, runs=False, key=KEY)


@pytest.mark.slow_after(1, of_each="path")
@pytest.mark.parametrize(("method", "path"), [*EVERY, ("GET", "/nowhere"), ("PUT", "/v1/models")])
@pytest.mark.parametrize("given", WRONG)
def test_every_path_but_health_needs_the_key(locked, method, path, given):
    headers = {} if given is None else {"Authorization": given}
    answer = locked.ask(path.replace("{id:path}", "tiny"), method=method, headers=headers)
    if path == "/health":
        assert answer.status_code == 503  # the worker does not run
        return
    refused(answer, 401, code="invalid_api_key", type="authentication_error")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY[:-1] not in answer.text


@pytest.mark.parametrize("given", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
def test_the_key_opens(locked, given):
    assert locked.ask("/v1/models", headers={"Authorization": given}).status_code == 200


def test_a_path_that_is_added_later_is_locked(locked, monkeypatch):
    """Paths are open by a list of names, and not by what each path says."""

    async def hello(call):
        raise AssertionError("it was answered")

    route = Route("/later", Endpoint(locked.service, {"GET": hello}))
    monkeypatch.setattr(locked, "app", Guard(route, locked.service.settings))
    refused(locked.ask("/later"), 401)


@pytest.mark.parametrize("given", [None, "Bearer ", "Bearer", "Bearer anything"])
def test_without_a_key_any_header_is_taken(served, given):
    """lm-eval sends an empty one."""
    headers = {} if given is None else {"Authorization": given}
    assert served.ask("/v1/models", headers=headers).status_code == 200


HERE = ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]", "[::1]:80", "LOCALHOST"]
ELSEWHERE = [
    "example.org",
    "localhost.example.org",
    "127.0.0.1.example.org:80",
    "",
    "[::2]",
    "a:b:c",
    "[::1]example.org",
    "[::1]:80@example.org",
    "localhost:80@example.org",
    "localhost:http",
]


@pytest.mark.parametrize("host", HERE)
def test_names_of_this_machine(served, host):
    assert served.ask("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
def test_other_names_are_refused(served, host, path):
    refused(served.ask(path, headers={"Host": host}), 403, code="host_not_allowed")


@pytest.mark.parametrize(
    ("loopback", "allowed", "host", "status"),
    [
        (True, ("box.lan",), "box.lan:80", 200),
        (True, ("box.lan",), "BOX.lan", 200),
        (True, ("box.lan",), "other.lan", 403),
        (False, (), "anything.org", 200),  # the key guards it
        (False, ("box.lan",), "box.lan", 200),
        (False, ("box.lan",), "other.lan", 403),
    ],
)
def test_allowed_hosts(scorer, loopback, allowed, host, status):
    one = Served(scorer, runs=False, loopback=loopback, allowed_hosts=allowed)
    assert one.ask("/v1/models", headers={"Host": host}).status_code == status


def test_web_pages_of_other_origins(served, start):
    origin = {"Origin": "http://localhost:3000"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    closed = served.ask("/v1/models", headers=origin)
    assert not [name for name in closed.headers if name.startswith("access-control")]
    refused(served.ask("/v1/completions", method="OPTIONS", headers=preflight), 405)
    opened = start(cors="http://localhost:3000", key=KEY)
    answer = opened.ask("/v1/completions", method="OPTIONS", headers=preflight)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    good = opened.ask("/v1/models", headers={**origin, "Authorization": f"Bearer {KEY}"})
    assert good.headers["access-control-allow-origin"] == "http://localhost:3000"
    other = opened.ask("/v1/models", headers={"Origin": "http://example.org"})
    assert "access-control-allow-origin" not in other.headers


def test_no_key_in_what_is_printed():
    assert KEY not in repr(Settings(names=("tiny",), key=KEY))


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
def test_invalid_tokenizer_fields(served, monkeypatch, path, body, param):
    monkeypatch.setattr(served.service, "max_characters", lambda *, truncates: 50)
    refused(served.ask(path, body), 400, param=param)
