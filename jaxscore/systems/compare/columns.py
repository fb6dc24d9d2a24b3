"""Units of finished runs in columns.

A million units as objects would not fit in memory.
"""

import dataclasses
import hashlib
import math
from array import array
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxscore.systems.compare.units import Choice, Unit

UNKNOWN = -1  # not audited, or number of tokens not in the file


class Choices:
    """The decisions of one name, unit by unit.

    Attributes:
        values: see `Choice`.
        margins: NaN without one.
        within: 1, 0 or `UNKNOWN`.
    """

    def __init__(self) -> None:
        self.values: list[str | bool | None] = []
        self.margins, self.within = array("d"), array("b")

    def __len__(self) -> int:
        return len(self.values)

    def add(self, choice: Choice | None) -> None:
        value, margin, within = choice or Choice(None)
        self.values.append(value)
        self.margins.append(math.nan if margin is None else margin)
        self.within.append(UNKNOWN if within is None else within)


class Column:
    """The numbers of one name; NaN for one that is missing or not finite.

    Attributes:
        values: numbers of all units, in one sequence.
        ends: index after the last value of each unit.
    """

    def __init__(self) -> None:
        self.values, self.ends = array("d"), array("q")

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, value: float | list[float | None] | None) -> None:
        for number in value if isinstance(value, list) else (value,):
            is_known = number is not None and math.isfinite(number)
            self.values.append(number if is_known else math.nan)  # type: ignore[arg-type]
        self.ends.append(len(self.values))

    def of_unit(self, index: int) -> Any:
        """Return the number of a unit, or the list of its numbers; None for NaN."""
        start = self.ends[index - 1] if index else 0
        values = self.values[start : self.ends[index]]
        numbers = [None if math.isnan(value) else value for value in values]
        return numbers[0] if len(numbers) == 1 else numbers


@dataclasses.dataclass(frozen=True)
class Run:
    """All units of a run.

    Attributes:
        names, ids: the name and id of each unit; ids are text, so that 1 in a table is "1" in JSON.
        texts, others: the digests of each unit, None if unknown.
        groups: the index of the item that each unit is a part of; None if units are items.
        n_tokens: the number of scored tokens, or `UNKNOWN` if it is not in the file.
        errors: unit -> the reason why it was not scored.
        unread: the units whose records are not in their system's format.
        numbers, choices: the columns by name.
    """

    names: list[str]
    ids: list[str | None]
    texts: list[bytes | None]
    others: list[bytes | None]
    groups: NDArray[np.int64] | None
    n_tokens: NDArray[np.int64]
    errors: dict[int, str]
    unread: set[int]
    numbers: dict[str, Column]
    choices: dict[str, Choices]

    @property
    def n(self) -> int:
        return len(self.names)

    @property
    def n_without_text(self) -> int:
        """The number of units with numbers whose text is unknown."""
        return sum(text is None and k not in self.errors for k, text in enumerate(self.texts))


def digest(value: object) -> bytes | None:
    """Return 16 bytes of a value's `repr`; None for None."""
    if value is None:
        return None
    raw = repr(value).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(raw, digest_size=16).digest()


def collect(units: Iterable[Unit]) -> Run:
    """Return units as columns, with NaN and None for missing numbers and decisions."""
    groups, n_tokens, is_grouped = array("q"), array("q"), False
    run = Run([], [], [], [], None, np.zeros(0, np.int64), {}, set(), {}, {})
    for index, unit in enumerate(units):
        run.names.append(unit.name)
        run.ids.append(None if unit.id is None else str(unit.id))
        run.texts.append(digest(unit.text))
        run.others.append(digest(unit.others))
        is_grouped |= unit.group is not None
        groups.append(-1 - index if unit.group is None else unit.group)
        n_tokens.append(UNKNOWN if unit.n_tokens is None else unit.n_tokens)
        if unit.error is not None:
            run.errors[index] = unit.error
        if unit.unread:
            run.unread.add(index)
        for name, value in unit.numbers.items():
            _filled(run.numbers, name, index, Column).add(value)
        for name, choice in unit.choices.items():
            _filled(run.choices, name, index, Choices).add(choice)
    for name in run.numbers:
        _filled(run.numbers, name, run.n, Column)
    for name in run.choices:
        _filled(run.choices, name, run.n, Choices)
    return dataclasses.replace(
        run,
        groups=np.array(groups, np.int64) if is_grouped else None,
        n_tokens=np.array(n_tokens, np.int64),
    )


C = TypeVar("C", Column, Choices)


def _filled(columns: dict[str, C], name: str, index: int, new: Callable[[], C]) -> C:
    """Return a column, extended by missing values to the length `index`."""
    column = columns.setdefault(name, new())
    while len(column) < index:
        column.add(None)
    return column
