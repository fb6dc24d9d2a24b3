"""What lies in the rows of a plan, as arrays: stretches of a forest's nodes, row after row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.plan.cutting import Pieces


class Stretches(NamedTuple):
    """The ranges of all pieces, see `Pieces.ranges`.

    Attributes:
        start, stop, span: int64, one entry for each stretch.
        n_in_row: int64, one entry for each row: how many of them it holds.
    """

    start: np.ndarray
    stop: np.ndarray
    span: np.ndarray
    n_in_row: np.ndarray

    @classmethod
    def of(cls, pieces: Pieces, rows: Sequence[Sequence[int]]) -> "Stretches":
        """Of each row its pieces, in order."""
        flat: list[int] = []
        n_in_row = []
        for row in rows:
            before = len(flat)
            for k in row:
                if pieces.parts[k]:
                    for one in pieces.ranges(k):
                        flat += one
                else:
                    flat += (pieces.start[k], pieces.stop[k], 0)
            n_in_row.append((len(flat) - before) // 3)
        columns = np.array(flat, np.int64).reshape(-1, 3).T
        start, stop, span = np.ascontiguousarray(columns)
        return cls(start, stop, span, np.array(n_in_row, np.int64))
