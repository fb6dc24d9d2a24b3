"""The requests of a run of `score` for its page, as they go by."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from jaxscore.systems.score.requests_file import Line
from jaxscore.systems.score.worst_requests import WorstRequests


class Watched:
    """Lines that are read and the records that come of them, which have the same order.

    Attributes:
        items: what the page shows of them.
    """

    def __init__(
        self,
        lines: Iterable[Line],
        write: Callable[[Mapping[str, Any]], None],
        measures: Collection[str] = (),
    ) -> None:
        """`write` takes each record too; `measures` are those that were asked for."""
        self.items = WorstRequests(measures)
        self._lines, self._write = lines, write
        self._contexts: deque[str] = deque()

    def __iter__(self) -> Iterator[Line]:
        for line in self._lines:
            self._contexts.append(line.request.context)
            yield line

    def take(self, record: Mapping[str, Any]) -> None:
        """The record of the next line."""
        self._write(record)
        self.items.add(record, self._contexts.popleft())
