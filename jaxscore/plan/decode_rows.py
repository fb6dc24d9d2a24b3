"""Which row of a cache each text of a lane gets, one block of steps after the other.

block   0  1  2  3      texts a to f wait in planned order; "." is an idle row
row 0   a  a  e  e
row 1   b  d  d  .
row 2   c  c  c  f
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

SHARE = 8  # one of so many rows is filled at a time; each filling is a few programs


def chunk(n_rows: int) -> int:
    """Rows that are filled at a time, of a cache of so many; as many are free before any is."""
    return max(1, n_rows // SHARE)


class DecodeRows(Generic[T]):
    """The rows of a lane's cache, and the texts that wait for one.

    Invariant: the row and the block in which a text begins depend on the number of rows, on the
    order of the texts and on how many blocks each takes. They depend neither on time nor on which
    of the texts are known from an earlier run. So a run that skips the blocks in which no text is
    written gives every other text its row in an uninterrupted run. This does not hold after an
    abandoned text: nobody knows how many blocks it would have taken.
    """

    def __init__(self, waiting: Iterable[tuple[T, int | None]], n_rows: int) -> None:
        """`waiting` has each text, in planned order, and the number of blocks that it takes, None
        where that is unknown. A text with a known number keeps a row for so many blocks, and
        `begin` does not return it. `waiting` is read no further than rows are free."""
        self._waiting: Iterator[tuple[T, int | None]] = iter(waiting)
        self._free = list(range(n_rows))
        self._least = chunk(n_rows)
        self._written: set[int] = set()  # rows of texts of unknown length
        self._known: dict[int, int] = {}  # row -> blocks that a known text still takes

    def begin(self) -> list[tuple[int, T]]:
        """Begin a block.

        Returns:
            Rows, ascending, with the texts that are to be written in them from this block on.
        """
        out: list[tuple[int, T]] = []
        if len(self._free) < self._least:
            return out
        for row, (text, n_blocks) in zip(tuple(self._free), self._waiting, strict=False):
            self._free.remove(row)
            if n_blocks is None:
                self._written.add(row)
                out.append((row, text))
            else:
                self._known[row] = n_blocks
        return out

    def end(self, rows: Iterable[int]) -> None:
        """End the block; the texts in these rows have ended, beside those that are known to."""
        self._known = {row: n - 1 for row, n in self._known.items()}
        known = [row for row, n in self._known.items() if n <= 0]
        for row in known:
            del self._known[row]
        given = set(rows)
        self._written -= given
        self._free = sorted({*self._free, *known, *given})
