"""Fields of finished results, which somebody may have edited since."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis import margins
from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.systems.compare.unit import Number, Unit, shown


def number(value: Any, name: str) -> Number:
    """A number, infinite where JSON has it as text (`json_number`), or None.

    Raises:
        InputError: it is something else.
    """
    if value is None or type(value) is float:
        return value
    if value in ("Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected a number or null')
    try:
        return float(value)
    except OverflowError:
        raise InputError(f'field "{name}" is a number beyond 1e308') from None


def known(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Number]:
    """Those of the numbers that a record has.

    Raises:
        InputError: one of them is no number.
    """
    return {name: number(record[name], name) for name in names if name in record}


def numbers(record: Mapping[str, Any], name: str, *, count: int | None = None) -> list[Number]:
    """A list of numbers.

    Args:
        count: how many there have to be.

    Raises:
        InputError: it is none, or has another length.
    """
    found = [number(one, name) for one in listed(record, name)]
    if count is not None and len(found) != count:
        raise InputError(f'field "{name}" has {len(found)} entries, expected {count}')
    return found


def finite(record: Mapping[str, Any], name: str, *, count: int) -> list[float]:
    """`numbers`, none of which is missing; infinite ones are allowed.

    Raises:
        InputError: as `numbers`, or one is null.
    """
    found = numbers(record, name, count=count)
    good = [one for one in found if one is not None and not math.isnan(one)]
    if len(good) != len(found) or not good:
        raise InputError(f'field "{name}" has entries that are null, or none')
    return good


def listed(record: Mapping[str, Any], name: str) -> list[Any]:
    """A field that is a list.

    Raises:
        InputError: it is none.
    """
    value = record.get(name)
    if not isinstance(value, list):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected a list')
    return value


def mark(record: Mapping[str, Any], name: str) -> bool | None:
    """A field that is true, false, or null or absent.

    Raises:
        InputError: it is something else.
    """
    value = record.get(name)
    if value is not None and not isinstance(value, bool):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected true, false or null')
    return value


def error(record: Mapping[str, Any]) -> str | None:
    """Why the run could not evaluate the item."""
    value = record.get("error")
    return None if value is None else str(value)


def name(record: Mapping[str, Any], field: str) -> str | int:
    """An id.

    Raises:
        InputError: it is neither a text nor a whole number.
    """
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(
            f'field "{field}" is {json_kind(value)}, expected a text or a whole number'
        )
    return value


def right_from_wrong(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """`margins.right_from_wrong`; None where the scores decide nothing about right or wrong."""
    found = margins.right_from_wrong(scores, right)
    return found if math.isfinite(found) else None


def logs(probabilities: Sequence[float]) -> list[float]:
    """Their logarithms; minus infinity for 0."""
    return [math.log(one) if one > 0 else -math.inf for one in probabilities]


def lead(scores: Sequence[float]) -> float | None:
    """`margins.lead`; None where there is one score alone, or two infinities."""
    found = margins.lead(scores)
    return found if math.isfinite(found) else None


def best(scores: Sequence[float]) -> int:
    """The place of the highest score, the first of equal ones."""
    return max(range(len(scores)), key=lambda k: scores[k])


def text_unit(record: Mapping[str, Any], names: Sequence[str], text: str | None = None) -> Unit:
    """The unit of a record that holds the numbers of one scored text.

    Args:
        names: its numbers.
        text: what tells its text from others; None where the record does not say it.

    Raises:
        InputError: a field is of another kind.
    """
    id = name(record, "id")
    if (why := error(record)) is not None:
        return Unit(id=id, name=shown(id), error=why)
    n_scored = number(record.get("n_scored"), "n_scored")
    return Unit(
        id=id,
        name=shown(id),
        text=text,
        n_tokens=None if n_scored is None else int(n_scored),
        numbers=known(record, names),
    )
