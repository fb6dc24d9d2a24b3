"""What `evaluate("score", ...)` takes: lines of a file, and whatever `Scorer.score` takes."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.systems.score.requests_file import OWN_FIELDS, Line, taken_field
from jaxscore.types.requests import Request, Unusable, items_of, requests_from


class Unread(NamedTuple):
    """An item that is no request, and its other fields, which its record repeats."""

    id: str | int
    error: str
    extra: dict[str, Any]


def read(items: Any, results: Collection[str]) -> Iterator[Line | Unread]:
    """Items in order; one that cannot be used does not touch the others.

    Args:
        items: `Line`s, or what `types.requests` describes. The other fields of a dict,
            and the other columns of a DataFrame, are repeated in the records.
        results: as of `requests_file.load`.

    Raises:
        InputError: one item in place of a list of them.
    """
    try:
        items = items_of(items)
    except TypeError as problem:
        raise InputError(str(problem)) from None
    waiting: deque[Any] = deque()

    def requests() -> Iterator[Any]:
        for item in items:
            waiting.append(item)
            yield item.request if isinstance(item, Line) else item

    for made in requests_from(requests()):
        yield _line(waiting.popleft(), made, results)


def _line(item: Any, made: Request | Unusable, results: Collection[str]) -> Line | Unread:
    if isinstance(item, Line):
        return item
    fields = item if isinstance(item, Mapping) else {}
    extra = {name: value for name, value in fields.items() if name not in OWN_FIELDS}
    taken = taken_field(extra, results)
    if taken is None and isinstance(made, Request):
        return Line(made, extra)
    free = {name: value for name, value in extra.items() if taken_field({name}, results) is None}
    error = made.error if isinstance(made, Unusable) else taken
    return Unread(made.id, error or "", free)
