"""Rows of `--reproducible`: every sequence in a batch of its own.

What a program is given then depends on the sequence alone: its row is the shortest power of two
that holds it, its queries are its scored tokens in order from slot 0, and nothing stands beside
it. Equal inputs to one program have equal bits, whatever the hardware adds up in which order.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import numpy as np

from jaxscore.plan.forest import Forest, within
from jaxscore.plan.row_batches import ANSWERS, RowBatch, questions
from jaxscore.plan.row_shapes import SHORTEST_ROW, attention_cost


@dataclasses.dataclass(frozen=True)
class OnePerRow:
    """A batch for each path of a forest built with `Share.WHOLE`. As `packing.Plan`."""

    forest: Forest
    width: int

    @property
    def n_tokens(self) -> int:
        return self.forest.n_nodes

    @property
    def cost(self) -> float:
        """Padding and attention counted, in tokens of linear work."""
        lengths = [row_length(stop - start) for start, stop in self.rows]
        return sum(length * attention_cost(length, self.width) for length in lengths)

    def layout(self) -> bytes:
        """What beside the forest decides the batches."""
        return repr((SHORTEST_ROW, ANSWERS)).encode()

    def batches(self) -> Iterator[RowBatch]:
        """Shorter rows first; every edge of the forest is in exactly one batch."""
        for start, stop in self.rows:
            yield from self._of_path(start, stop)

    @functools.cached_property
    def rows(self) -> list[tuple[int, int]]:
        """The nodes of each row, from the first one to behind the last one."""
        bounds = [*np.flatnonzero(self.forest.depth == 0).tolist(), self.forest.n_nodes]
        return sorted(itertools.pairwise(bounds), key=lambda path: row_length(path[1] - path[0]))

    def _of_path(self, start: int, stop: int) -> Iterator[RowBatch]:
        """Its batch; more of the same row where it has more than ANSWERS answers per token."""
        n, forest = stop - start, self.forest
        length = row_length(n)
        a, b = within(forest.edge_node, start, stop)
        ids, position = np.zeros((2, 1, length), np.int32)
        ids[0, :n], position[0, :n] = forest.ids[start:stop], np.arange(n)
        end = np.arange(1, length + 1, dtype=np.int32)[None]
        end[0, :n] = n
        column, answer = forest.edge_node[a:b] - start, forest.edge_target[a:b]
        for k, asked in enumerate(questions(column, answer, np.arange(a, b), length)):
            yield RowBatch(ids, position, end, asked, n_tokens=0 if k else n)


def row_length(n: int) -> int:
    """The power of two, from the shortest row on, that holds a path of n tokens."""
    return max(SHORTEST_ROW, 1 << (n - 1).bit_length())
