"""Tokens and texts with the largest divergence, found in the records of a run."""

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.systems.divergence.summary import NUMBERS, kl_of_texts
from jaxscore.types.results import ScoredRequest, Strip
from jaxscore.types.token_texts import characters_of, is_byte_level, joined_bytes, token_bytes

BEFORE = 60  # characters of text before a token
DECODED = 4 * BEFORE  # tokens that have them, if each has a byte
SHARED = 32  # tokens that share characters
N_WORST = 50  # tokens, and texts


class Worst:
    """The items with the largest values, the first of equal ones."""

    def __init__(self, size: int = N_WORST) -> None:
        """Args:
        size: at most so many are retained.
        """
        self._heap: list[tuple[float, int, Any]] = []
        self._size, self._order = size, itertools.count(0, -1)

    def takes(self, value: float) -> bool:
        """Return True if an item of this value would be retained; one of 0 is not."""
        return value > 0 and (len(self._heap) < self._size or value > self._heap[0][0])

    def add(self, value: float, item: Any) -> None:
        """Add an item that `takes` allows; it replaces the one with the smallest value."""
        entry = value, next(self._order), item
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def offer(self, value: float, item: Any) -> None:
        """Add an item if `takes` allows it."""
        if self.takes(value):
            self.add(value, item)

    def largest_first(self) -> list[Any]:
        """Return the retained items."""
        ordered = sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))
        return [item for _, _, item in ordered]


def worst_texts(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with the largest mean first, with their extras; none of 0."""
    worst = Worst()
    for index, record, _ in kl_of_texts(records):
        worst.offer(float(record["mean_kl"]), index)
    return [_with_extra(records, index) for index in worst.largest_first()]


def worst_tokens(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tokens with the largest KL divergence first, without those of 0."""
    worst = Worst()
    for index, _, kl in kl_of_texts(records):
        if kl is None:
            continue
        for k in np.argsort(-kl, kind="stable").tolist():  # NaN is last
            if not worst.takes(float(kl[k])):
                break
            worst.add(float(kl[k]), (index, k))
    return [_token(_with_extra(records, index), k) for index, k in worst.largest_first()]


def _token(text: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A token by its index in the continuation, as text, with whole characters."""
    names, start = text["tokens"], max(0, index - DECODED)
    pieces = token_bytes(names[start : index + SHARED], byte_level=is_byte_level(names))
    first, characters = next(
        (first, text) for first, end, text in characters_of(pieces) if end > index - start
    )
    head = text.get("context", "").rstrip() if index <= DECODED else ""
    numbers = {name: text[name][index] for name in (*NUMBERS, "same_argmax")}
    return {
        "id": text["id"],
        "place": index,
        "before": (head + joined_bytes(pieces[:first]))[-BEFORE:],
        "token": characters,
        **numbers,
    }


def strip_of(text: Mapping[str, Any]) -> Strip:
    """The tokens of a record, for the page; what only its extra has may be unknown."""
    unknown = np.full(len(text["tokens"]), np.nan, np.float32)
    logprob, entropy, kl, reference, self_certainty = (
        np.array(text.get(name, unknown), np.float32)  # of None it makes NaN
        for name in ("logprob", "entropy", "kl", "reference_logprob", "self_certainty")
    )
    scored = ScoredRequest(
        text["id"],
        np.array(text["token_ids"], np.int32),
        text["tokens"],
        logprob,
        entropy,
        self_certainty,
        np.array(text.get("greedy", unknown)),
        measures={"kl": kl, "reference_logprob": reference},
    )
    return Strip("", text.get("context", ""), scored)


def _with_extra(records: Any, index: int) -> dict[str, Any]:
    """Return a record of a run with the fields of its page."""
    return {**records[index], **(records.extra(index) or {})}
