"""Files of sampled responses: items that each have a list of responses.

The published scripts (arXiv 2502.18581) hand such files from one to the next. Fields that we do
not know stay as they are. What is wrong with one item is told with its place, and the others are
kept; what is wrong with the file, or with all items, ends the run.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.errors import NothingUsable as NothingUsable
from jaxscore.io.items import item_label, read_items
from jaxscore.io.json_input import json_kind
from jaxscore.io.json_output import json_safe

LIST_FIELDS = ("output", "confidence_list", "responses")


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One item of the file.

    Attributes:
        name: for people: its place from 1, and its id where it has one.
        fields: as the file has them, but null for NaN and a string for an infinity.
    """

    name: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What became of an item.

    Attributes:
        record: its element of the output.
        error: why it was not decided; the record then holds it too.
        answered: whether the response that was chosen has what is looked for: an extractable
            answer, code.
        fallback: why a rule took the response in place of what should decide, a key of the
            system's `FALLBACKS`; None where that decided.
        note: what was odd but did not stop it, or how the fallback came about, for people.
        within_noise: whether rounding could turn the choice; None where its input does not say
            how far that moves a confidence.
        index: place of the response that was chosen, from 0; None where the item failed.
    """

    name: str
    record: dict[str, Any]
    error: str | None = None
    answered: bool = True
    fallback: str | None = None
    note: str | None = None
    within_noise: bool | None = None
    index: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Counts over all items: each is decided, or fell back, or failed.

    Attributes:
        fallbacks: reason -> items.
        n_unanswered: of those that did not fail, where `Result.answered` is false.
        within_noise: one entry for each item that says how far rounding moves a confidence.
        failures: (item, why).
        notes: (item, what was odd).
    """

    n_items: int
    n_decided: int
    fallbacks: dict[str, int]
    n_unanswered: int
    within_noise: list[bool]
    failures: list[tuple[str, str]]
    notes: list[tuple[str, str]]


def load(path: Path, limit: int | None = None) -> list[Item]:
    """The first `limit` items of a `.json` or `.parquet` file.

    Raises:
        InputError: as `read_items`.
    """
    return read(read_items(path, LIST_FIELDS)[:limit])


def read(given: Iterable[Any]) -> list[Item]:
    """Items from objects as a file has them; an `Item` stays as it is.

    Raises:
        InputError: one is no object.
    """
    return [
        one if isinstance(one, Item) else Item(item_label(index, one), json_safe(one))
        for index, one in enumerate(objects(given, Item))
    ]


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


def responses(item: Item, field: str, most: int | None = None) -> list[str | None]:
    """The first `most` responses; None for one that is null or no text.

    Raises:
        InputError: no list of responses, or an empty one.
    """
    values = _list(item, field)[:most]
    if not values:
        raise InputError(f'field "{field}" is empty, expected at least one response')
    return [value if isinstance(value, str) else None for value in values]


def most_responses(items: Iterable[Item], field: str, most: int | None = None) -> int:
    """The most responses that an item has of the first `most`, at least 1."""
    lists = (one.fields.get(field) for one in items)
    return max((len(one[:most]) for one in lists if isinstance(one, list) and one), default=1)


def confidences(item: Item, most: int | None, n_responses: int) -> list[float | None]:
    """The confidence of each response; None for one that is null or not finite.

    Raises:
        InputError: no list of numbers, of another length, or without any number.
    """
    values = _list(item, "confidence_list", "; `self-certainty` makes it")[:most]
    if len(values) != n_responses:
        raise InputError(
            f'field "confidence_list" has {len(values)} values for {n_responses} responses, '
            "expected one for each"
        )
    out: list[float | None] = []
    for rank, value in enumerate(values, start=1):
        if value is None or value in ("Infinity", "-Infinity"):
            out.append(None)
        elif isinstance(value, float):
            out.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            out.append(float(value) if abs(value) < 1 << 1023 else None)
        else:
            raise InputError(
                f'field "confidence_list", value {rank}: found {json_kind(value)}, expected a '
                "number"
            )
    if all(value is None for value in out):
        raise InputError('field "confidence_list" holds no number')
    return out


def noise(item: Item) -> float | None:
    """How far rounding moves a confidence of the item, in nats; None where nobody has looked.

    Raises:
        InputError: what stands there is no number of nats.
    """
    settings = item.fields.get("confidence_settings")
    value = settings.get("noise") if isinstance(settings, dict) else None
    if value is None:
        return None
    if value == "Infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise InputError(
            f'field "confidence_settings", entry "noise": found {str(value)[:20]!r}, expected '
            "nats, 0 or more"
        )
    return float(value)


def _list(item: Item, field: str, remedy: str = "") -> list[Any]:
    if field not in item.fields:
        there = ", ".join(map(repr, item.fields)) or "none"
        raise InputError(f'no field "{field}", expected a list{remedy}; there are {there}')
    value = item.fields[field]
    if not isinstance(value, list):
        raise InputError(f'field "{field}" is {json_kind(value)}, expected a list{remedy}')
    return value


def oddities(texts: Sequence[str | None], values: Sequence[float | None] = ()) -> str | None:
    """A note on responses that are no text and confidences that are no number."""
    missing = [str(k) for k, text in enumerate(texts, start=1) if text is None]
    unknown = [str(k) for k, value in enumerate(values, start=1) if value is None]
    parts = []
    if missing:
        parts.append(f"response {', '.join(missing)} is no text, so it has no answer")
    if unknown:
        parts.append(f"confidence {', '.join(unknown)} is no number, so it ranks last")
    return "; ".join(parts) or None


def summarise(results: Sequence[Result]) -> Summary:
    """Counts and lists for people."""
    usable = [one for one in results if one.error is None]
    fallbacks = collections.Counter(one.fallback for one in usable if one.fallback is not None)
    return Summary(
        n_items=len(results),
        n_decided=len(usable) - fallbacks.total(),
        fallbacks=dict(fallbacks),
        n_unanswered=sum(not one.answered for one in usable),
        within_noise=[one.within_noise for one in usable if one.within_noise is not None],
        failures=[(one.name, one.error) for one in results if one.error is not None],
        notes=[(one.name, one.note) for one in results if one.note is not None],
    )
