"""The pairs of two runs as records, made when they are asked for."""

import math
from collections.abc import Sequence
from typing import Any, overload

from jaxscore.systems.compare.matching import Matched
from jaxscore.systems.compare.run import Column, Run

MOST_CHANGED = 50  # pairs that the report lists by their largest difference


class Pairs(Sequence[dict[str, Any]]):
    """One record per pair: its name, and each number and decision of both runs.

    A million pairs as objects would take more memory than all that is computed from them.
    """

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
            out[f"{name}_a"] = _value(self._a.numbers[name], i)
            out[f"{name}_b"] = _value(self._b.numbers[name], j)
        for name in self._choices:
            out[f"{name}_a"] = self._a.choices[name].values[i]
            out[f"{name}_b"] = self._b.choices[name].values[j]
        return out


def _value(column: Column, place: int) -> Any:
    """The number of a unit, or the list of its numbers; None for NaN."""
    begin = column.ends[place - 1] if place else 0
    own = [None if math.isnan(one) else one for one in column.values[begin : column.ends[place]]]
    return own[0] if len(own) == 1 else own
