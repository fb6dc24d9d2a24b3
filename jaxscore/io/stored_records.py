"""Sequences whose elements are read when they are needed, so that memory stays bounded."""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Generic, TypeVar, overload

import numpy as np

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence that makes each element anew; `element` of a subclass makes one."""

    def element(self, place: int) -> T:
        """Make the element at a place from 0."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        places = range(len(self))[place]
        return self.element(places) if isinstance(places, int) else [*map(self.element, places)]

    def __iter__(self) -> Iterator[T]:
        return map(self.element, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | LazySequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # as of a list


class Lazy(LazySequence[T], Generic[T]):
    """The results of a function of each of some places."""

    def __init__(self, places: Sequence[int] | np.ndarray, make: Callable[[int], T]) -> None:
        self._places, self._make = places, make

    def __len__(self) -> int:
        return len(self._places)

    def element(self, place: int) -> T:
        """See `LazySequence.element`."""
        return self._make(int(self._places[place]))


class StoredRecords(LazySequence[dict[str, Any]]):
    """Records in a file. One that was read may be read again as it is: it must not be changed."""

    def __init__(self, records: Iterable[Mapping[str, Any]], file: IO[bytes]) -> None:
        """Write all records, one after the other.

        Args:
            file: new, open for writing and reading as long as records are read.
        """
        self._file, self._ends = file, array("q", [0])
        self._last: tuple[int, dict[str, Any]] = -1, {}
        for record in records:
            self._ends.append(self._ends[-1] + file.write(json.dumps(record).encode()))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def element(self, place: int) -> dict[str, Any]:
        """See `LazySequence.element`."""
        if place != self._last[0]:
            start, end = self._ends[place], self._ends[place + 1]
            self._file.seek(start)
            self._last = place, json.loads(self._file.read(end - start))
        return self._last[1]


def where(records: Sequence[T], test: Callable[[T], bool]) -> Lazy[T]:
    """The elements that pass a test; the memory of each is its place."""
    places = array("q", (place for place, record in enumerate(records) if test(record)))
    return Lazy(places, records.__getitem__)
