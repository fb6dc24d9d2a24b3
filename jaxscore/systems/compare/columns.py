"""Units of finished runs in columns, and their pairs: by id, and by the requested text.

A million units as objects would not fit in memory.
"""

import collections
import dataclasses
import hashlib
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

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
            fields = record if isinstance(record, dict) else {}
            name, error = fields.get("id"), fields.get("error")
            yield Unit(
                id=name if isinstance(name, str | int) else where,
                name=shown(where if name is None else name),
                error=f"{where}: {problem}" if error is None else str(error),
                unread=error is None,  # an item that could not be used has no other fields
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


Key = tuple[str | None, bytes | None]


@dataclasses.dataclass(frozen=True)
class Matched:
    """Pairs of units, and the units without a pair.

    Attributes:
        a, b: places of the units of each pair, in A's order; both have numbers.
        only_a, only_b: names of the units whose id the other run does not have, or not so often.
        other_text: names of the units whose id the other run has with another text.
        n_failed_pairs: pairs for which at least one run has no numbers.
        n_repeated: units of A whose id and text an earlier one has; these are paired in order.
        by_text: whether the texts of all units are known and were compared.
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    only_a: list[str]
    only_b: list[str]
    other_text: list[str]
    n_failed_pairs: int
    n_repeated: int
    by_text: bool


def match(a: Run, b: Run) -> Matched:
    """Pair the units of two runs.

    A unit's partner has the same id and the same text; of several such units the k-th of one run
    is the partner of the k-th of the other. If a run does not hold the texts, the ids alone decide.
    A unit that failed before its text was known has its id alone.
    """
    by_text = _known(a) and _known(b)
    keys_a, keys_b = (_keys(run, by_text) for run in (a, b))
    places_b = {key: place for place, key in enumerate(keys_b)}
    pairs = [(place, places_b.pop(key)) for place, key in enumerate(keys_a) if key in places_b]
    taken = {place for place, _ in pairs}
    left_a = [place for place in range(a.n) if place not in taken]
    left_b = sorted(places_b.values())
    failed_pairs, left_a, left_b = _by_id_alone(a, b, left_a, left_b)
    ids_a, ids_b = ({run.ids[k] for k in left} for run, left in ((a, left_a), (b, left_b)))
    other = (ids_a & ids_b) - {None}
    good = [(i, j) for i, j in pairs if i not in a.errors and j not in b.errors]
    both = np.array(good, np.int64).reshape(-1, 2)
    return Matched(
        a=both[:, 0],
        b=both[:, 1],
        only_a=[a.names[k] for k in left_a if a.ids[k] not in other],
        only_b=[b.names[k] for k in left_b if b.ids[k] not in other],
        other_text=[a.names[k] for k in left_a if a.ids[k] in other],
        n_failed_pairs=len(pairs) - len(good) + failed_pairs,
        n_repeated=sum(key[2] > 0 for key in keys_a),
        by_text=by_text,
    )


def _known(run: Run) -> bool:
    """Whether the text of every unit that did not fail is known."""
    return all(text is not None or k in run.errors for k, text in enumerate(run.texts))


def _keys(run: Run, by_text: bool) -> list[tuple[str | None, bytes | None, int]]:
    """Id, text and how many earlier units have the same two."""
    seen: collections.Counter[Key] = collections.Counter()
    out = []
    for place, (id, text) in enumerate(zip(run.ids, run.texts, strict=True)):
        # Without an id the text is all that there is.
        key = (id, text if by_text or id is None else None)
        out.append((*key, seen[key] if key != (None, None) else -1 - place))
        seen[key] += 1
    return out


def _by_id_alone(
    a: Run, b: Run, left_a: Sequence[int], left_b: Sequence[int]
) -> tuple[int, list[int], list[int]]:
    """Pair what is left with a unit of the same id that failed without a text.

    Returns:
        How many pairs, and what is still left of A and of B.
    """
    waiting: dict[str, tuple[deque[int], deque[int]]] = {}  # of B: failed so, and others
    for k in left_b:
        if (id := b.ids[k]) is not None:
            waiting.setdefault(id, (deque(), deque()))[not _textless(b, k)].append(k)
    still_a, gone = [], set()
    for k in left_a:
        failed, good = waiting.get(a.ids[k] or "", (deque[int](), deque[int]()))
        fitting = failed or (good if _textless(a, k) else None)
        if fitting:
            gone.add(fitting.popleft())
        else:
            still_a.append(k)
    return len(gone), still_a, [k for k in left_b if k not in gone]


def _textless(run: Run, place: int) -> bool:
    """Whether a unit failed before its text was known."""
    return place in run.errors and run.texts[place] is None


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
