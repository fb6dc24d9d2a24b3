"""`POST /jaxscore/score` and `/jaxscore/label`: this package's own requests over HTTP.

A body is one object with a list of requests, or a request in each line (NDJSON). Answers are the
lines that `jaxscore score` writes. Lines are answered as they are finished, in order, so that
neither side holds them all.
"""

import asyncio
import functools
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from jaxscore.io.json_output import json_line
from jaxscore.plan.requests import SequenceScores
from jaxscore.server import json_body, scoring_items
from jaxscore.server.calls import NDJSON, Answer, Call, Stream
from jaxscore.server.errors import ApiError, refused
from jaxscore.server.fields import Field, flag, is_string, one_of, read
from jaxscore.server.jobs import ScoringJob
from jaxscore.server.scoring_items import Batch
from jaxscore.server.service import Service
from jaxscore.server.settings import MOST_PROMPTS
from jaxscore.systems.score.evaluation import BOUNDARIES

TOGETHER = 1024  # lines that are scored together
MOST_BLANK = 1000  # blank lines in a row; each takes a microsecond, and a body has millions
AHEAD = 2  # such batches that wait or are in work
MOMENT = 0.1  # seconds after which a full queue is looked at again
WORDS = {"true": True, "false": False}

# (service, items, position of the first one, fields) -> the items to score
Prepare = Callable[[Service, Sequence[Any], int, Mapping[str, Any]], Batch]
Ready = Callable[[Sequence[Any], int], Awaitable[Batch]]  # the same, all but items and position

MODEL = {"model": Field("a name that /v1/models tells", is_string)}
REQUESTS = Field(
    f"a list of 1 to {MOST_PROMPTS} requests; send more as {NDJSON}, one in each line",
    lambda value: isinstance(value, list) and 0 < len(value) <= MOST_PROMPTS,
    required=True,
)
SCORE: Mapping[str, Field] = {
    **MODEL,
    "boundary": one_of(*BOUNDARIES, default="joint"),
    "truncate": one_of("left"),
    "special_tokens": flag(True),
    "summary_only": flag(),
}
LABEL: Mapping[str, Field] = {**MODEL, "truncate": one_of("left")}


async def score(call: Call) -> Answer | Stream:
    """Log-probability, entropy and self-certainty of continuations."""
    return await _answer(call, SCORE, scoring_items.scoring)


async def label(call: Call) -> Answer | Stream:
    """The next-token distribution over a few labels."""
    return await _answer(call, LABEL, scoring_items.labels)


async def _answer(call: Call, fields: Mapping[str, Field], prepare: Prepare) -> Answer | Stream:
    service = call.service
    in_lines = call.content_type == NDJSON
    if in_lines:
        asked = read({name: WORDS.get(text, text) for name, text in call.query.items()}, fields)
        items: Iterator[Any] = _lines(call.body)
    else:
        if call.query:
            name = next(iter(call.query))
            raise refused(name, f"{name} is in the query; of a body in JSON it is a field")
        size = len(call.body)
        body = await service.apart(size, functools.partial(json_body.parse, call.body))
        asked = read(body, {**fields, "requests": REQUESTS})
        items = iter(asked["requests"])
    service.check_model(asked["model"])
    ready = functools.partial(_prepared, service, len(call.body), prepare, asked)
    if in_lines or NDJSON in call.headers.get("accept", ""):
        records = _records(service, len(call.body), items, ready)
        return Stream(records, NDJSON, lambda error: error + b"\n")
    one = await _encoded(service, list(items), 1, ready)
    service.worker.add(one.job)
    lines = await _finished(service, one)
    model = orjson.dumps(asked["model"] or service.settings.names[0])
    usage = orjson.dumps({"tokens_given": one.n_input_tokens, "tokens_computed": one.job.added})
    results = b",".join(line.rstrip() for line in lines)
    return Answer(b'{"model":%b,"results":[%b],"usage":%b}' % (model, results, usage))


class _Encoded(NamedTuple):
    """Items that the worker can score."""

    batch: Batch
    job: ScoringJob

    @property
    def n_input_tokens(self) -> int:
        """Tokens of all items, those that they share counted each time."""
        return sum(one.n_input_tokens for item in self.batch.prepared for one in item.sequences)


async def _records(
    service: Service, size: int, items: Iterator[Any], ready: Ready
) -> AsyncGenerator[bytes, None]:
    """A line for each item, in order.

    Args:
        size: bytes of the body that `items` are read from, some at a time.

    Raises:
        ApiError: as the first items have it, 429 where too much waits already; later ones wait.
    """
    waiting: deque[_Encoded] = deque()
    first = 1
    try:
        while True:
            some = await service.apart(size, lambda: list(itertools.islice(items, TOGETHER)))
            if some:
                one = await _encoded(service, some, first, ready)
                while not _added(service, one.job, waits=first > 1):
                    if waiting:
                        yield b"".join(await _finished(service, waiting.popleft()))
                    else:
                        await asyncio.sleep(MOMENT)
                waiting.append(one)
                first += len(some)
            while waiting and (not some or len(waiting) >= AHEAD):
                yield b"".join(await _finished(service, waiting.popleft()))
            if not some:
                break
    finally:
        for one in waiting:
            one.job.answer.cancel()
    if first == 1:
        raise ApiError(400, "the body has no lines, expected a request in each")


async def _prepared(
    service: Service,
    size: int,
    prepare: Prepare,
    asked: Mapping[str, Any],
    items: Sequence[Any],
    first: int,
) -> Batch:
    return await service.apart(size, lambda: prepare(service, items, first, asked))


async def _encoded(service: Service, items: list[Any], first: int, ready: Ready) -> _Encoded:
    batch = await ready(items, first)
    job = await service.scoring_job([item.sequences for item in batch.prepared if item.sequences])
    return _Encoded(batch, job)


def _added(service: Service, job: ScoringJob, *, waits: bool) -> bool:
    """Hand a job to the worker.

    Returns:
        Whether it was taken.

    Raises:
        ApiError: 429, too much waits already, and this request does not wait for room.
    """
    try:
        service.worker.add(job)
    except ApiError as problem:
        if problem.status != 429 or not waits:
            raise
        return False
    return True


async def _finished(service: Service, one: _Encoded) -> list[bytes]:
    """The items' lines, when their scores are there."""
    found: list[list[SequenceScores]] = await asyncio.wrap_future(one.job.answer)
    flat = [scores for piece in found for scores in piece]
    size = 100 * sum(len(scores.logprob) for scores in flat)
    return await service.apart(size, lambda: [json_line(line) for line in one.batch.records(flat)])


def _lines(raw: bytes) -> Iterator[Any]:
    """The objects of a body, one in each line that is not blank.

    Raises:
        ApiError: 400, a line is none, or too many are blank.
    """
    start = number = n_blank = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        end = len(raw) if end < 0 else end
        line, start, number = raw[start:end].strip(), end + 1, number + 1
        if line:
            n_blank = 0
            yield json_body.parse(line, f"line {number}")
            continue
        n_blank += 1
        if n_blank > MOST_BLANK:
            raise ApiError(
                400,
                f"line {number} ends more than {MOST_BLANK} blank lines in a row, expected a "
                "request in each line; leave blank lines out",
            )
