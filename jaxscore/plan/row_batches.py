"""Host arrays of the batches, from the places that pieces of tries have in rows."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxscore.plan.cutting import Piece
from jaxscore.plan.forest import Forest

TARGETS = 4  # for each query; one with more takes several slots


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Host arrays of `device.rows.Rows`, and which edges its answers are.

    Attributes:
        edge: int32 [n_queries, TARGETS], index of the forest's edge, -1 where there is none.
        n_tokens: tokens that are not padding.
    """

    ids: np.ndarray
    position: np.ndarray
    subtree_end: np.ndarray
    query: np.ndarray
    target: np.ndarray
    edge: np.ndarray
    n_tokens: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and row length: what a compiled program is made for."""
        rows, length = self.ids.shape
        return rows, length


class Slots:
    """Every token slot of a plan in one line, group after group, row after row."""

    def __init__(
        self, forest: Forest, lengths: Sequence[int], rows: Sequence[list[list[Piece]]]
    ) -> None:
        """`lengths` and `rows` as of `packing.Plan`."""
        self.forest = forest
        starts, sizes, slots, ends, is_path = [], [], [], [], []
        self._group_end: dict[int, int] = {}
        first = 0
        for length, group in zip(lengths, rows, strict=True):
            for row in group:
                column = 0
                for piece in row:
                    ranges = piece.ranges() if piece.parts else ((piece.start, piece.stop, 0),)
                    for start, stop, span in ranges:
                        starts.append(start)
                        sizes.append(stop - start)
                        slots.append(first + column)
                        ends.append(column + span if span else column - start)
                        is_path.append(span > 0)
                        column += stop - start
                first += length
            self._group_end[length] = first
        sizes_ = np.array(sizes, np.int64)
        within = np.arange(int(sizes_.sum())) - np.repeat(np.cumsum(sizes_) - sizes_, sizes_)
        node = np.repeat(np.array(starts, np.int64), sizes_) + within
        slot = np.repeat(np.array(slots, np.int64), sizes_) + within
        path = np.repeat(np.array(is_path, bool), sizes_)
        end = np.repeat(np.array(ends, np.int64), sizes_)
        self.node = np.full(first, -1, np.int32)
        self.node[slot] = node
        self.end = np.zeros(first, np.int32)
        self.end[slot] = np.where(path, end, forest.subtree_end[node] + end)
        # A repeated path is asked for its edges only where it stands first.
        place = np.empty(forest.n_nodes, np.int64)
        place[node[path][::-1]] = slot[path][::-1]
        place[node[~path]] = slot[~path]
        at = place[forest.edge_node]
        self.edge = np.argsort(at, kind="stable")
        self.edge_slot = at[self.edge]

    def group_end(self, length: int) -> int:
        return self._group_end[length]

    def batches(self, first: int, stop: int, count: int, length: int) -> Iterator[RowBatch]:
        """The rows in slots [first, stop) as a batch of `count` rows.

        A second batch over the same rows follows where more queries are asked for than there
        are tokens, which takes more than TARGETS continuations at most nodes.
        """
        budget = count * length
        node = np.full(budget, -1, np.int32)
        node[: stop - first] = self.node[first:stop]
        column = np.arange(budget, dtype=np.int32) % length
        real = node >= 0
        end = column + 1
        end[: stop - first] = np.where(
            real[: stop - first], self.end[first:stop], end[: stop - first]
        )
        a, b = np.searchsorted(self.edge_slot, [first, stop])
        query, target, edge = self._queries(int(a), int(b), first)
        for low in range(0, len(query), budget):
            part = slice(low, min(low + budget, len(query)))
            n = part.stop - part.start
            padded_query = np.zeros(budget, np.int32)
            padded_query[:n] = query[part]
            padded_target = np.zeros((budget, TARGETS), np.int32)
            padded_target[:n] = target[part]
            yield RowBatch(
                ids=np.where(real, self.forest.ids[node], 0).reshape(count, length),
                position=np.where(real, self.forest.depth[node], 0).reshape(count, length),
                subtree_end=end.reshape(count, length),
                query=padded_query,
                target=padded_target,
                edge=edge[part],
                n_tokens=int(real.sum()) if low == 0 else 0,
            )

    def _queries(self, a: int, b: int, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Query slots of the edges [a, b): index, targets and edges, TARGETS to a slot."""
        slot, edge = self.edge_slot[a:b], self.edge[a:b]
        _, starts, counts = np.unique(slot, return_index=True, return_counts=True)
        n_slots = -(-counts // TARGETS)
        base = np.cumsum(n_slots) - n_slots
        rank = np.arange(b - a) - np.repeat(starts, counts)
        at = np.repeat(base, counts) + rank // TARGETS
        total = int(n_slots.sum())
        query = np.repeat(slot[starts] - first, n_slots).astype(np.int32)
        target = np.zeros((total, TARGETS), np.int32)
        edges = np.full((total, TARGETS), -1, np.int32)
        target[at, rank % TARGETS] = self.forest.edge_target[edge]
        edges[at, rank % TARGETS] = edge
        return query, target, edges
