"""Addresses to listen at, and the end; commands/test_serve.py has the whole life of a server."""

import contextlib
import http.client
import threading

import orjson
import pytest

from jaxscore.errors import InputError
from jaxscore.server import lifecycle
from jaxscore.server.lifecycle import listen, resolved, url_of
from tests.server.conftest import Served


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False)],
)  # fmt: skip
def test_addresses_of_this_machine_alone(host, here):
    assert resolved(host, 80).is_loopback is here


@pytest.mark.parametrize(("host", "named"), [("127.8.8.8", "127.8.8.8"), ("::1", "[::1]")])
def test_how_clients_name_an_address(host, named):
    assert resolved(host, 80).host == named


def test_a_name_that_no_machine_has():
    with pytest.raises(InputError, match="no machine has this name"):
        resolved("no such name", 80)


@pytest.mark.parametrize("host", ["", " "])
def test_no_name_is_not_every_address(host):
    with pytest.raises(InputError):
        resolved(host, 80)


def test_where_clients_find_it():
    with listen(resolved("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert url_of(one) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"--port {port}: cannot be used"):
            listen(resolved("127.0.0.1", port))


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
    with listen(resolved("127.0.0.1", 0)) as one:
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
