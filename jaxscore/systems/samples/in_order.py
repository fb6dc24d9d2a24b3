"""Records as they are finished, in the order of the items."""

from collections.abc import Callable, Container, Mapping
from typing import Any


class InOrder:
    """Passes each record on once it and all before it are finished."""

    def __init__(
        self,
        on_item: Callable[[Mapping[str, Any]], None] | None,
        finished: Callable[[int], Mapping[str, Any] | None],
        n_items: int,
        known: Container[int] = (),
    ) -> None:
        """Nothing is passed on yet.

        Args:
            on_item: takes the records; None where nobody does.
            finished: the record of an item by its index; None while it is unfinished.
            known: indices of items that an earlier run has finished; they are not passed on.
        """
        self._on_item, self._finished, self._known = on_item, finished, known
        self._next, self._n_items = 0, n_items

    def offer(self) -> None:
        """Something was finished: pass on what can be."""
        if self._on_item is None:
            return
        while self._next < self._n_items:
            record = self._finished(self._next)
            if record is None:
                return
            if self._next not in self._known:
                self._on_item(record)
            self._next += 1
