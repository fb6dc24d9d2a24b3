"""Retries, limits, order, errors and the key, against a server that fails on purpose."""

import contextlib
import dataclasses
import email.utils
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jaxscore.endpoints import http
from jaxscore.endpoints.http import Client, Failed, Limits
from jaxscore.errors import InputError
from tests.endpoints.conftest import QUICK, always
from tests.endpoints.server import Answer

SECRET = "sk-not-to-be-seen-1234567890"


def client(url, *, sends_key=True, **limits):
    return Client(
        url,
        sends_key=sends_key,
        not_found="look again",
        limits=dataclasses.replace(QUICK, **limits),
    )


def ask(one, items):
    """One request an item; the server's `"n"`, or the Failed."""
    return one.map(lambda item: one.post("/x", {"item": item})["n"], items)


def echo(path, body, attempt):
    return Answer({"n": body["item"]})


def failing(answer, *, on, times=10**6):
    """As `echo`, but these items get `answer` the first `times` times."""
    return lambda path, body, attempt: (
        answer if body["item"] in on and attempt <= times else echo(path, body, attempt)
    )


def attempts(server, item):
    return sum(seen.body["item"] == item for seen in server.seen)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_results_come_in_order_and_never_more_in_flight_than_allowed(serve):
    draw = random.Random(0)
    waits = [draw.uniform(0.0, 0.02) for _ in range(60)]
    server = serve(lambda path, body, _: Answer({"n": body["item"]}, wait=waits[body["item"]]))
    assert ask(client(server.url, in_flight=3), range(60)) == list(range(60))
    assert server.most_in_flight == 3
    assert len(server.seen) == 60
    assert {seen.path for seen in server.seen} == {"/v1/x"}


def test_the_first_request_goes_alone_and_no_later_one(serve):
    at_first = []

    def behave(path, body, attempt):
        at_first.append(len(server.seen))
        return Answer({"n": body["item"]}, wait=0.3)

    server = serve(behave)
    one = client(server.url, in_flight=4)
    assert ask(one, range(5)) == list(range(5))
    assert at_first[0] == 1
    server.most_in_flight = 0
    assert ask(one, range(5, 9)) == [5, 6, 7, 8]
    assert server.most_in_flight == 4


def test_nothing_to_ask(serve):
    assert ask(client(serve(echo).url), []) == []


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"error": {"message": "busy"}}, 500),
        Answer(b"", 503),
        Answer(b"", 429),
        Answer(b"", 408),
        Answer(b"", 429, {"Retry-After": "soon"}),
        Answer(b"", 429, {"Retry-After": "-5"}),
        Answer(b"", 503, {"Retry-After": "9" * 400}),
        Answer({"n": 1}, drop="before"),
        Answer({"n": 1}, drop="within"),
    ],
)
@pytest.mark.parametrize("on", [{0}, {1, 2}])
def test_what_passes_is_tried_again(serve, answer, on):
    server = serve(failing(answer, on=on, times=2))
    assert ask(client(server.url), range(4)) == [0, 1, 2, 3]
    assert [attempts(server, item) for item in range(4)] == [3 if k in on else 1 for k in range(4)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer({"error": {"message": "out of memory"}}, 500), "HTTP 500, out of memory (3 att"),
        (Answer({"error": "wait"}, 429, {"Retry-After": "7"}), "HTTP 429, wait (3 attempts)"),
        (Answer(b"<h1>Bad\n gateway</h1>", 502), "HTTP 502, <h1>Bad gateway</h1> (3 attempts)"),
        (Answer(drop="before"), "was closed before the answer was complete (3 attempts)"),
        (Answer({"n": 1}, drop="within"), "was closed before the answer was complete (3 attempts)"),
        (Answer({"n": 1}, wait=1.0), "no answer within 0.2 s (3 attempts)"),
    ],
)
@pytest.mark.parametrize("bad", [0, 2])
def test_what_does_not_pass_fails_that_item_alone(serve, answer, message, bad):
    server = serve(failing(answer, on={bad}))
    got = ask(client(server.url, retries=2, read_timeout=0.2), range(4))
    assert isinstance(got[bad], Failed)
    assert message in str(got[bad])
    assert [n for k, n in enumerate(got) if k != bad] == [k for k in range(4) if k != bad]
    assert attempts(server, bad) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(b'{"n": '), "the answer is not JSON ('{\"n\":')"),
        (Answer(b"\xff\xfe"), "the answer is not JSON"),
        (Answer(b"[" * 100_000), "the answer is not JSON"),
        (Answer(b""), "the answer is not JSON ('')"),
        (Answer([1, 2]), "the answer is a list, expected a JSON object"),
        (Answer(b'{"n": ' + b"9" * 5000 + b"}"), "the answer is not JSON"),
        (Answer(b'{"n": 1}'.decode().encode("utf-16")), "the answer is not JSON"),
        (Answer(b'{"n": "\xed\xa0\xbd"}'), "the answer is not JSON"),
        (Answer(b'{"n": "\\ud83d"}'), "not usable JSON (in it: a string contains a lone surrogate"),
        (Answer(b'{"n":' * 200 + b"1" + b"}" * 200), "not usable JSON (nested more than 100 deep)"),
        (Answer(b'{"n": 1, "m": {"x": 1, "x": 2}}'), "the answer has the field 'x' twice"),
        (Answer(b"", headers={"Content-Encoding": "gzip"}), "encoded as 'gzip', which was not"),
        (Answer({"detail": [{"msg": "no"}]}, 422), 'HTTP 422, [{"msg": "no"}]'),
        (Answer({"message": "prompt too long"}, 400), "HTTP 400, prompt too long"),
        (Answer(b"", 400), "HTTP 400"),
    ],
)
@pytest.mark.parametrize("bad", [0, 2])
def test_an_answer_that_would_be_no_better_again(serve, answer, message, bad):
    server = serve(failing(answer, on={bad}))
    got = ask(client(server.url), range(4))
    assert message in str(got[bad])
    assert [n for k, n in enumerate(got) if k != bad] == [k for k in range(4) if k != bad]
    assert attempts(server, bad) == 1


@pytest.mark.parametrize("status", [200, 400, 307])
@pytest.mark.parametrize("endless", ["stated", "chunked"])
def test_an_answer_without_end_is_read_up_to_the_limit_of_its_request(serve, endless, status):
    bad = Answer(b"[1]," * 4096, status, {"Location": "/"}, endless=endless)
    server = serve(failing(bad, on={1}))
    got = ask(client(server.url), range(3))
    assert (got[0], got[2]) == (0, 2)
    most = http.ANSWER_BYTES + http.BYTES_PER_TOKEN * len(b'{"item": 1}')
    expected = f"has more than {most} bytes" if status == 200 else f"HTTP {status}"
    assert expected in str(got[1])
    assert attempts(server, 1) == 1
    assert server.n_sent < 10 * most  # the rest of it is what sockets hold


def test_the_limit_of_an_answer_grows_with_what_is_asked(serve):
    def behave(path, body, attempt):
        return Answer({"n": "x" * (http.ANSWER_BYTES + http.BYTES_PER_TOKEN * 900)})

    one = client(serve(behave).url)
    assert "has more than" in str(ask(one, ["a"])[0])
    assert len(one.post("/x", {"item": "a" * 1000})["n"]) > http.ANSWER_BYTES
    assert len(one.post("/x", {}, 1000)["n"]) > http.ANSWER_BYTES


@pytest.mark.parametrize("body", [b"", b'{"n": 1}' + b" " * 100])
def test_an_answer_a_byte_at_a_time_has_a_time_limit(serve, body):
    """Each byte comes within the limit of one read, in the head (an empty body) as behind it."""
    pause = 0.02 if body else 0.1
    server = serve(failing(Answer(body, pause=pause), on={1}))
    started = time.monotonic()
    got = ask(client(server.url, total_timeout=1.5), range(4))
    assert time.monotonic() - started < 10
    assert [got[0], *got[2:]] == [0, 2, 3]
    assert str(got[1]) == f"{server.url}/x: no complete answer within 1.5 s"
    assert attempts(server, 1) == 1


def test_good_answers_between_do_not_let_slow_ones_pile_up(serve):
    """A head without end; each good answer resets the failures in a row, not the slow ones."""
    server = serve(failing(Answer(b"", pause=1.0), on=set(range(1, 99, 2))))
    one = client(server.url, total_timeout=0.1, give_up_after=3, in_flight=1)
    got = ask(one, range(20))
    assert got[:6:2] == [0, 2, 4]
    assert "not sent, since 3 answers before it are still arriving after 0.1 s" in str(got[-1])
    assert len(server.seen) == 6


def test_slow_answers_that_have_ended_are_not_counted(serve):
    server = serve(failing(Answer({"n": 1}, wait=0.3), on={1, 2, 3}))
    one = client(server.url, total_timeout=0.1, give_up_after=3, in_flight=1)
    assert all(isinstance(found, Failed) for found in ask(one, [0, 1, 2, 3])[1:])
    for thread in one._abandoned:
        thread.join(10)
    assert ask(one, [4]) == [4]


def test_a_long_message_is_cut(serve):
    server = serve(failing(Answer({"error": "x" * 10**6}, 400), on={1}))
    assert len(str(ask(client(server.url), [0, 1])[1])) < 400


def elapsed(serve, answer, **limits):
    server = serve(failing(answer, on={0}, times=1))
    started = time.monotonic()
    assert ask(client(server.url, **limits), [0]) == [0]
    return time.monotonic() - started


def test_retry_after_is_heeded_up_to_a_limit(serve):
    def after(text):
        return Answer(b"", 429, {"Retry-After": text})

    assert elapsed(serve, after("1"), backoff=0.0, longest_wait=30.0) >= 1.0
    assert elapsed(serve, after("3600"), longest_wait=0.2) >= 0.2
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert 0.2 <= elapsed(serve, after(later), longest_wait=0.2) < 20
    past = email.utils.formatdate(time.time() - 3600, usegmt=True)
    assert elapsed(serve, after(past), longest_wait=30.0) < 20


def test_the_wait_doubles_with_jitter_up_to_a_limit():
    one = client("http://127.0.0.1:1", backoff=1.0, longest_wait=20.0)
    for attempt, most in enumerate([1, 2, 4, 8, 16, 20, 20]):
        waits = [one._wait(attempt, None) for _ in range(200)]
        assert min(most, 2.0**attempt / 2) <= min(waits) <= max(waits) <= most
        assert attempt > 4 or max(waits) - min(waits) > most / 4
    assert one._wait(10**6, None) == 20.0
    assert [one._wait(3, asked) for asked in (0.5, 15.0, 900.0)] == [0.5, 15.0, 20.0]


MISDIRECTED = [
    (401, "set the environment variable OPENAI_API_KEY"),
    (403, "set the environment variable OPENAI_API_KEY"),
    (404, "look again"),
    (405, "look again"),
    (307, "give that URL"),
]


@pytest.mark.parametrize(("status", "message"), MISDIRECTED)
def test_a_first_request_that_shows_a_wrong_address_ends_the_run(serve, status, message):
    said = {"error": {"message": "no such model"}}
    server = serve(always(Answer(said, status, {"Location": "http://127.0.0.1:1/elsewhere"})))
    with pytest.raises(InputError) as caught:
        ask(client(server.url), range(50))
    assert str(caught.value).startswith(f"{server.url}/x: HTTP {status}, no such model; ")
    assert message in str(caught.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "message"), MISDIRECTED)
def test_a_later_one_fails_alone(serve, status, message):
    server = serve(failing(Answer(b"", status), on={2}))
    one = client(server.url)
    got = ask(one, range(4))
    assert got[:2] == [0, 1]
    assert got[3] == 3
    assert message in str(got[2])
    # And where it is the first of a later call: the server has been there before.
    assert isinstance(ask(one, [2])[0], Failed)


def test_a_server_that_refuses_the_connection():
    url = f"http://127.0.0.1:{free_port()}/v1"
    started = time.monotonic()
    with pytest.raises(InputError, match=r"Connection refused.*start the server there, or give"):
        ask(client(url), range(50))
    assert time.monotonic() - started < 10


def test_an_item_that_cannot_be_sent_does_not_hide_a_wrong_address():
    one = client(f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(InputError, match="Connection refused"):
        ask(one, ["\ud800", "a"])


def test_half_a_surrogate_pair_fails_alone(serve):
    got = ask(client(serve(echo).url), ["a", "\ud800", "ü\u0301 \N{GRINNING FACE}"])
    assert (got[0], got[2]) == ("a", "ü\u0301 \N{GRINNING FACE}")
    assert "a lone surrogate" in str(got[1])


def test_a_name_that_no_machine_has(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(InputError, match=r"http://nonesuch.invalid/x: unknown host name"):
        ask(client("http://nonesuch.invalid"), [0])


def test_https_where_http_is_spoken(serve):
    url = serve(echo).url.replace("http:", "https:")
    with pytest.raises(InputError, match=r"no encrypted connection.*check whether the URL"):
        ask(client(url), [0])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:9011/v1", "is not the URL of a server; expected http://host:port/path"),
        ("ftp://localhost", "is not the URL"),
        ("http://", "is not the URL"),
        ("", "is not the URL"),
        ("http://h:99999", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("http://h/v1?x=1", "or # after its path"),
        ("http://h/v1#x", "or # after its path"),
        ("http://ho\nst/", "is not the URL|cannot be read"),
        (f"http://me:{SECRET}@h/v1", "contains a user or a password"),
        (f"http://{SECRET}@h/v1", "contains a user or a password"),
        (f"http://h/v1?key={SECRET}", "or # after its path"),
    ],
)
def test_a_url_of_no_use(url, message):
    with pytest.raises(InputError, match=message) as caught:
        client(url)
    assert SECRET not in str(caught.value)


def test_the_key_is_a_header_and_nowhere_else(serve, monkeypatch, capsys, caplog):
    """Also where the server repeats it in an error, and with logs of the lowest level."""
    monkeypatch.setenv("OPENAI_API_KEY", f" {SECRET}\n")
    caplog.set_level(logging.DEBUG)

    def behave(path, body, attempt):
        sent = server.seen[-1].headers["Authorization"]
        if body["item"] == "first":
            return Answer({"n": 0})
        return [
            Answer({"error": {"message": f"bad key: {sent}"}}, 401),
            Answer(f"<pre>{sent}</pre>".encode(), 500),
            Answer(sent.encode()),
        ][body["item"]]

    server = serve(behave)
    one = client(server.url, in_flight=1, retries=1)
    one._progress = True
    first, *rest = ask(one, ["first", 0, 1, 2])
    assert first == 0
    shown = [
        str(rest), *map(str, rest), *map(repr, rest),
        repr(one), repr(vars(one)), repr(vars(one._session)), repr(one._session.auth.__dict__),
        *capsys.readouterr(), caplog.text,
    ]  # fmt: skip
    assert {seen.headers["Authorization"] for seen in server.seen} == {f"Bearer {SECRET}"}
    assert not any(SECRET in text for text in shown)
    assert "bad key: Bearer [OPENAI_API_KEY]" in str(rest[0])
    assert "the server does not accept the key in the environment variable" in str(rest[0])

    refusing = serve(always(Answer({"error": {"message": f"not {SECRET}"}}, 401)))
    with pytest.raises(InputError) as caught:
        ask(client(refusing.url), [0])
    assert SECRET not in str(caught.value)


def test_no_key_is_sent_where_there_is_none_or_none_is_wanted(serve, monkeypatch, tmp_path):
    server = serve(echo)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    ask(client(server.url), [0])
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    ask(client(server.url, sends_key=False), [0])
    assert not any("Authorization" in seen.headers for seen in server.seen)


def test_the_key_goes_to_another_machine_by_https_only(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("NO_PROXY", "*")
    server = serve(always(Answer(b"", 401)))
    monkeypatch.setattr(http, "_is_loopback", lambda host: False)
    with pytest.raises(InputError, match="is not sent to another machine without encryption"):
        ask(client(server.url), [0])
    assert not any("Authorization" in seen.headers for seen in server.seen)
    assert client("https://h/v1")._session.auth._sends_key
    assert not client("http://h/v1")._session.auth._sends_key


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.3.2.1", True), ("::1", True),
        ("a.localhost", True), ("localhost.example", False), ("10.0.0.1", False),
        ("example.org", False),
    ],
)  # fmt: skip
def test_which_hosts_are_this_machine(host, local):
    assert http._is_loopback(host) == local


@pytest.mark.parametrize("key", ["two words", "two\nlines", "schlüssel", "a\x00b"])
def test_a_key_that_cannot_be_one(monkeypatch, key):
    monkeypatch.setattr(os, "environ", {"OPENAI_API_KEY": key})
    with pytest.raises(InputError, match="OPENAI_API_KEY") as caught:
        client("http://127.0.0.1:1")
    assert key not in str(caught.value)


def test_a_proxy_is_not_asked_for_this_machine(serve, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(client(serve(echo).url), [0]) == [0]


def test_the_rest_is_not_sent_when_all_fails(serve):
    server = serve(failing(Answer(b"", 500), on=set(range(3, 100))))
    got = ask(client(server.url, retries=0, give_up_after=5, in_flight=2), range(100))
    assert got[:3] == [0, 1, 2]
    assert all(isinstance(one, Failed) for one in got[3:])
    # The last good answer may come after four failures, and then five more are counted.
    assert len(server.seen) <= 3 + 4 + 5 + 2
    assert "not sent, since 5 requests before it failed" in str(got[-1])


def test_requests_that_are_themselves_to_blame_do_not_stop_the_others(serve):
    server = serve(failing(Answer(b"", 400), on=set(range(1, 99))))
    got = ask(client(server.url, give_up_after=5), range(100))
    assert (got[0], got[99]) == (0, 99)
    assert len(server.seen) == 100


@pytest.mark.parametrize("position", [0, 3])
def test_an_error_of_ours_is_not_hidden(serve, position):
    one = client(serve(echo).url)

    def task(item):
        return 1 // 0 if item == position else one.post("/x", {"item": item})

    with pytest.raises(ZeroDivisionError):
        one.map(task, range(6))


@pytest.mark.parametrize(
    "options",
    [
        {"in_flight": 0},
        {"retries": -1},
        {"backoff": -0.1},
        {"read_timeout": 0.0},
        {"total_timeout": 0.0},
    ],
)
def test_limits_that_make_no_sense(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Limits(**options)


def test_progress_counts_requests(serve, capsys):
    one = client(serve(echo).url)
    ask(one, range(3))
    assert capsys.readouterr().err == ""
    one._progress = True
    ask(one, range(3))
    assert "asking: 100%" in capsys.readouterr().err


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("n_items", [1, 20])
@pytest.mark.parametrize("answer", ["Answer({'n': 1}, wait=60.0)", "Answer(b'', 500)"])
def test_ctrl_c_ends_promptly(answer, n_items):
    """While an answer is waited for, and while a retry is."""
    script = f"""
        import os, signal
        from jaxscore.endpoints.http import Client, Limits
        from tests.endpoints.server import Answer, Server
        def behave(path, body, attempt):
            os.write(1, b"asked\\n")  # whole, on whatever thread
            return {answer}
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        with Server(behave) as server:
            one = Client(server.url, sends_key=False, not_found="", limits=Limits(backoff=60.0))
            one._has_sent = {n_items} > 1  # then all at once
            one.map(lambda item: one.post("/x", {{"item": item}}), range({n_items}))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        for _ in range(min(n_items, 8)):
            assert process.stdout.readline() == "asked\n"
        time.sleep(0.2)
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 5
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode != 0
