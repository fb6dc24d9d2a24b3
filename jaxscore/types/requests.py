"""Requests of users, and the forms that a request to score may have in Python."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

FIELDS = ("id", "context", "continuation")
EXPECTED = (
    "expected a Request, a string, a (context, continuation) pair, or a dict with `continuation` "
    "and optionally `context` and `id`"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Text to score: how probable is `continuation` after `context`?

    A blank between the two belongs to the continuation. An empty context is legal: the
    continuation is then scored from the tokenizer's BOS, or, where it has none, from its
    second token on.
    """

    id: str | int
    context: str
    continuation: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRequest:
    """Which of a few labels comes next after a prompt?

    Attributes:
        prompt: text, encoded with the tokenizer's BOS unless it writes its own.
        label_ids: a distinct token id for each label, as from `TextEncoder.first_ids`.
    """

    id: str | int
    prompt: str
    label_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Text to continue.

    The next token is chosen as transformers does it: the repetition penalty first, then the
    temperature, then `top_k`, then `top_p`.

    Attributes:
        prompt: text, encoded with the tokenizer's BOS unless it writes its own; or token ids,
            which are used as they are.
        max_new_tokens: at most so many tokens.
        temperature: 0 is greedy; above it, and finite, the logits are divided by it and a token
            is drawn.
        top_p: draw from the smallest set of most probable tokens that holds this much (nucleus
            sampling, arXiv 1904.09751).
        stop: the text ends with the first token by which one of these strings is complete in the
            decoded text, special tokens shown by name. None of them is empty.
        seed: of the draws, modulo 2^32. The same request with the same seed gives the same text,
            whatever it is batched with.
        top_k: draw from this many most probable tokens; 0 is all.
        repetition_penalty: of each id that the prompt or the text already holds, a positive logit
            is divided by it and a negative one multiplied (arXiv 1909.05858); 1 is none. Also
            where the text is greedy.
        eos_ids: tokens that end the text; None is the checkpoint's.
    """

    id: str | int
    prompt: str | Sequence[int] | np.ndarray
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    top_k: int = 0
    repetition_penalty: float = 1.0
    eos_ids: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to answer, for an endpoint that applies the chat template itself.

    Attributes:
        messages: `{"role": "system" | "user" | "assistant", "content": text}`, in order.
        max_new_tokens, temperature, seed, stop: as of `GenerationRequest`.
    """

    id: str | int
    messages: list[dict[str, str]]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TextLabelRequest:
    """`LabelRequest` for an endpoint, whose token ids nobody here knows.

    Attributes:
        labels: each the whole text of one token, a leading blank included: " A" is not "A".
    """

    id: str | int
    prompt: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Unusable:
    """An item that is no request: its position, and why."""

    id: str | int
    error: str


def requests_from(given: Any) -> Iterator[Request | Unusable]:
    """Requests in order; an item of a wrong type is `Unusable` and does not touch the others.

    Args:
        given: an iterable of `Request`s, strings (a continuation without context), pairs of
            strings, or dicts; or a DataFrame with those fields as columns. An item without `id`
            has its position from 0.

    Raises:
        TypeError: `given` is one item, or not iterable at all.
    """
    for position, item in enumerate(items_of(given)):
        yield _request(item, position)


def items_of(given: Any) -> Iterable[Any]:
    """A DataFrame's rows as dicts; anything else as it is. pandas need not be installed.

    Raises:
        TypeError: `given` is one item, or not iterable at all.
    """
    one = isinstance(given, str | bytes | Mapping | Request) or _may_be_a_pair(given)
    if one or not isinstance(given, Iterable):
        raise TypeError(
            f"found one {type(given).__name__}, expected a list of requests; put it in brackets"
        )
    to_dict = getattr(given, "to_dict", None)
    if to_dict is None or not hasattr(given, "columns"):
        return given
    rows: list[dict[str, Any]] = to_dict("records")
    return rows


def _may_be_a_pair(given: Any) -> bool:
    """A tuple of two strings is a pair in a list, and two texts if it is the list."""
    return type(given) is tuple and list(map(type, given)) == [str, str]


def _request(item: Any, position: int) -> Request | Unusable:
    if type(item) is str:
        return Request(position, "", item)
    if isinstance(item, Unusable) or _usable(item):
        return item
    if isinstance(item, Request):
        fields: Mapping[str, Any] = {name: getattr(item, name) for name in FIELDS}
    elif isinstance(item, str):  # of a class of its own, such as NumPy's
        fields = {"continuation": item}
    elif isinstance(item, tuple | list) and len(item) == 2:
        fields = {"context": item[0], "continuation": item[1]}
    elif isinstance(item, Mapping):
        fields = item
    else:
        return Unusable(position, f"item {position} is {_kind(item)}; {EXPECTED}")
    name = fields.get("id", position)
    if isinstance(name, bool) or not isinstance(name, str | int):
        name = _whole(name)
        if name is None:
            return Unusable(
                position,
                f"item {position}: id is {_kind(fields['id'])}, expected a string or a whole "
                "number",
            )
    for field in ("context", "continuation"):
        value = fields.get(field, "" if field == "context" else None)
        if not isinstance(value, str):
            found = "missing" if value is None else _kind(value)
            return Unusable(name, f"item {position}: {field} is {found}; {EXPECTED}")
    return Request(name, fields.get("context", ""), fields["continuation"])


def _usable(item: Any) -> bool:
    """Whether it is a request as it should be, which most are."""
    return (
        type(item) is Request
        and type(item.id) in (str, int)
        and type(item.context) is str
        and type(item.continuation) is str
    )


def _whole(value: Any) -> int | None:
    """A NumPy whole number, as DataFrames hold it, as Python's own."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value)


def _kind(value: Any) -> str:
    """What a value is, for people."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
