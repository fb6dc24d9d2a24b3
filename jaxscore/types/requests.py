"""Requests in text, and conversion of the Python values that `score` accepts to requests."""

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
    """Text to score: the probability of `continuation` after `context`.

    A space between the two belongs to the continuation. With an empty context the continuation is
    scored after the tokenizer's BOS. If the tokenizer lacks a BOS, scoring starts at the second
    token.

    Attributes:
        token_ids: token ids of the context and of the continuation, or None to encode the texts. A
            local model scores these ids unchanged, without an additional BOS.
        positions: ascending indices, in both `token_ids` joined, of the tokens to score and to
            return; None for those of the continuation.
    """

    id: str | int
    context: str
    continuation: str
    token_ids: tuple[Sequence[int], Sequence[int]] | None = None
    positions: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRequest:
    """Labels whose probability as the next token is requested.

    Attributes:
        prompt: the text before the label.
        label_ids: a distinct token id for each label, see `TextEncoder.first_ids`.
        special_tokens: if True, the tokenizer's BOS is added unless the prompt starts with it. Use
            False for a prompt from a chat template.
    """

    id: str | int
    prompt: str
    label_ids: tuple[int, ...]
    special_tokens: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompt to continue.

    The next token is chosen in transformers' order: repetition penalty, temperature, `top_k`,
    `top_p`.

    Attributes:
        prompt: a text, or token ids, which are used unchanged.
        max_new_tokens: maximum number of tokens to generate.
        temperature: divisor of the logits before sampling, finite; 0 for greedy generation.
        top_p: cumulative probability of the smallest set of most probable tokens to sample from
            (nucleus sampling, arXiv 1904.09751).
        stop: non-empty stop strings. The text ends with the first token that completes one of them
            in the decoded text, in which special tokens appear by name.
        seed: the seed of the random draws, modulo 2^32. A request with the same seed generates the
            same text in every batch.
        top_k: number of most probable tokens to sample from; 0 for all.
        repetition_penalty: divisor of positive logits, and factor of negative logits, of all ids
            in the prompt or the generated text (arXiv 1909.05858), also in greedy generation; 1 for
            no penalty.
        eos_ids: token ids that end the text, or None for the checkpoint's.
        special_tokens: if True, the tokenizer's BOS is added to a text unless it starts with it.
            Use False for a prompt from a chat template.
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
    special_tokens: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class ChatRequest:
    """Conversation to answer.

    Attributes:
        messages: `{"role": "system" | "user" | "assistant", "content": text}`, oldest first.
        max_new_tokens, temperature, seed, stop: see `GenerationRequest`.
    """

    id: str | int
    messages: list[dict[str, str]]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TextLabelRequest:
    """`LabelRequest` for an endpoint, whose token ids are unknown.

    Attributes:
        labels: texts of one token each, including a leading space: " A" is not "A".
    """

    id: str | int
    prompt: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Unusable:
    """An item that is not a request.

    Attributes:
        id: the item's id, or its position if it has none.
        error: the reason why it is not a request.
    """

    id: str | int
    error: str


def requests_from(items: Any) -> Iterator[Request | Unusable]:
    """Convert items to requests, in order. An item of a wrong type becomes `Unusable`.

    Args:
        items: an iterable of `Request`s, strings (a continuation without context), pairs of
            strings, or dicts; or a DataFrame with the fields as columns. An item without `id` gets
            its position, counted from 0, as its id.

    Raises:
        TypeError: `items` is a single item, or not iterable.
    """
    for position, item in enumerate(items_of(items)):
        yield parse_request(item, position)


def items_of(items: Any) -> Iterable[Any]:
    """Return the rows of a DataFrame as dicts, any other iterable unchanged, without pandas.

    Raises:
        TypeError: `items` is a single item, or not iterable.
    """
    # A tuple of two strings is ambiguous: a single pair, or a list of two texts.
    is_pair = type(items) is tuple and list(map(type, items)) == [str, str]
    is_single = is_pair or isinstance(items, str | bytes | Mapping | Request)
    if is_single or not isinstance(items, Iterable):
        raise TypeError(
            f"got a single {type(items).__name__}, expected a list of requests; put it in brackets"
        )
    to_dict = getattr(items, "to_dict", None)
    if to_dict is None or not hasattr(items, "columns"):
        return items
    rows: list[dict[str, Any]] = to_dict("records")
    return rows


def parse_request(item: Any, position: int) -> Request | Unusable:
    """Convert one item, see `requests_from`.

    Args:
        position: the item's position, counted from 0, which is the id of an item without `id`.
    """
    if type(item) is str:
        return Request(position, "", item)
    if isinstance(item, Unusable):
        return item
    is_request = type(item) is Request and type(item.id) in (str, int)
    if is_request and type(item.context) is type(item.continuation) is str:  # the common case
        return item
    if isinstance(item, Request):
        fields: Mapping[str, Any] = {name: getattr(item, name) for name in FIELDS}
    elif isinstance(item, str):  # a subclass, such as `numpy.str_`
        fields = {"continuation": item}
    elif isinstance(item, tuple | list) and len(item) == 2:
        fields = {"context": item[0], "continuation": item[1]}
    elif isinstance(item, Mapping):
        fields = item
    else:
        return Unusable(position, f"item {position} is {_describe_type(item)}; {EXPECTED}")
    name = fields.get("id", position)
    if isinstance(name, bool) or not isinstance(name, str | int):
        name = _to_int(name)
        if name is None:
            actual = _describe_type(fields["id"])
            return Unusable(
                position, f"item {position}: id is {actual}, expected a string or a whole number"
            )
    for field in ("context", "continuation"):
        value = fields.get(field, "" if field == "context" else None)
        if not isinstance(value, str):
            actual = "missing" if value is None else _describe_type(value)
            return Unusable(name, f"item {position}: {field} is {actual}; {EXPECTED}")
    ids = (item.token_ids, item.positions) if isinstance(item, Request) else (None, None)
    return Request(name, fields.get("context", ""), fields["continuation"], *ids)


def _to_int(value: Any) -> int | None:
    """Convert a NumPy integer, as in DataFrames, to a Python int; return None for other values."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value)


def _describe_type(value: Any) -> str:
    """Describe the type of a value, for messages."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
