"""The tokens and the texts of a run on which two models lie furthest apart."""

import heapq
import itertools
from typing import Any

KEPT = 50  # of each


class Worst:
    """The items with the largest values, the first of equal ones; no more are held."""

    def __init__(self, kept: int = KEPT) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._kept, self._order = kept, itertools.count(0, -1)

    def takes(self, value: float) -> bool:
        """Whether an item of this value would be kept; one of 0 is not."""
        return value > 0 and (len(self._heap) < self._kept or value > self._heap[0][0])

    def add(self, value: float, item: Any) -> None:
        """An item that is taken puts out the one with the smallest value."""
        entry = value, next(self._order), item
        if len(self._heap) < self._kept:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def largest_first(self) -> list[Any]:
        return [item for _, _, item in sorted(self._heap, key=lambda one: (-one[0], -one[1]))]
