"""What happens to requests while others wait, fail, are cancelled or take too long."""

import asyncio
import contextlib
import dataclasses
import threading
import time

import numpy as np
import orjson
import pytest

from jaxscore.engine.generation import slots
from jaxscore.engine.generation.slots import SlotTable
from jaxscore.plan import decode_slots
from jaxscore.server import Settings, choices
from jaxscore.server.scheduler import GenerationJob, every_token, next_token, run_pieces
from jaxscore.server.worker import Metrics, Worker
from jaxscore.types.requests import GenerationRequest, Request
from jaxscore.types.results import Generated
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
            await until(lambda: served.service.worker.scheduler.n_prompts == 9)
            gate.open.set()
            return await asyncio.gather(first, *others)

    answers = asyncio.run(several())
    assert [one.status_code for one in answers] == [200] * 9
    assert [len(one) for one in gate.windows] == [1, 8]
    assert served.service.worker.scheduler.n_tokens == 0


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
            await until(lambda: served.service.worker.scheduler.n_prompts == 101)
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
    counts = [1, 0]  # programs compiled in the first and in the second window
    monkeypatch.setattr(worker, "_count_programs", lambda: counts.pop(0))
    for _ in range(2):
        assert served.ask(PATH, prompt(0)).status_code == 200
    deadline = time.monotonic() + 30
    while counts or not seen:  # after the answer
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [(n_tokens, seconds)] = seen
    assert n_tokens > 0 < seconds


def test_a_client_that_goes_away_drops_its_work(served, gate):
    gate.hold()

    async def one():
        async with served.client() as client:
            first = asyncio.ensure_future(client.post(PATH, json=prompt(0)))
            await asyncio.to_thread(gate.entered.wait, 60)
            second = asyncio.ensure_future(gone(served, prompt(1)))
            backlog = served.service.worker.scheduler
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
        await until(lambda: served.service.worker.scheduler.n_prompts == 4)
        await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(lambda: served.service.worker.scheduler.n_prompts == 0)

    started = time.monotonic()
    asyncio.run(one())
    assert served.ask(PATH, prompt(0)).status_code == 200
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_long_texts_do_not_delay_scoring(served):
    """A window has its turn between two blocks of steps, and no number depends on that."""
    body = {"prompt": "Oslo is", "max_tokens": 300, "n": 4, "seed": 1}
    backlog = served.service.worker.scheduler

    async def both():
        async with served.client() as client:
            writing = asyncio.ensure_future(client.post(PATH, json=body))
            await until(lambda: backlog.n_prompts == 4 and not backlog._generation)  # in work
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
    reported = []
    request = GenerationRequest(0, np.array([5, 6], np.int32), 100, 1.0, seed=1)

    async def write():
        return await served.service.generate([request], lambda place, found: reported.append(found))

    [text] = asyncio.run(write())
    *blocks, whole = reported
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
    assert served.service.worker.scheduler.n_prompts == 0
    gate.open.set()


def test_a_stream_that_takes_too_long_says_so_in_its_last_part(served, monkeypatch):
    async def parts(*args):
        yield 0, "a", [5], None
        await asyncio.sleep(60)

    settings = dataclasses.replace(served.service.settings, request_timeout=0.2)
    monkeypatch.setattr(served.service, "settings", settings)
    monkeypatch.setattr(choices, "stream_texts", parts)
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
    served.service.is_ending = True
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
    assert one.keys() == {
        *("id", "object", "created", "owned_by", "max_model_len", "max_logprobs", "reproducible")
    }
    assert (one["max_model_len"], one["max_logprobs"], one["reproducible"]) == (1024, 20, False)
    refused(served.ask("/v1/models/org/other"), 404, code="model_not_found")


def test_the_log_has_patterns_and_no_paths(served):
    served.log.clear()
    served.ask("/v1/models/some-secret", headers={"Authorization": "Bearer secret"})
    served.ask("/secret?secret=1")
    assert served.log == [("GET", "/v1/models/{id:path}", 404), ("GET", "other", 404)]


def unstarted(scorer):
    """A worker whose thread does not run."""
    return Worker(scorer, Settings(names=("tiny",)), Metrics())


class FailsOnce:
    """A generator that shows each text's first ids, fails, and writes well after that."""

    def __init__(self):
        self.groups = []

    def stream(self, requests, *, watch):
        self.groups.append([one.id for one in requests])
        for place in range(len(requests)):
            watch(place, [5, 6], False)
        if len(self.groups) == 1:
            raise RuntimeError("planned")
        for place, one in enumerate(requests):
            yield place, Generated(one.id, "text", np.array([5, 6, 7], np.int32), "length")


@pytest.mark.parametrize("n_new", [[4] * 9, [4, 40, 3, 9, 17, 4, 4, 21, 2]])
def test_other_work_has_its_turn_in_each_block(scorer, monkeypatch, n_new):
    """Also where no text of a block was there in the block before."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 2))
    monkeypatch.setattr(slots, "STEPS", 4)
    blocks, turns, block = [], [], SlotTable._decode_block

    def counted(self, everything):
        blocks.append(len(self._running))
        return block(self, everything)

    monkeypatch.setattr(SlotTable, "_decode_block", counted)
    ids = np.array([3, 4], np.int32)
    job = GenerationJob([GenerationRequest(k, ids, n, 1.0, seed=k) for k, n in enumerate(n_new)])
    worker = unstarted(scorer)
    monkeypatch.setattr(worker, "_run_window_between_blocks", lambda: turns.append(len(blocks)))
    run_pieces([(job, k) for k in range(len(n_new))], worker._generate)
    assert [len(text.token_ids) for text in job.answer.result(0)] == n_new
    assert turns == list(range(1, len(blocks) + 1))


def test_a_text_is_not_sent_twice(scorer, capfd):
    """The client that has a part gets an error, and the other one its text."""
    reported = []
    request = GenerationRequest("read along", np.array([3], np.int32), 3)
    read_along = GenerationJob([request], lambda place, written: reported.append(written))
    silent = GenerationJob([GenerationRequest("silent", np.array([4], np.int32), 3)])
    worker = unstarted(scorer)
    worker._generator = generator = FailsOnce()
    run_pieces([(read_along, 0), (silent, 0)], worker._generate)
    assert reported == [[5, 6]]
    with pytest.raises(RuntimeError, match="partly sent"):
        read_along.answer.result(0)
    [written] = silent.answer.result(0)
    assert written.text == "text"
    assert generator.groups == [["read along", "silent"], ["silent"]]
    assert "partly sent" in capfd.readouterr().err


COMPLETIONS = "/v1/completions"
CLIENTS = 200
PREFIX = "Answer the question about towns in one word. " * 8


def prefixed_texts(n):
    return [f"{PREFIX}Question {k} of {n}: is it Oslo or {k * 7919 % 1000}?" for k in range(n)]


def test_answers_and_the_work_that_they_take(start):
    served = start(gather=1.0)
    given, scorer = prefixed_texts(CLIENTS), served.scorer
    before = scorer.statistics.tokens_laid_out
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    answers = served.ask_all([(COMPLETIONS, {"prompt": one, **body}) for one in given])
    n_computed = scorer.statistics.tokens_laid_out - before
    wanted = scorer.score([Request(k, "", one) for k, one in enumerate(given)])
    for answer, one in zip(answers, wanted, strict=True):
        found = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        np.testing.assert_allclose(found[1:-1], one.logprob, atol=1e-5)
    prompts = scorer.encoder.prompt_ids(given)
    before = scorer.statistics.tokens_laid_out
    scorer.engine.score_sequences(
        [one for ids in prompts for one in (every_token(ids), next_token(ids))], top=1
    )
    assert n_computed <= 1.1 * (scorer.statistics.tokens_laid_out - before)
    assert sum(map(len, prompts)) > 3 * n_computed


@pytest.mark.slow
def test_mixed_requests_at_once(served):
    """Each one is answered as it is alone, also where a window has several numbers of tokens."""
    score = {"requests": [{"context": "Oslo is in", "continuation": " Norway"}]}
    label = {"requests": [{"prompt": "Is it?", "labels": ["A", "B"]}]}
    some = [
        (COMPLETIONS, {"prompt": "Oslo is in", "max_tokens": 0, "echo": True, "logprobs": 5}),
        (COMPLETIONS, {"prompt": "Oslo is", "max_tokens": 1, "temperature": 0, "logprobs": 20}),
        (COMPLETIONS, {"prompt": "Oslo", "max_tokens": 9, "temperature": 0, "logprobs": 1}),
        (COMPLETIONS, {"prompt": "Oslo is", "max_tokens": 0, "echo": True, "logprobs": 0}),
        ("/jaxscore/score", score),
        ("/jaxscore/label", label),
        (COMPLETIONS, {"prompt": [], "max_tokens": 0}),
        ("/tokenize", {"prompt": "Oslo"}),
    ]
    together = served.ask_all(some * 5)
    for (path, body), answer in zip(some * 5, together, strict=True):
        alone = served.ask(path, body)
        assert answer.status_code == alone.status_code
        same(answer.json(), alone.json())


def same(found, wanted):
    """Equal but for names of answers and rounding."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            if name not in ("id", "created", "tokens_computed"):
                same(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, float):
        # nats to 1e-4; a perplexity is their exponential, so it moves in proportion to itself
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    else:
        assert found == wanted
