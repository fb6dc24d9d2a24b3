"""Addresses, time limits of a real server's connections, openai's client, and the shutdown."""

import contextlib
import http.client
import json
import socket
import threading
import time

import openai
import orjson
import pytest

from jaxscore.errors import InputError
from jaxscore.server import app, choices, endpoint, lifecycle
from jaxscore.server.completions import _end_stream
from jaxscore.server.endpoint import EVENTS, Answer, Stream
from jaxscore.server.lifecycle import listen, resolve, url_of
from tests.server.conftest import Served


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False)],
)  # fmt: skip
def test_addresses_of_this_machine_alone(host, here):
    assert resolve(host, 80).is_loopback is here


@pytest.mark.parametrize(("host", "named"), [("127.8.8.8", "127.8.8.8"), ("::1", "[::1]")])
def test_how_clients_name_an_address(host, named):
    assert resolve(host, 80).host == named


def test_a_name_that_no_machine_has():
    with pytest.raises(InputError, match="no machine has this name"):
        resolve("no such name", 80)


@pytest.mark.parametrize("host", ["", " "])
def test_no_name_is_not_every_address(host):
    with pytest.raises(InputError):
        resolve(host, 80)


def test_where_clients_find_it():
    with listen(resolve("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert url_of(one) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"--port {port}: cannot be used"):
            listen(resolve("127.0.0.1", port))


def test_what_is_not_finished_at_the_end_is_told_so(scorer, monkeypatch, capfd):
    """With an error that names the end, and nothing on stderr."""
    served, real, ends = Served(scorer, runs=False), scorer.engine.run, []
    ready, in_work, go_on = threading.Event(), threading.Event(), threading.Event()

    def run(*args, **options):
        if ready.is_set():
            in_work.set()
            assert go_on.wait(60)
        return real(*args, **options)

    @contextlib.contextmanager
    def signals(loop, end):
        ends.append(lambda: loop.call_soon_threadsafe(end))
        yield

    monkeypatch.setattr(scorer.engine, "run", run)
    monkeypatch.setattr(lifecycle, "_signals", signals)
    monkeypatch.setattr(lifecycle, "DRAIN", 0.3)
    with listen(resolve("127.0.0.1", 0)) as one:
        thread = threading.Thread(target=lifecycle.run, args=(served.service, one, ready.set))
        thread.start()
        assert ready.wait(60)
        client = http.client.HTTPConnection(*one.getsockname(), timeout=60)
        body = orjson.dumps({"prompt": "Oslo", "max_tokens": 0, "echo": True, "logprobs": 0})
        client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert in_work.wait(60)
        ends[0]()
        answer = client.getresponse()
        assert answer.status == 503
        assert orjson.loads(answer.read())["error"]["code"] == "ending"
        client.close()
        go_on.set()
        thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match="shutdown"):
        served.service.chat_threads.submit(int)
    assert capfd.readouterr().err == ""


PATH = "/v1/completions"
BODY = b'{"prompt": "Oslo is", "max_tokens": 0, "echo": true, "logprobs": 0}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


def talk(address, *parts, pause=0.0, seconds=20.0):
    """What the server sends until it closes, and after how long that was."""
    started = time.monotonic()
    out = b""
    with socket.create_connection(address, timeout=seconds) as one:
        for part in parts:
            try:
                one.sendall(part)
            except OSError:  # closed on the other side
                break
            time.sleep(pause)
        try:
            while piece := one.recv(65536):
                out += piece
        except ConnectionResetError:
            pass
    return out, time.monotonic() - started


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/nowhere"])
def test_request_of_two_lengths_is_refused_and_ends_its_connection(listening, method, path):
    """What follows, which a proxy may have taken for its body, is not answered."""
    _, address = listening()
    for lengths in (
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: %d\r\n",
    ):
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        head += b"Content-Type: application/json\r\n" + lengths % len(BODY) + b"\r\n"
        hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        out, _ = talk(address, head + b"0\r\n\r\n" + hidden)
        assert out.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in out.lower()
        assert b"a Content-Length and a Transfer-Encoding" in out
        assert out.count(b"HTTP/1.1 ") == 1


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("parts", "pause"),
    [
        ([], 0),  # a connection without a word
        ([b"POST /v1/comp"], 0),  # half a head
        ([HEAD % len(BODY), BODY[:5]], 0),  # half a body
        ([HEAD % len(BODY), *(BODY[k : k + 1] for k in range(20))], 0.1),  # a byte now and then
        ([HEAD[:k] for k in range(1, 2)] + [HEAD[k : k + 1] for k in range(1, 20)], 0.1),
    ],
    ids=["nothing", "half a head", "half a body", "slow body", "slow head"],
)
def test_a_request_that_does_not_arrive(listening, parts, pause):
    _, address = listening(receive_timeout=0.5)
    out, seconds = talk(address, *parts, pause=pause)
    assert 0.4 < seconds < 10
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"Connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_the_limit_is_for_receiving_and_not_for_answering(listening, monkeypatch):
    served, address = listening(receive_timeout=0.3)
    real = served.scorer.engine.run

    def run(*args, **options):
        time.sleep(0.5)
        return real(*args, **options)

    monkeypatch.setattr(served.scorer.engine, "run", run)
    connection = http.client.HTTPConnection(*address, timeout=20)
    for _ in range(2):  # the second one on the same connection
        connection.request("POST", PATH, BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, len(json.loads(answer.read())["choices"])) == (200, 1)
        time.sleep(0.4)  # an open connection may be idle
    connection.close()


def test_a_second_request_of_a_connection_has_the_limit_too(listening):
    _, address = listening(receive_timeout=0.5)
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    out, _ = talk(address, first, b"GET /hea", pause=0.1)
    assert out.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in out


def test_a_head_without_end(listening):
    _, address = listening()
    out, _ = talk(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000)
    assert not out or out.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n"]
)
def test_what_is_no_http(listening, raw):
    _, address = listening()
    out, _ = talk(address, raw)
    head, _, body = out.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_large_body_is_refused_before_it_is_read(listening):
    _, address = listening(max_body=1000)
    out, _ = talk(address, HEAD % 10**9, b"x" * 100)
    assert out.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in out.lower()


def test_headers_of_an_answer(listening):
    _, address = listening()
    out, _ = talk(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head = out.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert b"server: jaxscore" in head
    assert not [one for one in head if b"uvicorn" in one]


def test_a_client_that_hangs_up(listening):
    """Its work is dropped, and others are answered."""
    served, address = listening()
    long = json.dumps({"prompt": "Oslo is", "max_tokens": 1000, "n": 4, "seed": 1}).encode()
    with socket.create_connection(address) as one:
        one.sendall(HEAD % len(long) + long)
        while not served.service.worker.scheduler.n_prompts:
            time.sleep(0.01)
    until = time.monotonic() + 30
    while served.service.worker.scheduler.n_prompts:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert served.service.metrics.cancelled._value.get() == 1


def test_a_client_that_reads_nothing(listening, monkeypatch):
    """Its stream ends with its time; the server goes on."""
    monkeypatch.setattr(endpoint, "LAST_PART", 0.2)
    served, address = listening(request_timeout=0.5)

    async def parts(*args):
        while True:
            yield 0, "a" * 100_000, [5], None

    monkeypatch.setattr(choices, "stream_texts", parts)
    body = b'{"prompt": "Oslo", "max_tokens": 9, "stream": true}'
    with socket.create_connection(address) as one:
        one.sendall(HEAD % len(body) + body)
        until = time.monotonic() + 20
        while not served.log:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert served.log == [("POST", PATH, 200)]


def ended(served):
    """Wait until the server has no connection."""
    until = time.monotonic() + 20
    while served.server.server_state.connections:
        assert time.monotonic() < until, "a connection is left"
        time.sleep(0.05)


@pytest.mark.parametrize("request_timeout", [600, 0.5])
def test_an_answer_that_nobody_reads_is_dropped(listening, monkeypatch, request_timeout):
    """It would stay in memory as long as the client likes."""

    async def much(call):
        if request_timeout > 1:
            return Answer(b"a" * 30_000_000)
        return Stream(endless(), EVENTS, _end_stream)

    async def endless():
        while True:
            yield b"a" * 1_000_000

    monkeypatch.setattr(endpoint, "LAST_PART", 0.2)
    monkeypatch.setitem(app.GET, "/tokenizer_info", much)
    served, address = listening(receive_timeout=0.5, request_timeout=request_timeout)
    with socket.create_connection(address) as one:
        one.sendall(b"GET /tokenizer_info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.2)
        assert served.server.server_state.connections
        ended(served)


def test_an_answer_that_is_read_slowly_is_whole(listening, monkeypatch):
    async def much(call):
        return Answer(b"a" * 20_000_000)

    monkeypatch.setitem(app.GET, "/tokenizer_info", much)
    _, address = listening(receive_timeout=0.3)
    n_read = 0
    with socket.create_connection(address, timeout=20) as one:
        one.sendall(b"GET /tokenizer_info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while piece := one.recv(2_000_000):
            n_read += len(piece)
            time.sleep(0.1)
    assert n_read > 20_000_000


def test_a_connection_whose_refused_body_has_arrived_is_closed(listening, monkeypatch):
    monkeypatch.setattr(lifecycle, "KEEP_ALIVE", 0.5)
    served, address = listening()
    head = (HEAD % 10).replace(b"application/json", b"text/plain")
    with socket.create_connection(address, timeout=20) as one:
        one.sendall(head)
        assert one.recv(65536).startswith(b"HTTP/1.1 415 ")
        one.sendall(b" " * 10)
        ended(served)


@pytest.fixture
def client(listening):
    served, (host, port) = listening()
    one = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)
    yield served, one
    one.close()


def test_openais_client(client):
    served, one = client
    assert [model.id for model in one.models.list()] == ["tiny", "alias"]
    found = one.completions.create(
        model="tiny", prompt="Oslo is in Norway", max_tokens=0, echo=True, logprobs=1
    )
    whole = served.scorer.score(["Oslo is in Norway"])[0]
    assert sum(found.choices[0].logprobs.token_logprobs[1:]) == pytest.approx(
        whole.sum_logprob, abs=1e-4
    )
    said = one.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Oslo?"}],
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
        temperature=0,
    )
    assert len(said.choices[0].logprobs.content) == 5
    parts = one.completions.create(model="tiny", prompt="Oslo is", max_tokens=40, stream=True)
    assert [part.choices[0].finish_reason for part in parts][-1] == "length"


def test_openais_errors(client):
    _, one = client
    with pytest.raises(openai.BadRequestError) as caught:
        one.completions.create(model="tiny", prompt="a", best_of=3)
    assert caught.value.param == "best_of"
    with pytest.raises(openai.NotFoundError) as caught:
        one.completions.create(model="other", prompt="a")
    assert caught.value.code == "model_not_found"
