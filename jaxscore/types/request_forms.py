"""What `Scorer.score` takes besides `Request`s: strings, pairs, dicts and DataFrames."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxscore.types.requests import Request

FIELDS = ("id", "context", "continuation")
EXPECTED = (
    "expected a Request, a string, a (context, continuation) pair, or a dict with `continuation` "
    "and optionally `context` and `id`"
)


@dataclass(frozen=True)
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
