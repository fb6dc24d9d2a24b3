"""What happens to requests while others wait, fail, are cancelled or take too long."""

import asyncio
import contextlib
import dataclasses
import threading
import time

import numpy as np
import orjson
import pytest

from jaxscore.server import live
from jaxscore.types.requests import GenerationRequest
from tests.server.conftest import Served, refused

PATH = "/v1/completions"
ECHO = {"max_tokens": 0, "echo": True, "logprobs": 0}


class Gate:
    """Holds the engine from `hold` until it is opened, and keeps its windows."""

    def __init__(self, engine, monkeypatch):
        self.open, self.entered, self.windows = threading.Event(), threading.Event(), []
        self.open.set()
        real = engine.run

        def run(windows, **options):
            some = list(windows)
            self.windows += some
            self.entered.set()
            assert self.open.wait(60)
            return real(iter(some), **options)

        monkeypatch.setattr(engine, "run", run)

    def hold(self):
        self.open.clear()
        self.entered.clear()
        self.windows.clear()


@pytest.fixture
def gate(scorer, monkeypatch):
    one = Gate(scorer.engine, monkeypatch)
    yield one
    one.open.set()


async def until(condition):
    """Wait for something that another thread does."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


def prompt(k):
    return {"prompt": f"Oslo {k} is in Norway", **ECHO}


def test_what_arrives_while_the_device_works_is_one_window(served, gate):
    gate.hold()

    async def several():
        async with served.client() as client:
            first = asyncio.ensure_future(client.post(PATH, json=prompt(0)))
            await asyncio.to_thread(gate.entered.wait, 60)
            others = [asyncio.ensure_future(client.post(PATH, json=prompt(k))) for k in range(1, 9)]
            await until(lambda: served.service.worker.backlog.n_prompts == 9)
            gate.open.set()
            return await asyncio.gather(first, *others)

    answers = asyncio.run(several())
    assert [one.status_code for one in answers] == [200] * 9
    assert [len(one) for one in gate.windows] == [1, 8]
    assert served.service.worker.backlog.n_tokens == 0


def test_a_small_request_waits_for_a_tenth_of_a_second_of_a_large_one(start, gate, monkeypatch):
    """On a device that takes 0.05 ms for a token, and so 0.3 s for the large one."""
    served = start()
    real = served.scorer.engine.run

    def run(windows, **options):
        some = list(windows)
        time.sleep(5e-5 * sum(len(one.ids) for one in some[0]))
        return real(iter(some), **options)

    monkeypatch.setattr(served.scorer.engine, "run", run)
    # No two share a token, so that a window has all of its tokens.
    large = {"prompt": [[k] + [k % 7 + 5] * 59 for k in range(20, 120)], **ECHO}
    small = {"prompt": [5, 6, 7], **ECHO}
    for _ in range(2):  # the first one compiles
        assert served.ask(PATH, large).status_code == 200
    gate.hold()

    async def both():
        async with served.client() as client:
            first = asyncio.ensure_future(client.post(PATH, json=large))
            await asyncio.to_thread(gate.entered.wait, 60)
            second = asyncio.ensure_future(client.post(PATH, json=small))
            await until(lambda: served.service.worker.backlog.n_prompts == 101)
            gate.open.set()
            await second
            n_windows = len(gate.windows)
            return n_windows, (await first).status_code

    n_windows, status = asyncio.run(both())
    assert (n_windows <= 3, status) == (True, 200)
    assert any(one.ids.tolist() == small["prompt"] for one in gate.windows[1])
    assert max(sum(len(one.ids) for one in window) for window in gate.windows) <= 2100


def test_a_window_that_compiled_a_program_teaches_no_size(start, monkeypatch):
    served, seen = start(), []
    worker = served.service.worker
    monkeypatch.setattr(worker._window_size, "observe", lambda *given: seen.append(given))
    for n_new in (1, 0):
        monkeypatch.setattr(worker, "_count_programs", lambda n=n_new: n)
        assert served.ask(PATH, prompt(0)).status_code == 200
    [(n_tokens, seconds)] = seen
    assert n_tokens > 0 < seconds


def test_a_client_that_goes_away_drops_its_work(served, gate):
    gate.hold()

    async def one():
        async with served.client() as client:
            first = asyncio.ensure_future(client.post(PATH, json=prompt(0)))
            await asyncio.to_thread(gate.entered.wait, 60)
            second = asyncio.ensure_future(gone(served, prompt(1)))
            backlog = served.service.worker.backlog
            await until(lambda: backlog.n_prompts == 2)
            second.cancel()
            await until(lambda: backlog.n_prompts == 1)
            gate.open.set()
            return (await first).status_code

    cancelled = counted(served, "jaxscore_requests_cancelled_total")
    assert asyncio.run(one()) == 200
    assert len(gate.windows) == 1
    assert counted(served, "jaxscore_requests_cancelled_total") == cancelled + 1


async def gone(served, body):
    """A request whose client hangs up when this is cancelled."""
    raw, hung_up = orjson.dumps(body), asyncio.Event()
    messages = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        assert body.get("stream"), "nobody reads it"

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers}
    scope |= {"query_string": b"", "root_path": ""}
    task = asyncio.ensure_future(served.app(scope, receive, send))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        hung_up.set()
        await task


def counted(served, name, **labels):
    """A counter as /metrics tells it."""
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    line = f"{name}{{{shown}}} " if shown else f"{name} "
    text = served.ask("/metrics").text
    return sum(float(one[len(line) :]) for one in text.splitlines() if one.startswith(line))


@pytest.mark.parametrize("stream", [False, True])
def test_writing_stops_when_its_client_goes_away(served, stream):
    """It is looked at between blocks of steps."""

    async def one():
        body = {"prompt": "Oslo is", "max_tokens": 1000, "n": 4, "stream": stream, "seed": 1}
        task = asyncio.ensure_future(gone(served, body))
        await until(lambda: served.service.worker.backlog.n_prompts == 4)
        await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: served.service.worker.backlog.n_prompts == 0)

    started = time.monotonic()
    asyncio.run(one())
    assert served.ask(PATH, prompt(0)).status_code == 200
    assert time.monotonic() - started < 60


def test_long_texts_do_not_delay_scoring(served):
    """A window has its turn between two blocks of steps, and no number depends on that."""
    body = {"prompt": "Oslo is", "max_tokens": 1000, "n": 4, "seed": 1}
    backlog = served.service.worker.backlog

    async def both():
        async with served.client() as client:
            writing = asyncio.ensure_future(client.post(PATH, json=body))
            await until(lambda: backlog.n_prompts == 4 and not backlog._writing)  # in work
            scored = await client.post(PATH, json=prompt(0))
            assert not writing.done()
            return scored, await writing

    scored, written = asyncio.run(both())
    assert written.json()["choices"] == served.ask(PATH, body).json()["choices"]
    found = scored.json()["choices"][0]["logprobs"]["token_logprobs"][1:]
    [wanted] = served.scorer.score([prompt(0)["prompt"]])
    np.testing.assert_allclose(found, wanted.logprob, atol=1e-5)


def test_a_stream_is_told_of_each_token_once(served):
    """A queue of all tokens so far, for each block, grows with the square of the text."""
    told = []
    request = GenerationRequest(0, np.array([5, 6], np.int32), 100, 1.0, seed=1)

    async def write():
        return await served.service.write([request], lambda place, found: told.append(found))

    [text] = asyncio.run(write())
    *blocks, whole = told
    assert whole is text
    assert len(blocks) == 3
    assert [id for block in blocks for id in block] == text.token_ids[:96].tolist()


def test_too_much_waits(start, gate):
    served = start(max_queue_tokens=10)

    gate.hold()

    async def several():
        async with served.client() as client:
            first = asyncio.ensure_future(client.post(PATH, json=prompt(0)))
            await asyncio.to_thread(gate.entered.wait, 60)
            second = await client.post(PATH, json=prompt(1))
            gate.open.set()
            return await first, second

    first, second = asyncio.run(several())
    assert first.status_code == 200
    error = refused(second, 429, type="rate_limit_error", code="queue_full")
    assert second.headers["retry-after"] == "5"
    assert "10" in error["message"]


def test_a_request_that_takes_too_long(served, gate, monkeypatch):
    gate.hold()
    settings = dataclasses.replace(served.service.settings, request_timeout=0.2)
    monkeypatch.setattr(served.service, "settings", settings)
    error = refused(served.ask(PATH, prompt(0)), 503, code="timeout", type="server_error")
    assert "0.2 seconds" in error["message"]
    assert served.service.worker.backlog.n_prompts == 0
    gate.open.set()


def test_a_stream_that_takes_too_long_says_so_in_its_last_part(served, monkeypatch):
    async def parts(*args):
        yield live.Part(0, "a", None)
        await asyncio.sleep(60)

    settings = dataclasses.replace(served.service.settings, request_timeout=0.2)
    monkeypatch.setattr(served.service, "settings", settings)
    monkeypatch.setattr(live, "parts", parts)
    text = served.ask(PATH, {"prompt": "Oslo is", "max_tokens": 9, "stream": True}).text
    first, error, done = [one for one in text.split("\n\n") if one]
    assert '"text":"a"' in first
    assert '"code":"timeout"' in error
    assert done == "data: [DONE]"


def test_of_a_window_that_fails_each_request_is_tried_alone(served, monkeypatch, capfd):
    real, failing = served.scorer.engine.run, "7"
    bad = served.scorer.encoder.prompt_ids([prompt(failing)["prompt"]])[0].tolist()

    def run(windows, **options):
        some = list(windows)
        if any(one.ids.tolist() == bad for one in some[0]):
            raise RuntimeError("planned")
        return real(iter(some), **options)

    monkeypatch.setattr(served.scorer.engine, "run", run)
    answers = served.ask_all([(PATH, prompt(k)) for k in (1, failing, 2)])
    assert [one.status_code for one in answers] == [200, 500, 200]
    error = refused(answers[1], 500, code="internal", type="server_error")
    assert "planned" not in error["message"]
    assert "planned" in capfd.readouterr().err
    assert served.ask("/health").status_code == 200


def test_a_worker_that_has_died(start, monkeypatch, capfd):
    served = start()

    class Death(BaseException):
        pass

    def run(*args, **options):
        raise Death

    monkeypatch.setattr(served.scorer.engine, "run", run)
    refused(served.ask(PATH, prompt(0)), 500)
    assert served.service.worker.stop(60)
    refused(served.ask("/health"), 503, code="dead")
    refused(served.ask(PATH, prompt(0)), 503, code="ending")


def test_health_before_and_at_the_end(start):
    served = start()
    assert served.ask("/health").json() == {"status": "ready"}
    served.service.ending = True
    refused(served.ask("/health"), 503, code="ending")


def test_health_while_the_model_warms_up(scorer):
    refused(Served(scorer, runs=False).ask("/health"), 503, code="starting")


def test_metrics(served):
    labels = {"endpoint": PATH, "code": "200"}
    names = ("prompts", "tokens_given", "tokens_computed", "tokens_generated")
    before = [counted(served, f"jaxscore_{name}_total") for name in names]
    answered = counted(served, "jaxscore_requests_total", **{k: labels[k] for k in sorted(labels)})
    body = {"prompt": ["Oslo is in Norway"] * 3, **ECHO}
    assert served.ask(PATH, body).status_code == 200
    served.ask(PATH, {"prompt": "Oslo is", "max_tokens": 2, "stop": "zzz"})
    served.ask("/nowhere/with/users/text")
    after = [counted(served, f"jaxscore_{name}_total") for name in names]
    n_prompts, n_given, n_computed, n_generated = (
        b - a for a, b in zip(before, after, strict=True)
    )
    assert n_prompts == 4
    assert n_generated == 2
    assert n_given >= 3 * 10 > n_computed > 0  # three alike are computed once
    text = served.ask("/metrics").text
    assert counted(served, "jaxscore_requests_total", **labels) == answered + 2
    assert 'jaxscore_requests_total{code="404",endpoint="other"}' in text
    assert "users" not in text
    assert counted(served, "jaxscore_queue_prompts") == 0
    for name in ("request_seconds", "window_seconds", "window_prompts"):
        assert f"jaxscore_{name}_bucket" in text
    assert counted(served, "jaxscore_programs_compiled_total") > 0


def test_models(served):
    listed = served.ask("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["tiny", "alias"]
    one = served.ask("/v1/models/tiny").json()
    assert one == listed["data"][0]
    assert one.keys() == {"id", "object", "created", "owned_by", "max_model_len", "reproducible"}
    assert (one["max_model_len"], one["reproducible"]) == (1024, False)
    refused(served.ask("/v1/models/org/other"), 404, code="model_not_found")


def test_the_log_has_patterns_and_no_paths(served):
    served.log.clear()
    served.ask("/v1/models/some-secret", headers={"Authorization": "Bearer secret"})
    served.ask("/secret?secret=1")
    assert served.log == [("GET", "/v1/models/{id:path}", 404), ("GET", "other", 404)]
