"""Files of sampled responses: items that each have a list of responses.

The published scripts (arXiv 2502.18581) hand such files from one to the next. Fields that we do
not know stay as they are. What is wrong with one item is told with its place, and the others are
kept; what is wrong with the file ends the run.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.files.atomic import json_safe
from jaxscore.files.item_files import name_of, read_items
from jaxscore.files.json_input import kind_of

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
        answered: whether a response with an extractable answer could be chosen.
        note: what was odd but did not stop it, for people.
        within_noise: whether rounding could turn the choice; None where its input does not say
            how far that moves a confidence.
    """

    name: str
    record: dict[str, Any]
    error: str | None = None
    answered: bool = True
    note: str | None = None
    within_noise: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Counts over all items.

    Attributes:
        n_unanswered: of the decided, those where no response had an extractable answer.
        within_noise: of the decided that say how far rounding moves a confidence, one entry each.
        failures: (item, why) of the others.
        notes: (item, what was odd).
    """

    n_items: int
    n_decided: int
    n_unanswered: int
    within_noise: list[bool]
    failures: list[tuple[str, str]]
    notes: list[tuple[str, str]]


def load(path: Path) -> list[Item]:
    """The items of a `.json` or `.parquet` file.

    Raises:
        InputError: as `read_items`.
    """
    return [
        Item(name_of(index, fields), json_safe(fields))
        for index, fields in enumerate(read_items(path, LIST_FIELDS))
    ]


def responses(item: Item, field: str, most: int | None = None) -> list[str | None]:
    """The first `most` responses; None for one that is null or no text.

    Raises:
        InputError: no list of responses, or an empty one.
    """
    values = _list(item, field)[:most]
    if not values:
        raise InputError(f'field "{field}" is empty, expected at least one response')
    return [value if isinstance(value, str) else None for value in values]


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
                f'field "confidence_list", value {rank}: found {kind_of(value)}, expected a number'
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
        raise InputError(f'field "{field}" is {kind_of(value)}, expected a list{remedy}')
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
    decided = [one for one in results if one.error is None]
    return Summary(
        n_items=len(results),
        n_decided=len(decided),
        n_unanswered=sum(not one.answered for one in decided),
        within_noise=[one.within_noise for one in decided if one.within_noise is not None],
        failures=[(one.name, one.error) for one in results if one.error is not None],
        notes=[(one.name, one.note) for one in results if one.note is not None],
    )
