"""Items of `/jaxscore/score` and `/jaxscore/label`: each to a record, or to its error alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, TOO_DEEP, nests_beyond
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.server.fields import is_int, is_string, told
from jaxscore.server.service import Service
from jaxscore.systems.score import requests_file
from jaxscore.text.preparing import Prepared
from jaxscore.text.scored import label_scores, scored_requests
from jaxscore.types.requests import LabelRequest, Request, Unusable

IDS = ("context_ids", "continuation_ids")


class Batch(NamedTuple):
    """Items that are scored together.

    Attributes:
        prepared: of each item.
        records: all items' records from the scores of all sequences, in order.
    """

    prepared: list[Prepared]
    records: Callable[[list[SequenceScores]], Iterable[dict[str, Any]]]


def scoring(service: Service, items: Sequence[Any], first: int, asked: Mapping[str, Any]) -> Batch:
    """Items with a context and a continuation.

    Args:
        first: the position of the first item, from 1.
        asked: `boundary`, `truncate`, `special_tokens`, `summary_only`.
    """
    most = service.room(cut=asked["truncate"] is not None)
    lines = [_line(service, item, first + k, most) for k, item in enumerate(items)]
    texts = [one for one in lines if not isinstance(one.request, _Ids)]
    ids = [one for one in lines if isinstance(one.request, _Ids)]
    of_texts = service.preparer.texts(
        [one.request for one in texts],  # type: ignore[misc]
        asked["boundary"],
        asked["truncate"],
        asked["special_tokens"],
    )
    of_ids = service.preparer.sequences([one.request.sequence for one in ids], asked["truncate"])  # type: ignore[union-attr]
    found = {id(one): item for one, item in zip([*texts, *ids], [*of_texts, *of_ids], strict=True)}
    prepared = [found[id(one)] for one in lines]

    def records(scores: list[SequenceScores]) -> Iterable[dict[str, Any]]:
        window = [(one.request, item) for one, item in zip(lines, prepared, strict=True)]
        results = scored_requests(window, scores, service.encoder)  # type: ignore[arg-type]
        for one, scored in zip(lines, results, strict=True):
            yield requests_file.record(
                scored, one.extra, summary_only=asked["summary_only"], arrays=True
            )

    return Batch(prepared, records)


def labels(service: Service, items: Sequence[Any], first: int, asked: Mapping[str, Any]) -> Batch:
    """Items with a prompt and the labels that may come next.

    Args:
        first: the position of the first item, from 1.
        asked: `truncate`.
    """
    most = service.room(cut=asked["truncate"] is not None)
    given = [_label_request(service, item, first + k, most) for k, item in enumerate(items)]
    usable = [one for one in given if isinstance(one, LabelRequest)]
    found = iter(service.preparer.labels(usable, asked["truncate"]))
    prepared = [
        next(found) if isinstance(one, LabelRequest) else Prepared((), 0, one.error)
        for one in given
    ]

    def records(scores: list[SequenceScores]) -> Iterable[dict[str, Any]]:
        left = iter(scores)
        for item, one, ready in zip(items, given, prepared, strict=True):
            result = label_scores(one.id, ready, next(left) if ready.sequences else None)
            if result.error is not None:
                yield {"id": one.id, "error": result.error}
                continue
            record = {
                "id": one.id,
                "labels": item["labels"],
                "logprob": result.logprob,
                "probability": result.probability,
                "outside": result.outside,
            }
            yield record | ({"truncated": result.truncated} if result.truncated else {})

    return Batch(prepared, records)


class _Ids(NamedTuple):
    """A request whose token ids are given."""

    id: str | int
    sequence: TokenSequence


class _Line(NamedTuple):
    """One item, and its other fields, which its record repeats."""

    request: Request | Unusable | _Ids
    extra: dict[str, Any]


def _line(service: Service, item: Any, position: int, most: int) -> _Line:
    """Args:
    most: characters of its text.
    """
    where = f"request {position}"
    try:
        if nests_beyond(item, MOST_NESTED):
            raise InputError(f"{where}: {TOO_DEEP}; repeat its id instead")
        if isinstance(item, dict) and not item.keys().isdisjoint(IDS):
            return _of_ids(service, item, position, where)
        line = requests_file.line(item, position, where)
        if isinstance(line.request, Request):
            text = line.request.context + line.request.continuation
            if problem := _too_long(service, text, most, where):
                return _Line(Unusable(line.request.id, problem), line.extra)
        return _Line(line.request, line.extra)
    except InputError as problem:
        return _Line(Unusable(_id(item, position), str(problem)), {})


def _too_long(service: Service, text: str, most: int, where: str) -> str | None:
    """Why a text is not tokenized; millions of characters would take half a minute."""
    if len(text) <= most:
        return None
    return (
        f"{where}: {len(text)} characters, expected at most {most} for the model's "
        f"{service.max_positions} positions; shorten it"
    )


def _of_ids(service: Service, item: dict[str, Any], position: int, where: str) -> _Line:
    if strange := sorted({"context", "continuation"} & item.keys()):
        raise InputError(f"{where}: has {strange[0]} and token ids; give texts or ids, not both")
    rest = {name: value for name, value in item.items() if name not in IDS}
    line = requests_file.line({**rest, "continuation": ""}, position, where)
    context, continuation = (_checked(service, item, name, where) for name in IDS)
    ids = np.array(context + continuation, np.int32)
    return _Line(_Ids(line.request.id, TokenSequence(ids, len(context))), line.extra)


def _checked(service: Service, item: dict[str, Any], name: str, where: str) -> list[int]:
    ids = item.get(name, [] if name == IDS[0] else None)
    if not isinstance(ids, list) or not all(map(is_int, ids)):
        found = "missing" if name not in item else told(ids)
        raise InputError(f"{where}: {name} is {found}, expected a list of token ids")
    most = service.scorer.model.vocab_size
    if (wrong := next((id for id in ids if not 0 <= id < most), None)) is not None:
        raise InputError(f"{where}: {name} has {wrong}, expected ids from 0 to {most - 1}")
    return ids


def _label_request(
    service: Service, item: Any, position: int, most: int
) -> LabelRequest | Unusable:
    where, name = f"request {position}", _id(item, position)
    if not isinstance(item, dict):
        return Unusable(name, f"{where}: found {told(item)}, expected an object")
    if strange := sorted(item.keys() - {"id", "prompt", "labels"}):
        return Unusable(name, f"{where}: has {told(strange[0])}, expected id, prompt, labels")
    if not is_string(item.get("prompt")):
        return Unusable(name, f"{where}: prompt is {told(item.get('prompt'))}, expected a string")
    texts = item.get("labels")
    if not isinstance(texts, list) or not texts or not all(map(is_string, texts)):
        return Unusable(name, f"{where}: labels is {told(texts)}, expected a list of strings")
    longest = max(texts, key=len)
    if problem := (
        _too_long(service, item["prompt"], most, where)
        or _too_long(service, longest, service.room(), where)
    ):
        return Unusable(name, problem)
    try:
        return LabelRequest(name, item["prompt"], service.encoder.first_ids(texts))
    except InputError as problem:
        return Unusable(name, f"{where}: {problem}")


def _id(item: Any, position: int) -> str | int:
    """An item's id where it has one that can be told; else its position."""
    found = item.get("id", position) if isinstance(item, dict) else position
    return found if is_string(found) or is_int(found) else position
