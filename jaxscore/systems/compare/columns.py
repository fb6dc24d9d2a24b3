"""Units of finished runs in columns, and their pairs: by id, and by the requested text.

A million units as objects would not fit in memory.
"""

import collections
import dataclasses
import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from jaxscore.systems.compare.units import Choice, Unit

UNKNOWN = -1  # not audited, or number of tokens not in the file
SAME_TEXT, SAME_INPUT, SAME_TOKENS, SAME_ID = "text", "input", "tokens", "id"  # rules of pairs


class Choices:
    """The decisions of one name, unit by unit.

    Attributes:
        values: see `Choice`.
        margins: NaN without one.
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
        values: numbers of all units, in one sequence.
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
        """Return the number of a unit, or the list of its numbers; None for NaN."""
        start = self.ends[place - 1] if place else 0
        values = self.values[start : self.ends[place]]
        numbers = [None if math.isnan(value) else value for value in values]
        return numbers[0] if len(numbers) == 1 else numbers


@dataclasses.dataclass(frozen=True)
class Run:
    """All units of a run.

    Attributes:
        names, ids: unit by unit; an id is text, so that 1 of a table is "1" of JSON.
        texts, others: digests, None for what is unknown.
        groups: place of the item that each unit is a part of; None if units are items.
        n_tokens: `UNKNOWN` if the file does not have it.
        errors: unit -> why it has no numbers.
        unread: those of them whose records are not as their system writes them.
        numbers, choices: columns by name.
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
        """Number of units with numbers whose text is unknown."""
        return sum(text is None and k not in self.errors for k, text in enumerate(self.texts))


def digest(value: object) -> bytes | None:
    """Return 16 bytes of a value's `repr`; None for None."""
    if value is None:
        return None
    raw = repr(value).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(raw, digest_size=16).digest()


def collect(units: Iterable[Unit]) -> Run:
    """Return units as columns; a unit without a number or decision has NaN or None there."""
    groups, n_tokens, is_grouped = array("q"), array("q"), False
    run = Run([], [], [], [], None, np.zeros(0, np.int64), {}, set(), {}, {})
    for place, unit in enumerate(units):
        run.names.append(unit.name)
        run.ids.append(None if unit.id is None else str(unit.id))
        run.texts.append(digest(unit.text))
        run.others.append(digest(unit.others))
        is_grouped |= unit.group is not None
        groups.append(-1 - place if unit.group is None else unit.group)
        n_tokens.append(UNKNOWN if unit.n_tokens is None else unit.n_tokens)
        if unit.error is not None:
            run.errors[place] = unit.error
        if unit.unread:
            run.unread.add(place)
        for name, value in unit.numbers.items():
            _filled(run.numbers, name, place, Column).add(value)
        for name, choice in unit.choices.items():
            _filled(run.choices, name, place, Choices).add(choice)
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


def _filled(columns: dict[str, C], name: str, place: int, new: Callable[[], C]) -> C:
    """Return a column with a missing value for each unit before `place` that has none."""
    column = columns.setdefault(name, new())
    while len(column) < place:
        column.add(None)
    return column


@dataclasses.dataclass(frozen=True)
class Matched:
    """Pairs of units, and the units without a pair.

    Attributes:
        a, b: places of the units of each pair, in A's order; both have numbers.
        only_a, only_b: names of the units whose id the other run does not have, or not so often.
        other_text: names of the units whose id the other run has with another text.
        n_failed_pairs: pairs for which at least one run has no numbers.
        n_repeated: units of A whose id and text an earlier one has; these are paired in order.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    only_a: list[str]
    only_b: list[str]
    other_text: list[str]
    n_failed_pairs: int
    n_repeated: int


def match(a: Run, b: Run, *, by_text: bool = True) -> Matched:
    """Pair the units of two runs.

    A unit's partner has the same id and the same text; of several such units the k-th of one run
    is the partner of the k-th of the other. A unit without an id is paired by its text, and a
    failed one by its id, or by its name without one.

    Args:
        by_text: if False, ids alone decide.
    """
    keys_a, keys_b = (_keys(run, by_text) for run in (a, b))
    places_b = {key: place for place, key in keys_b.items()}
    pairs = [(place, places_b.pop(key)) for place, key in keys_a.items() if key in places_b]
    paired_a, paired_b = ({pair[side] for pair in pairs} for side in (0, 1))
    left_a = [place for place in range(a.n) if place not in paired_a]
    left_b = [place for place in range(b.n) if place not in paired_b]
    n_failed, left_a, left_b = _without_failed_pairs(a, b, left_a, left_b)
    ids_a, ids_b = ({run.ids[k] for k in left} for run, left in ((a, left_a), (b, left_b)))
    shared = (ids_a & ids_b) - {None}
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Matched(
        a=both[:, 0],
        b=both[:, 1],
        only_a=[a.names[k] for k in left_a if a.ids[k] not in shared],
        only_b=[b.names[k] for k in left_b if b.ids[k] not in shared],
        other_text=[a.names[k] for k in left_a if a.ids[k] in shared],
        n_failed_pairs=n_failed,
        n_repeated=sum(key[2] > 0 for key in keys_a.values()),
    )


Key = tuple[str | None, bytes | None, int]


def _keys(run: Run, by_text: bool) -> dict[int, Key]:
    """Return unit -> id, text and the number of earlier units with the same two."""
    seen: collections.Counter[tuple[str | None, bytes | None]] = collections.Counter()
    keys = {}
    for place, (id, text) in enumerate(zip(run.ids, run.texts, strict=True)):
        key = (id, text if by_text or id is None else None)
        if place not in run.errors and key != (None, None):
            keys[place] = (*key, seen[key])
            seen[key] += 1
    return keys


def _without_failed_pairs(
    a: Run, b: Run, left_a: Sequence[int], left_b: Sequence[int]
) -> tuple[int, list[int], list[int]]:
    """Pair failed units with units of the same id that are left, failed ones first.

    Returns:
        The number of pairs, and the units of A and of B that are still left.
    """
    units: dict[str, tuple[list[int], ...]] = {}  # id -> failed and other units of A, and of B
    for side, (run, left) in enumerate(((a, left_a), (b, left_b))):
        for k in left:
            lists = units.setdefault(run.ids[k] or run.names[k], ([], [], [], []))
            lists[2 * side + (k not in run.errors)].append(k)
    gone_a, gone_b = set[int](), set[int]()
    for failed_a, good_a, failed_b, good_b in units.values():
        n = min(len(failed_a), len(failed_b))
        for ours, theirs in (
            (failed_a[:n], failed_b[:n]), (failed_a[n:], good_b), (good_a, failed_b[n:])
        ):  # fmt: skip
            n_pairs = min(len(ours), len(theirs))
            gone_a.update(ours[:n_pairs])
            gone_b.update(theirs[:n_pairs])
    still_a = [k for k in left_a if k not in gone_a]
    return len(gone_a), still_a, [k for k in left_b if k not in gone_b]


class PairRecords(Sequence[dict[str, Any]]):
    """One record per pair, made on access: its name, and each number and decision of both runs."""

    def __init__(self, a: Run, b: Run, matched: Matched) -> None:
        self._a, self._b, self._matched = a, b, matched
        self._numbers = [name for name in a.numbers if name in b.numbers]
        self._choices = [name for name in a.choices if name in b.choices]

    def __len__(self) -> int:
        return len(self._matched.a)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        i, j = int(self._matched.a[place]), int(self._matched.b[place])
        out: dict[str, Any] = {"name": self._a.names[i]}
        for name in self._numbers:
            out[f"{name}_a"] = self._a.numbers[name].of_unit(i)
            out[f"{name}_b"] = self._b.numbers[name].of_unit(j)
        for name in self._choices:
            out[f"{name}_a"] = self._a.choices[name].values[i]
            out[f"{name}_b"] = self._b.choices[name].values[j]
        return out
