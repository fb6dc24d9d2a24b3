"""`POST /jaxscore/score` and `/jaxscore/label`: requests in jaxscore's format over HTTP.

A body is one object with a list of requests, or has a request per line (NDJSON). Results are the
lines that `jaxscore score` writes. Lines are read and answered in batches, in order, so that
neither side holds all of them. A request that cannot be scored gets an error, and the others get
their results.
"""

import asyncio
import dataclasses
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, TOO_DEEP, nests_beyond
from jaxscore.io.json_output import json_line
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.server import MAX_NUMBERS, ApiError, invalid_field
from jaxscore.server.endpoint import Answer, Call, Stream
from jaxscore.server.request_models import (
    NDJSON,
    LabelBody,
    LabelOptions,
    ScoreBody,
    ScoreOptions,
    describe_value,
    parse_object,
    validate,
)
from jaxscore.server.scheduler import ScoringJob
from jaxscore.server.service import Service
from jaxscore.shell.conversations import Conversation, ConversationSettings
from jaxscore.systems.score import read_object, record_of
from jaxscore.systems.score.measures import MEASURES
from jaxscore.text import chat_template
from jaxscore.text.result_assembly import assemble_label_scores, assemble_scores
from jaxscore.text.tokenize_requests import TokenizedRequest
from jaxscore.types.requests import LabelRequest, Request, Unusable
from jaxscore.types.results import ScoredRequest
from jaxscore.types.token_texts import characters_of

BATCH_LINES = 1024  # lines that are scored together
MAX_EMPTY = 1000  # empty lines in a row; each takes a microsecond, and a body has millions
MAX_BATCHES = 2  # batches of one request that wait or are in work
RETRY_SECONDS = 0.1  # between two tries to add to a full queue
QUERY_VALUES = {"true": True, "false": False}
MAX_DIGITS = 10  # of a number in a query
IDS = ("context_ids", "continuation_ids")


class Batch(NamedTuple):
    """Items that are scored together.

    Attributes:
        prepared: the token ids of each item.
        records: a function from the scores of all sequences to all items' records, in order.
        top_k: the number of most probable tokens per position.
        with_rank: True if each token needs its rank.
    """

    prepared: list[TokenizedRequest]
    records: Callable[[list[SequenceScores]], Iterable[dict[str, Any]]]
    top_k: int = 0
    with_rank: bool = False


# (service, items, position of the first one from 1, options) -> batch
Prepare = Callable[[Service, Sequence[Any], int, Any], Batch]


async def score(call: Call) -> Answer | Stream:
    """Compute log-probability, entropy and self-certainty of continuations."""
    return await _answer(call, ScoreOptions, ScoreBody, prepare_requests)


async def label(call: Call) -> Answer | Stream:
    """Compute the next-token distribution over a few labels."""
    return await _answer(call, LabelOptions, LabelBody, prepare_labels)


async def _answer(
    call: Call,
    options_model: type[LabelOptions],
    body_model: type[LabelBody] | type[ScoreBody],
    prepare: Prepare,
) -> Answer | Stream:
    service, size = call.service, len(call.body)
    max_logprobs = service.settings.max_logprobs
    if call.has_lines:
        query = {name: _query_value(name, text) for name, text in call.query.items()}
        options, items = validate(options_model, query, max_logprobs), parse_lines(call.body)
    else:
        if call.query:
            name = next(iter(call.query))
            raise invalid_field(
                name, f"{name} is in the query, expected it as a field of the JSON body"
            )
        body = validate(
            body_model,
            await service.run_in_thread(size, lambda: parse_object(call.body)),
            max_logprobs,
        )
        options, items = body, iter(body.requests)
    service.check_model(options.model)
    scoring = _Scoring(service, size, prepare, options)
    if call.has_lines or NDJSON in call.headers.get("accept", ""):
        return Stream(scoring.stream(items), NDJSON, lambda error: error + b"\n")
    batch, job = await scoring.prepare(list(items), 1)
    service.worker.scheduler.add(job)
    lines = await scoring.finish(batch, job)
    n_given = sum(sequence.n_input_tokens for item in batch.prepared for sequence in item.sequences)
    usage = orjson.dumps({"tokens_given": n_given, "tokens_computed": job.n_computed})
    model = orjson.dumps(options.model or service.settings.names[0])
    results = b",".join(line.rstrip() for line in lines)
    return Answer(b'{"model":%b,"results":[%b],"usage":%b}' % (model, results, usage))


def _query_value(name: str, text: str) -> Any:
    """Return the value of a query's field with its type in a JSON body."""
    if name == "top_k" and text.isascii() and text.isdigit() and len(text) < MAX_DIGITS:
        return int(text)
    return QUERY_VALUES.get(text, text)


class _Scoring:
    """Scores the items of one request.

    Attributes:
        size: the bytes of the request's body.
    """

    def __init__(self, service: Service, size: int, prepare: Prepare, options: Any) -> None:
        self._service, self._prepare, self._options = service, prepare, options
        self.size = size

    async def prepare(self, items: Sequence[Any], first: int) -> tuple[Batch, ScoringJob]:
        """Tokenize items; `first` is the position of the first one, from 1."""
        batch = await self._service.run_in_thread(
            self.size, lambda: self._prepare(self._service, items, first, self._options)
        )
        pieces = [tuple(item.sequences) for item in batch.prepared if item.sequences]
        n_tokens = sum(len(s.ids) - s.start for sequences in pieces for s in sequences)
        if batch.top_k * n_tokens > MAX_NUMBERS:
            raise invalid_field(
                "top_k",
                f"top_k is {batch.top_k} for {n_tokens} tokens, expected at most {MAX_NUMBERS} "
                "log-probabilities together; send several requests",
            )
        job = await self._service.scoring_job(pieces, batch.top_k, with_rank=batch.with_rank)
        return batch, job

    async def finish(self, batch: Batch, job: ScoringJob) -> list[bytes]:
        """Wait for the scores of a batch, and return a line per item."""
        all_scores: list[list[SequenceScores]] = await asyncio.wrap_future(job.answer)
        scores = list(itertools.chain.from_iterable(all_scores))
        size = 100 * (1 + batch.top_k) * sum(len(sequence.logprob) for sequence in scores)
        return await self._service.run_in_thread(
            size, lambda: [json_line(record) for record in batch.records(scores)]
        )

    async def stream(self, items: Iterator[Any]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of all items, in order.

        Raises:
            ApiError: the first batch is refused, 429 if too much waits already; later ones wait.
        """
        service = self._service
        waiting: deque[tuple[Batch, ScoringJob]] = deque()
        first = 1
        try:
            while True:
                batch_items = await service.run_in_thread(
                    self.size, lambda: list(itertools.islice(items, BATCH_LINES))
                )
                if batch_items:
                    batch, job = await self.prepare(batch_items, first)
                    while not self._add(job, waits=first > 1):
                        if waiting:
                            yield b"".join(await self.finish(*waiting.popleft()))
                        else:
                            await asyncio.sleep(RETRY_SECONDS)
                    waiting.append((batch, job))
                    first += len(batch_items)
                while waiting and (not batch_items or len(waiting) >= MAX_BATCHES):
                    yield b"".join(await self.finish(*waiting.popleft()))
                if not batch_items:
                    break
        finally:
            for _, job in waiting:
                job.answer.cancel()
        if first == 1:
            raise ApiError(400, "the body is empty, expected a request in each line")

    def _add(self, job: ScoringJob, *, waits: bool) -> bool:
        """Queue a job, and return True if the queue had room for it.

        Raises:
            ApiError: 429, the queue is full and the request does not wait.
        """
        try:
            self._service.worker.scheduler.add(job)
        except ApiError as error:
            if error.status != 429 or not waits:
                raise
            return False
        return True


def parse_lines(raw: bytes) -> Iterator[Any]:
    """Yield the objects of a body, one per non-empty line.

    Raises:
        ApiError: 400, a line is not an object, or too many lines are empty.
    """
    start = number = n_empty = 0
    while start < len(raw):
        end = raw.find(b"\n", start)
        end = len(raw) if end < 0 else end
        line, start, number = raw[start:end].strip(), end + 1, number + 1
        if line:
            n_empty = 0
            yield parse_object(line, f"line {number}")
            continue
        n_empty += 1
        if n_empty > MAX_EMPTY:
            raise ApiError(
                400,
                f"line {number} ends more than {MAX_EMPTY} empty lines in a row, expected a "
                "request in each line; leave empty lines out",
            )


class _IdRequest(NamedTuple):
    """A request of token ids."""

    id: str | int
    sequence: TokenSequence


class _Item(NamedTuple):
    """One item, and its further fields, which its record repeats."""

    request: Request | Unusable | _IdRequest
    extra: Mapping[str, Any]
    talk: Conversation | None = None


def prepare_requests(
    service: Service, items: Sequence[Any], first: int, options: ScoreOptions
) -> Batch:
    """Tokenize items with a context and a continuation, or messages."""
    limit = service.max_characters(truncates=options.truncate is not None)
    parsed = [_parse_item(service, item, first + k, limit, options) for k, item in enumerate(items)]
    sequences = [item.request.sequence for item in parsed if isinstance(item.request, _IdRequest)]
    of_ids = iter(service.preparer.sequences(sequences, options.truncate))
    texts = [item.request for item in parsed if not isinstance(item.request, _IdRequest)]
    of_texts = iter(
        service.preparer.texts(texts, options.boundary, options.truncate, options.special_tokens)
    )
    prepared = [
        next(of_ids if isinstance(item.request, _IdRequest) else of_texts) for item in parsed
    ]

    top_k, with_rank = options.top_k, options.rank
    if options.summary_only:
        top_k, with_rank = 0, False

    def records(scores: list[SequenceScores]) -> Iterable[dict[str, Any]]:
        # Other requests of the window may have asked for more tokens per position.
        scores = [
            s._replace(top_id=s.top_id[:, :top_k], top_logprob=s.top_logprob[:, :top_k])
            for s in scores
        ]
        window = [(item.request, ready) for item, ready in zip(parsed, prepared, strict=True)]
        results = assemble_scores(window, scores, service.encoder)  # type: ignore[arg-type]
        for item, scored in zip(parsed, results, strict=True):
            added = {} if options.summary_only else _added_fields(service, scored, options)
            if item.talk is not None and not scored.error:
                added |= item.talk.fields(scored)
            record = record_of(scored, summary_only=options.summary_only, added=added)
            if names := sorted(added.keys() & item.extra.keys()):
                record = {"error": f"has {names[0]}, a field of results; rename it"}
            yield {"id": scored.id, **record, **item.extra}

    return Batch(prepared, records, top_k, with_rank)


def _added_fields(service: Service, scored: ScoredRequest, options: ScoreOptions) -> dict[str, Any]:
    """Return the fields that `rank`, `top_k` and `texts` add to a scored text."""
    added: dict[str, Any] = {}
    for name, is_requested in (("rank", options.rank), ("top_k", options.top_k)):
        if is_requested:
            added |= MEASURES[name].compute(scored, options)  # type: ignore[arg-type]
    if options.texts:
        read_bytes = service.token_bytes.raw
        pieces = list(map(read_bytes, scored.token_ids.tolist()))
        texts: list[str | None] = [None] * len(pieces)  # None: continues the previous character
        for first, _, text in characters_of(pieces):
            texts[first] = text
        added["texts"] = texts
        if scored.top is not None:
            # Bytes of an incomplete character are written as \xE5.
            added["top_text"] = [
                [read_bytes(id).decode("utf-8", "backslashreplace") for id in ids]
                if ids[0] >= 0
                else None
                for ids in scored.top.id.tolist()
            ]
    return added


def prepare_labels(
    service: Service, items: Sequence[Any], first: int, options: LabelOptions
) -> Batch:
    """Tokenize items with a prompt and the labels that may come next."""
    limit = service.max_characters(truncates=options.truncate is not None)
    requests = [_parse_labels(service, item, first + k, limit) for k, item in enumerate(items)]
    usable = [request for request in requests if isinstance(request, LabelRequest)]
    tokenized = iter(service.preparer.labels(usable, options.truncate))
    prepared = [
        TokenizedRequest((), 0, request.error) if isinstance(request, Unusable) else next(tokenized)
        for request in requests
    ]

    def records(scores: list[SequenceScores]) -> Iterable[dict[str, Any]]:
        remaining = iter(scores)
        for item, request, ready in zip(items, requests, prepared, strict=True):
            result = assemble_label_scores(
                request.id, ready, next(remaining) if ready.sequences else None
            )
            if result.error is not None:
                yield {"id": request.id, "error": result.error}
                continue
            record = {
                "id": request.id,
                "labels": item["labels"],
                "logprob": result.logprob,
                "probability": result.probability,
                "outside": result.outside,
            }
            yield record | ({"truncated": result.truncated} if result.truncated else {})

    return Batch(prepared, records)


def _parse_item(
    service: Service, item: Any, position: int, limit: int, options: ScoreOptions
) -> _Item:
    """Parse an item of `/jaxscore/score`, whose text has at most `limit` characters."""
    where = f"request {position}"
    try:
        if nests_beyond(item, MOST_NESTED):
            raise InputError(f"{where}: {TOO_DEEP}; repeat its id instead")
        if isinstance(item, dict) and not item.keys().isdisjoint(IDS):
            return _parse_ids(service, item, position, where)
        entry = read_object(item, position, where)
        messages = entry.item.messages
        text = entry.item.context + entry.item.continuation
        if messages is not None:
            text = "".join(str(message["content"]) for message in messages)
        if problem := _too_long(service, text, limit, where):
            return _Item(Unusable(entry.id, problem), entry.extra)
        if messages is None:
            request = Request(entry.id, entry.item.context, entry.item.continuation)
            return _Item(request, entry.extra)
        talk = _conversation(service, messages, where, options)
        return _Item(dataclasses.replace(talk.request, id=entry.id), entry.extra, talk)
    except InputError as error:
        return _Item(Unusable(_item_id(item, position), str(error)), {})


def _conversation(
    service: Service, messages: Sequence[dict[str, Any]], where: str, options: ScoreOptions
) -> Conversation:
    """Render a conversation.

    Raises:
        InputError: it cannot be rendered; without the tokenizer's folder, which clients must not
            see.
    """
    settings = ConversationSettings(
        score_roles=options.score_roles, score_turn_end=options.score_turn_end
    )
    variables = getattr(options, "chat_template_kwargs", None) or {}
    tokenizer = service.encoder.tokenizer
    try:
        chat_template.check_variables(tokenizer, variables)
        return settings.conversation(service.scorer, messages, variables)
    except InputError as error:
        problem = str(error).removeprefix(f"{tokenizer.name_or_path}: ")
        raise InputError(f"{where}: {problem}") from None


def _parse_ids(service: Service, item: dict[str, Any], position: int, where: str) -> _Item:
    if texts := sorted({"context", "continuation", "messages"} & item.keys()):
        raise InputError(f"{where}: has {texts[0]} and token ids; send texts or ids, not both")
    rest = {name: value for name, value in item.items() if name not in IDS}
    entry = read_object({**rest, "continuation": ""}, position, where)
    n_ids = service.scorer.model.vocab_size
    columns: list[list[int]] = []
    for name in IDS:
        ids = item.get(name, [] if name == IDS[0] else None)
        if not isinstance(ids, list) or not all(type(id) is int for id in ids):
            actual = "missing" if name not in item else describe_value(ids)
            raise InputError(f"{where}: {name} is {actual}, expected a list of token ids")
        if (unknown := next((id for id in ids if not 0 <= id < n_ids), None)) is not None:
            raise InputError(f"{where}: {name} has {unknown}, expected ids from 0 to {n_ids - 1}")
        columns.append(ids)
    context, continuation = columns
    sequence = TokenSequence(np.array(context + continuation, np.int32), len(context))
    return _Item(_IdRequest(entry.id, sequence), entry.extra)


def _parse_labels(
    service: Service, item: Any, position: int, limit: int
) -> LabelRequest | Unusable:
    """Parse an item of `/jaxscore/label`, whose prompt has at most `limit` characters."""
    where, id = f"request {position}", _item_id(item, position)
    try:
        if not isinstance(item, dict):
            raise InputError(f"{where}: found {describe_value(item)}, expected an object")
        if unknown := sorted(item.keys() - {"id", "prompt", "labels"}):
            name = describe_value(unknown[0])
            raise InputError(f"{where}: has {name}, expected id, prompt, labels")
        prompt, labels = item.get("prompt"), item.get("labels")
        if not isinstance(prompt, str):
            raise InputError(f"{where}: prompt is {describe_value(prompt)}, expected a string")
        if not labels or not isinstance(labels, list) or not all(type(s) is str for s in labels):
            actual = describe_value(labels)
            raise InputError(f"{where}: labels is {actual}, expected a list of strings")
        longest = max(labels, key=len)
        problem = _too_long(service, prompt, limit, where)
        problem = problem or _too_long(service, longest, service.max_characters(), where)
        if problem:
            raise InputError(problem)
    except InputError as error:
        return Unusable(id, str(error))
    try:
        return LabelRequest(id, prompt, service.encoder.first_ids(labels))
    except InputError as error:
        return Unusable(id, f"{where}: {error}")


def _too_long(service: Service, text: str, limit: int, where: str) -> str | None:
    """Return the reason to refuse a text, or None: millions of characters take half a minute."""
    if len(text) <= limit:
        return None
    return (
        f"{where}: {len(text)} characters, expected at most {limit} for the model's "
        f"{service.max_positions} positions; shorten it"
    )


def _item_id(item: Any, position: int) -> str | int:
    """Return an item's id if it is valid, otherwise its position."""
    id = item.get("id", position) if isinstance(item, dict) else position
    return id if type(id) in (str, int) else position
