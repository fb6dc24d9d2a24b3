"""`score`: texts as they come."""

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, read_rows
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

FIELDS = ("id", "context", "continuation")
OWN_FIELDS = frozenset(FIELDS)
RESULT_FIELDS = frozenset(
    "token_ids tokens logprob entropy self_certainty greedy sum_logprob mean_logprob perplexity "
    "mean_entropy mean_self_certainty n_tokens n_scored truncated error".split()
)

NOTHING_MEASURED: Mapping[str, Any] = MappingProxyType({})

# What an endpoint does not give; the numbers of its other fields are those of a local model.
UNKNOWN = frozenset("token_ids entropy self_certainty mean_entropy mean_self_certainty".split())

# Columns of a table of results: name -> its type, see `jaxscore.io.records`.
ARRAYS = {
    "token_ids": "[int32]",
    "tokens": "[string]",
    "logprob": "[float32]",
    "entropy": "[float32]",
    "self_certainty": "[float32]",
    "greedy": "[bool_]",
}
NUMBERS = {
    "sum_logprob": "float64",
    "mean_logprob": "float64",
    "perplexity": "float64",
    "mean_entropy": "float64",
    "mean_self_certainty": "float64",
    "n_tokens": "int64",
    "n_scored": "int64",
    "truncated": "int64",
}


class Line(NamedTuple):
    """A request, and the other fields of its line, which its output line repeats."""

    request: Request
    extra: dict[str, Any]


def load(
    path: Path,
    limit: int | None = None,
    columns: Mapping[str, str] = NOTHING,
    results: Collection[str] = RESULT_FIELDS,
) -> Iterator[Line]:
    """Requests of a file: `continuation`, and optionally `context` and `id`.

    A missing `id` is the line's number, a missing `context` is empty.

    Args:
        path: JSONL, or a table, see `jaxscore.io.items`.
        limit: how many from the beginning; None is all.
        columns: field -> its name in the file.
        results: fields of the output, whose names other fields of a line may not have.

    Raises:
        InputError: with file and line.
    """
    for number, where, item in itertools.islice(read_rows(path, columns), limit):
        yield line(item, number, where, results)


def line(item: Any, position: int, where: str, results: Collection[str] = RESULT_FIELDS) -> Line:
    """One request from an object.

    Args:
        position: from 1; the id of an item without `id`.
        where: for messages.
        results: as of `load`.

    Raises:
        InputError: it is no object; a field is missing, of another type, or has the name of a
            field of the results.
    """
    if not isinstance(item, dict):
        raise InputError(f"{where}: found {json_kind(item)}, expected an object")
    continuation = require_field(item, "continuation", str, where)
    context = require_field(item, "context", str, where) if "context" in item else ""
    name = require_field(item, "id", (str, int), where) if "id" in item else position
    extra = {field: value for field, value in item.items() if field not in OWN_FIELDS}
    if (taken := taken_field(extra, results)) is not None:
        raise InputError(f"{where}: {taken}")
    return Line(Request(name, context, continuation), extra)


def taken_field(extra: Collection[str], results: Collection[str] = RESULT_FIELDS) -> str | None:
    """What is wrong with the names of a line's other fields; None where nothing is.

    Args:
        results: as of `load`.
    """
    taken = sorted(set(results).intersection(extra))
    if not taken:
        return None
    return (
        f'field "{taken[0]}" is one of the results that the output line has; rename it, or leave '
        "it out"
    )


def check(
    path: Path,
    limit: int | None = None,
    columns: Mapping[str, str] = NOTHING,
    results: Collection[str] = RESULT_FIELDS,
) -> int:
    """Read the whole file once, so that a bad last line is known before the model is loaded.

    Args:
        limit, columns, results: as of `load`.

    Returns:
        The number of requests.
    """
    with contextlib.suppress(OSError):  # what cannot be looked at cannot be read, see below
        if path.is_fifo():
            raise InputError(f"{path}: found a pipe, which can be read only once; give a file")
    try:
        return sum(1 for _ in load(path, limit, columns, results))
    except MemoryError:
        raise InputError(f"{path}: a line does not fit in memory") from None


def record(
    scored: ScoredRequest,
    extra: Mapping[str, Any],
    *,
    summary_only: bool,
    arrays: bool = False,
    unknown: Collection[str] = (),
    measured: Mapping[str, Any] = NOTHING_MEASURED,
) -> dict[str, Any]:
    """One line of the output, numbers in nats; `extra` fields of the input come last.

    Args:
        measured: fields of further measures, see `measures.Measures`.
        arrays: leave NumPy arrays, in which NaN stands for null, as `json_line` takes them.
        unknown: fields that the model's interface does not give, such as `UNKNOWN`: null.
    """
    if scored.error:
        return failed(scored.id, scored.error, extra)
    out: dict[str, Any] = {"id": scored.id}
    sums = scored.sums()
    if not summary_only:
        own: dict[str, Any] = {
            "token_ids": scored.token_ids,
            "tokens": scored.tokens,
            "logprob": scored.logprob,
            "entropy": scored.entropy,
            "self_certainty": scored.self_certainty,
            "greedy": _greedy(scored, sums["n_tokens"] - sums["n_scored"]),
        }
        out |= own if arrays else {name: _listed(value) for name, value in own.items()}
    out |= sums
    out |= {name: None for name in unknown if name in out}
    out |= measured if arrays else {name: _listed(value) for name, value in measured.items()}
    if scored.truncated:
        out["truncated"] = scored.truncated
    return {**out, **extra}


def _greedy(scored: ScoredRequest, n_unscored: int) -> np.ndarray | list[bool | None]:
    """Whether each token is the most probable one, None where that is not known."""
    if not n_unscored and scored.greedy.dtype == bool:
        return scored.greedy
    values = scored.greedy.tolist()
    for k in np.flatnonzero(~scored.scored).tolist():
        values[k] = None
    return values


def failed(id: str | int, error: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a request that could not be scored."""
    return {"id": id, "error": error, **extra}


def _listed(values: Any) -> Any:
    """An array as a list, of rows where it has two axes, None in place of NaN."""
    if not isinstance(values, np.ndarray):
        return values
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [None if value != value else value for value in values.tolist()]
