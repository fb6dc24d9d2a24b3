"""The units of a finished run in columns: a million units as objects would not fit in memory."""

import dataclasses
import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxscore.errors import InputError
from jaxscore.systems.compare.units import Choice, Comparison, Unit, shown

UNKNOWN = -1  # whether a decision lies within the noise: not audited


class Choices:
    """The decisions of one kind, unit by unit.

    Attributes:
        values: as in `Choice`.
        margins: NaN if there is none.
        within: 1, 0 or `UNKNOWN`.
    """

    def __init__(self) -> None:
        self.values: list[str | bool | None] = []
        self.margins = array("d")
        self.within = array("b")

    def __len__(self) -> int:
        return len(self.values)

    def add(self, choice: Choice | None) -> None:
        choice = choice or Choice(None)
        self.values.append(choice.value)
        self.margins.append(math.nan if choice.margin is None else choice.margin)
        self.within.append(UNKNOWN if choice.within is None else choice.within)


class Column:
    """The numbers of one name; NaN for one that is missing or not finite.

    Attributes:
        values: of all units, in one sequence.
        ends: index after the last value of each unit.
    """

    def __init__(self) -> None:
        self.values = array("d")
        self.ends = array("q")

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, value: float | list[float | None] | None) -> None:
        for number in value if isinstance(value, list) else (value,):
            is_known = number is not None and math.isfinite(number)
            self.values.append(number if is_known else math.nan)  # type: ignore[arg-type]
        self.ends.append(len(self.values))

    def of_unit(self, place: int) -> Any:
        """The number of a unit, or the list of its numbers; None for NaN."""
        start = self.ends[place - 1] if place else 0
        values = self.values[start : self.ends[place]]
        known = [None if math.isnan(value) else value for value in values]
        return known[0] if len(known) == 1 else known


@dataclasses.dataclass(frozen=True)
class Run:
    """All units of a run.

    Attributes:
        names, ids: unit by unit; an id is text, so that 1 of a table is "1" of JSON.
        texts, answers: digests, None if nothing is known.
        groups: place of the item that each unit is a part of; None if units are whole items.
        n_tokens: UNKNOWN if the file does not say.
        errors: unit -> why it has no numbers.
        unread: those of them whose records are not as their system writes them.
        numbers, choices: columns by name.
    """

    names: list[str]
    ids: list[str | None]
    texts: list[bytes | None]
    answers: list[bytes | None]
    groups: NDArray[np.int64] | None
    n_tokens: NDArray[np.int64]
    errors: dict[int, str]
    unread: set[int]
    numbers: dict[str, Column]
    choices: dict[str, Choices]

    @property
    def n(self) -> int:
        return len(self.names)


def digest(value: object) -> bytes | None:
    """16 bytes that stand for a value's `repr`; None for None."""
    if value is None:
        return None
    raw = repr(value).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(raw, digest_size=16).digest()


def units(
    comparison: Comparison,
    records: Iterable[tuple[str, Any]],
    facts: Mapping[str, Any],
    texts: Iterator[object] | None = None,
) -> Iterator[Unit]:
    """The units of a run's records; a record that is not as its system writes it has `error`.

    Args:
        records: (where it is, for messages; the record).
        texts: of each record, if the records do not hold them.
    """
    for place, (where, record) in enumerate(records):
        text = next(texts, None) if texts is not None else None
        try:
            for unit in comparison.read(record, place, facts):
                yield unit if text is None else dataclasses.replace(unit, text=(text, unit.text))
        except InputError as problem:
            name = record.get("id") if isinstance(record, dict) else None
            yield Unit(
                id=name if isinstance(name, str | int) else where,
                name=shown(where if name is None else name),
                error=f"{where}: {problem}",
                unread=True,
            )


def collect(found: Iterable[Unit]) -> Run:
    """Units as columns; a unit without a number or decision of a column has NaN or None there."""
    names: list[str] = []
    ids: list[str | None] = []
    texts: list[bytes | None] = []
    answers: list[bytes | None] = []
    groups, n_tokens = array("q"), array("q")
    errors: dict[int, str] = {}
    numbers: dict[str, Column] = {}
    choices: dict[str, Choices] = {}
    unread: set[int] = set()
    is_grouped = False
    for place, unit in enumerate(found):
        names.append(unit.name)
        ids.append(None if unit.id is None else str(unit.id))
        texts.append(digest(unit.text))
        answers.append(digest(unit.answer))
        is_grouped |= unit.group is not None
        groups.append(-1 - place if unit.group is None else unit.group)
        n_tokens.append(UNKNOWN if unit.n_tokens is None else unit.n_tokens)
        if unit.error is not None:
            errors[place] = unit.error
        if unit.unread:
            unread.add(place)
        for name, value in unit.numbers.items():
            _filled(numbers, name, place, Column).add(value)
        for name, choice in unit.choices.items():
            _filled(choices, name, place, Choices).add(choice)
    for name in numbers:
        _filled(numbers, name, len(names), Column)
    for name in choices:
        _filled(choices, name, len(names), Choices)
    return Run(
        names=names,
        ids=ids,
        texts=texts,
        answers=answers,
        groups=np.array(groups, np.int64) if is_grouped else None,
        n_tokens=np.array(n_tokens, np.int64),
        errors=errors,
        unread=unread,
        numbers=numbers,
        choices=choices,
    )


C = TypeVar("C", Column, Choices)


def _filled(columns: dict[str, C], name: str, place: int, kind: Callable[[], C]) -> C:
    """The column, with one missing value for each unit before `place` that has none."""
    if name not in columns:
        columns[name] = kind()
    column = columns[name]
    while len(column) < place:
        column.add(None)
    return column
