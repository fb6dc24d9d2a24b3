"""Pairs of units of two runs: by id, and by what was asked."""

import collections
import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from jaxscore.systems.compare.columns import Run

Key = tuple[str | None, bytes | None]


@dataclasses.dataclass(frozen=True)
class Matched:
    """Pairs of units, and the units without a pair.

    Attributes:
        a, b: places of the units of each pair, in A's order; both have numbers.
        only_a, only_b: names of the units whose id the other run does not have, or not so often.
        other_text: names of the units whose id the other run has with another text.
        n_failed_pairs: pairs of which at least one run has no numbers.
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
