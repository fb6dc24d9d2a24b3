"""`score`: texts as they come."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.files.json_input import read_jsonl, take
from jaxscore.requests import Request, ScoredRequest


def load(path: Path) -> Iterator[Request]:
    """Requests of a JSONL file: `continuation`, and optionally `context` and `id`.

    A missing `id` is the line's number, a missing `context` is empty.

    Raises:
        InputError: with file and line.
    """
    for number, item in read_jsonl(path):
        where = f"{path}:{number}"
        continuation = take(item, "continuation", str, where)
        context = take(item, "context", str, where) if "context" in item else ""
        name = take(item, "id", (str, int), where) if "id" in item else number
        yield Request(name, context, continuation)


def check(path: Path) -> int:
    """Read the whole file once, so that a bad last line is known before the model is loaded.

    Returns:
        The number of requests.
    """
    with contextlib.suppress(OSError):  # what cannot be looked at cannot be read, see below
        if path.is_fifo():
            raise InputError(f"{path}: found a pipe, which can be read only once; give a file")
    try:
        return sum(1 for _ in load(path))
    except MemoryError:
        raise InputError(f"{path}: a line does not fit in memory") from None


def record(scored: ScoredRequest, *, summary_only: bool) -> dict[str, Any]:
    """One line of the output, numbers in nats."""
    if scored.error:
        return {"id": scored.id, "error": scored.error}
    out: dict[str, Any] = {"id": scored.id}
    if not summary_only:
        out |= {
            "token_ids": scored.token_ids.tolist(),
            "tokens": scored.tokens,
            "logprob": _nullable(scored.logprob),
            "entropy": _nullable(scored.entropy),
            "self_certainty": _nullable(scored.self_certainty),
            "greedy": [
                bool(value) if known else None
                for value, known in zip(scored.greedy, scored.scored, strict=True)
            ],
        }
    out |= {
        "sum_logprob": scored.sum_logprob,
        "mean_logprob": scored.mean_logprob,
        "perplexity": scored.perplexity,
        "mean_entropy": scored.mean_entropy,
        "mean_self_certainty": scored.mean_self_certainty,
        "n_tokens": scored.n_tokens,
        "n_scored": scored.n_scored,
    }
    if scored.truncated:
        out["truncated"] = scored.truncated
    return out


def _nullable(values: np.ndarray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
