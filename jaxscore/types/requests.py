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

    A space between the two belongs to the continuation. With an empty context the continuation is
    scored after the tokenizer's BOS, or from its second token if there is no BOS.

    Attributes:
        token_ids: ids of the context and of the continuation, which a local model scores unchanged
            and without a further BOS, in place of the texts'; None if the texts are encoded.
    """

    id: str | int
    context: str
    continuation: str
    token_ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRequest:
    """Labels whose probability as the next token is requested.

    Attributes:
        prompt: text.
        label_ids: a distinct token id per label, as from `TextEncoder.first_ids`.
        special_tokens: if True, the tokenizer's BOS is added unless the prompt starts with it.
            False is for a prompt that a chat template wrote.
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
        prompt: text, or token ids, which are used unchanged.
        max_new_tokens: maximum number of tokens to generate.
        temperature: divides the logits before a token is drawn; 0 is greedy. Finite.
        top_p: draw from the smallest set of most probable tokens with this probability (nucleus
            sampling, arXiv 1904.09751).
        stop: non-empty strings. The text ends with the first token that completes one of them in
            the decoded text, in which special tokens appear by name.
        seed: of the draws, modulo 2^32. A request with the same seed generates the same text in
            every batch.
        top_k: draw from this many most probable tokens; 0 is all.
        repetition_penalty: divides a positive logit, and multiplies a negative one, of each id in
            the prompt or the generated text (arXiv 1909.05858), also in greedy generation; 1 is
            none.
        eos_ids: token ids that end the text, or None for the checkpoint's.
        special_tokens: if True, the tokenizer's BOS is added to a text unless it starts with it.
            False is for a prompt that a chat template wrote.
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
    """`LabelRequest` for an endpoint, whose token ids are unknown.

    Attributes:
        labels: the text of one token each, including a leading blank: " A" is not "A".
    """

    id: str | int
    prompt: str
    labels: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Unusable:
    """An item that is not a request.

    Attributes:
        id: of the item, or its position.
        error: why it is not a request.
    """

    id: str | int
    error: str


def requests_from(items: Any) -> Iterator[Request | Unusable]:
    """Convert items to requests, in order. An item of a wrong type becomes `Unusable`.

    Args:
        items: an iterable of `Request`s, strings (a continuation without context), pairs of
            strings, or dicts; or a DataFrame with those fields as columns. The id of an item
            without `id` is its position from 0.

    Raises:
        TypeError: `items` is a single item, or not iterable.
    """
    for position, item in enumerate(items_of(items)):
        yield parse_request(item, position)


def items_of(items: Any) -> Iterable[Any]:
    """Rows of a DataFrame as dicts; any other iterable unchanged. Does not import pandas.

    Raises:
        TypeError: `items` is a single item, or not iterable.
    """
    # A tuple of two strings is a pair outside a list, or a list of two texts.
    is_pair = type(items) is tuple and list(map(type, items)) == [str, str]
    is_single = is_pair or isinstance(items, str | bytes | Mapping | Request)
    if is_single or not isinstance(items, Iterable):
        raise TypeError(
            f"found one {type(items).__name__}, expected a list of requests; put it in brackets"
        )
    to_dict = getattr(items, "to_dict", None)
    if to_dict is None or not hasattr(items, "columns"):
        return items
    rows: list[dict[str, Any]] = to_dict("records")
    return rows


def parse_request(item: Any, position: int) -> Request | Unusable:
    """Convert one item, see `requests_from`.

    Args:
        position: from 0; the id of an item without `id`.
    """
    if type(item) is str:
        return Request(position, "", item)
    if isinstance(item, Unusable):
        return item
    is_request = type(item) is Request and type(item.id) in (str, int)
    if is_request and type(item.context) is type(item.continuation) is str:  # as most are
        return item
    if isinstance(item, Request):
        fields: Mapping[str, Any] = {name: getattr(item, name) for name in FIELDS}
    elif isinstance(item, str):  # a subclass, such as NumPy's
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
            found = _describe_type(fields["id"])
            return Unusable(
                position, f"item {position}: id is {found}, expected a string or a whole number"
            )
    for field in ("context", "continuation"):
        value = fields.get(field, "" if field == "context" else None)
        if not isinstance(value, str):
            found = "missing" if value is None else _describe_type(value)
            return Unusable(name, f"item {position}: {field} is {found}; {EXPECTED}")
    token_ids = item.token_ids if isinstance(item, Request) else None
    return Request(name, fields.get("context", ""), fields["continuation"], token_ids)


def _to_int(value: Any) -> int | None:
    """A NumPy integer, as in DataFrames, as a Python int; None for other values."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value)


def _describe_type(value: Any) -> str:
    """The type of a value, for messages."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"
