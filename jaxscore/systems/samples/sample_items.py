"""Objects of files of sampled responses, each of which may be unusable."""

from collections.abc import Iterable, Iterator
from typing import Any

from jaxscore.errors import InputError
from jaxscore.errors import NothingUsable as NothingUsable
from jaxscore.io.json_input import json_kind


def objects(given: Iterable[Any], *known: type) -> Iterator[Any]:
    """The same, as long as each is an object, or of a known type because it was read before.

    Raises:
        InputError: one is something else; named by its position from 1.
    """
    for position, one in enumerate(given, start=1):
        if not isinstance(one, (dict, *known)):
            raise InputError(f"item {position} is {json_kind(one)}, expected an object")
        yield one


def refuse_if_all_failed(items: Iterable[tuple[str, str | None]]) -> None:
    """Refuse items that all have an error.

    Args:
        items: (name, error) of each.

    Raises:
        NothingUsable: naming the first reason; or there are no items.
    """
    found = list(items)
    if not found:
        raise NothingUsable("found no items, expected at least one")
    if all(error for _, error in found):
        name, error = found[0]
        raise NothingUsable(f"no item can be used; {name}: {error}")
