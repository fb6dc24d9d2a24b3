"""`jaxscore serve` as a user runs it: what it prints, how it ends, and what it refuses."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from jaxscore.cli import serve
from jaxscore.errors import install_extra
from jaxscore.server import lifecycle
from tests.conftest import CASES, ROOT

MODEL = str(CASES / "models/tiny-llama3")
LONG = {"prompt": "Oslo is", "max_tokens": 1000, "n": 8, "seed": 1}


class Process:
    """The command in a process of its own, on a free port."""

    def __init__(self, *flags, **environment):
        command = [sys.executable, "-m", "jaxscore", "serve", "--model", MODEL, "--port", "0"]
        self.child = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | environment,
        )
        self.line = self.child.stdout.readline()
        self.port = int(self.line.rpartition(":")[2])

    def ask(self, path, body=None, key=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        headers |= {} if key is None else {"Authorization": f"Bearer {key}"}
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def end(self):
        """Exit code, the rest of stdout, and stderr."""
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, out, err


@pytest.fixture
def process():
    """`process(*flags)`: a server, ended after the test."""
    some = []

    def begin(*flags, **environment):
        some.append(Process(*flags, **environment))
        return some[-1]

    yield begin
    for one in some:
        one.child.kill()
        one.child.communicate()


def test_the_file_of_flags(process):
    one = process("--config", str(ROOT / "configs/serve.yaml"))
    assert one.ask("/health")[0] == 200
    one.child.send_signal(signal.SIGINT)
    assert one.end()[0] == 0


def test_it_answers_and_drains(process):
    """A request in flight is answered after the signal, and the process ends well."""
    key = "a-key-that-nobody-may-see"
    one = process(JAXSCORE_API_KEY=key)
    assert one.line == f"listening on http://127.0.0.1:{one.port}\n"
    assert one.ask("/health")[0] == 200
    assert one.ask("/v1/models")[0] == 401
    assert json.loads(one.ask("/v1/models", key=key)[1])["data"][0]["id"] == "tiny-llama3"
    answers = []
    body = {**LONG, "max_tokens": 60}
    thread = threading.Thread(
        target=lambda: answers.append(one.ask("/v1/completions", body, key=key))
    )
    thread.start()
    until = time.monotonic() + 30
    while b"jaxscore_queue_prompts 0.0" in one.ask("/metrics", key=key)[1]:
        assert time.monotonic() < until
        time.sleep(0.01)
    one.child.send_signal(signal.SIGTERM)
    thread.join(60)
    code, out, err = one.end()
    assert (code, out) == (0, "")
    [(status, answer)] = answers
    assert (status, len(json.loads(answer)["choices"])) == (200, 8)
    assert key not in err + out
    assert "POST /v1/completions 200" in err
    assert "GET other 401" in err


@pytest.mark.slow
def test_a_second_signal_ends_at_once(process):
    one = process("--quiet")
    thread = threading.Thread(target=quietly, args=(one, LONG))
    thread.start()
    while b"jaxscore_queue_prompts 0.0" in one.ask("/metrics")[1]:
        time.sleep(0.01)
    one.child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert one.child.poll() is None  # the first one waits for what is in flight
    one.child.send_signal(signal.SIGINT)
    code, out, err = one.end()
    thread.join(60)
    assert (code, out, err) == (130, "", "")


def quietly(one, body):
    try:
        one.ask("/v1/completions", body)
    except (OSError, http.client.HTTPException):  # the server has left
        return


def test_a_port_in_use(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("serve", "--model", MODEL, "--port", port)
    assert (code, out) == (2, "")
    assert f"--port {port}: cannot be used (Address already in use); give another one" in err


def test_no_such_model(run, tmp_path):
    code, out, err = run("serve", "--model", tmp_path / "none", "--port", 0)
    assert (code, out) == (2, "")
    assert "none" in err


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_this_machine_without_a_key(run, monkeypatch, host):
    for value in (None, ""):
        monkeypatch.delenv(serve.KEY, raising=False)
        if value is not None:
            monkeypatch.setenv(serve.KEY, value)
        code, out, err = run("serve", "--model", MODEL, "--host", host)
        assert (code, out) == (2, "")
        assert f"--host {host}: other machines can connect, and {serve.KEY} is not set" in err


def test_clients_may_name_the_address_that_is_listened_at(run, monkeypatch):
    """An address such as 127.8.8.8 is of this machine, and none of the names that all have."""
    here, found = lifecycle.resolve("127.0.0.1", 0), []
    real = lifecycle.listen
    monkeypatch.setattr(lifecycle, "listen", lambda address: real(here))
    monkeypatch.setattr(lifecycle, "run", lambda service, *_, **__: found.append(service))
    assert run("serve", "--model", MODEL, "--host", "127.8.8.8")[0] == 0
    assert "127.8.8.8" in found[0].settings.allowed_hosts


def test_a_key_that_no_header_can_carry(run, monkeypatch):
    monkeypatch.setenv(serve.KEY, "two words")
    code, _, err = run("serve", "--model", MODEL)
    assert code == 2
    assert serve.KEY in err
    assert "two words" not in err


@pytest.mark.parametrize("package", serve.PACKAGES)
def test_without_its_packages(run, monkeypatch, package):
    real = serve.importlib.util.find_spec
    monkeypatch.setattr(
        serve.importlib.util, "find_spec", lambda name: None if name == package else real(name)
    )
    code, out, err = run("serve", "--model", MODEL)
    assert (code, out) == (2, "")
    assert f"{package}: not installed" in err
    assert install_extra("serve") in err


@pytest.mark.parametrize(("text", "size"), [("100000", 100_000), ("1kB", 1000)])
def test_the_largest_body_is_bytes_or_has_a_unit(run, monkeypatch, text, size):
    found = []
    monkeypatch.setattr(lifecycle, "run", lambda service, *_, **__: found.append(service))
    assert run("serve", "--model", MODEL, "--port", "0", "--max-body", text)[0] == 0
    assert found[0].settings.max_body == size


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "-1"), ("--port", "65536"), ("--port", "http"), ("--gather", "5"),
        ("--gather", "5 weeks"), ("--gather", "-5ms"), ("--max-body", "0"), ("--max-body", "big"),
        ("--max-logprobs", "21"), ("--max-logprobs", "-1"), ("--window-tokens", "0"),
        ("--served-model-name", "a,,b"), ("--allowed-hosts", ""), ("--request-timeout", "0s"),
        ("--receive-timeout", "nan"), ("--journal", "x"), ("--truncate", "left"),
    ],
)  # fmt: skip
def test_flags_that_are_refused(run, flag, value):
    code, out, err = run("serve", "--model", MODEL, flag, value)
    assert (code, out) == (2, "")
    assert flag in err


def test_a_chat_template_that_cannot_be_read(run, tmp_path):
    code, _, err = run("serve", "--model", MODEL, "--chat-template", tmp_path / "none.jinja")
    assert code == 2
    assert "none.jinja" in err
