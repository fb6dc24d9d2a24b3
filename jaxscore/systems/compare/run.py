"""A finished run in columns: the numbers and decisions of its units."""

import dataclasses
import hashlib
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxscore.errors import InputError
from jaxscore.systems.compare.unit import Choice, Number, System, Unit, shown

UNKNOWN = -1  # whether a decision lies within the noise: not audited


class Choices:
    """The decisions of one kind, unit by unit.

    Attributes:
        values: as in `Choice`.
        margins: NaN where there is none.
        within: 1, 0 or `UNKNOWN`.
    """

    def __init__(self) -> None:
        self.values: list[str | bool | None] = []
        self.margins = array("d")
        self.within = array("b")

    def add(self, one: Choice) -> None:
        self.values.append(one.value)
        self.margins.append(math.nan if one.margin is None else one.margin)
        self.within.append(UNKNOWN if one.within is None else one.within)


class Column:
    """The numbers of one name; NaN where there is none, or none that is finite.

    Attributes:
        values: of all units, one behind the other.
        ends: where the values of each unit end.
    """

    def __init__(self) -> None:
        self.values = array("d")
        self.ends = array("q")

    def add(self, value: Number | list[Number] | list[float]) -> None:
        for one in value if isinstance(value, list) else (value,):
            self.values.append(math.nan if one is None or not math.isfinite(one) else one)
        self.ends.append(len(self.values))


@dataclasses.dataclass(frozen=True)
class Run:
    """All units of a run.

    Attributes:
        names, ids: unit by unit; an id is text, so that 1 of a table is "1" of JSON.
        texts, answers: digests, None where nothing is known.
        groups: place of the item that each unit is a part of; None where units are whole items.
        n_tokens: UNKNOWN where the file does not say.
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
    system: System,
    records: Iterable[tuple[str, Any]],
    facts: Mapping[str, Any],
    texts: Iterator[object] | None = None,
) -> Iterator[Unit]:
    """The units of a run's records; a record that is not as its system writes it has `error`.

    Args:
        records: (where it is, for messages; the record).
        texts: of each record, where the records do not hold them.
    """
    for place, (where, record) in enumerate(records):
        given = next(texts, None) if texts is not None else None
        try:
            if not isinstance(record, dict):
                raise InputError("found no object")
            for one in system.read(record, place, facts):
                yield one if given is None else dataclasses.replace(one, text=(given, one.text))
        except InputError as problem:
            name = record.get("id") if isinstance(record, dict) else None
            yield Unit(
                id=name if isinstance(name, str | int) else where,
                name=shown(where if name is None else name),
                error=f"{where}: {problem}",
                unread=True,
            )


def collect(found: Iterable[Unit]) -> Run:
    """Units as columns; what an earlier unit lacks of a later one's columns is NaN or None."""
    names: list[str] = []
    ids: list[str | None] = []
    texts: list[bytes | None] = []
    answers: list[bytes | None] = []
    groups, n_tokens = array("q"), array("q")
    errors: dict[int, str] = {}
    numbers: dict[str, Column] = {}
    choices: dict[str, Choices] = {}
    unread: set[int] = set()
    grouped = False
    for place, one in enumerate(found):
        names.append(one.name)
        ids.append(None if one.id is None else str(one.id))
        texts.append(digest(one.text))
        answers.append(digest(one.answer))
        grouped |= one.group is not None
        groups.append(-1 - place if one.group is None else one.group)
        n_tokens.append(UNKNOWN if one.n_tokens is None else one.n_tokens)
        if one.error is not None:
            errors[place] = one.error
        if one.unread:
            unread.add(place)
        for name, value in one.numbers.items():
            _filled(numbers, name, place).add(value)
        for name, choice in one.choices.items():
            _decided(choices, name, place).add(choice)
    for name in numbers:
        _filled(numbers, name, len(names))
    for name in choices:
        _decided(choices, name, len(names))
    return Run(
        names=names,
        ids=ids,
        texts=texts,
        answers=answers,
        groups=np.array(groups, np.int64) if grouped else None,
        n_tokens=np.array(n_tokens, np.int64),
        errors=errors,
        unread=unread,
        numbers=numbers,
        choices=choices,
    )


def _filled(columns: dict[str, Column], name: str, place: int) -> Column:
    """The column, with one NaN for each unit before `place` that has no value."""
    column = columns.get(name)
    if column is None:
        column = columns[name] = Column()
    while len(column.ends) < place:
        column.add(None)
    return column


def _decided(columns: dict[str, Choices], name: str, place: int) -> Choices:
    column = columns.get(name)
    if column is None:
        column = columns[name] = Choices()
    while len(column.values) < place:
        column.add(Choice(None))
    return column
