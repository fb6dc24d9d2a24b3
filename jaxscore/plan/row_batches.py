"""The few shapes of rows and batches, and what a token costs in a row of each length."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.plan.tries import Forest, range_within

SHORTEST_ROW = 64  # tokens
TAIL = 8  # the last rows of a length go in batches of an eighth
SMALL_BATCH_COST = 1.1  # of a token in such a batch, against one in a whole batch


def row_lengths(max_positions: int) -> list[int]:
    """Powers of two and the lengths half-way between, up to one that holds the longest path.

    Tries of like size, as one question with its answers makes them, pad a row by up to half
    with powers of two alone, and by up to a third so.
    """
    lengths = [SHORTEST_ROW]
    while lengths[-1] < max_positions:
        is_power = len(lengths) % 2
        lengths.append(lengths[-1] * 3 // 2 if is_power else lengths[-1] * 4 // 3)
    return lengths


def batch_rows(n_rows: int, length: int, batch_tokens: int, tail: int = TAIL) -> list[int]:
    """Rows of each batch: whole budgets, then `tail`-ths of one where they pad less.

    Two shapes for each row length, so that a run compiles few programs and a single short request
    does not pay for a whole budget. A tail of 1 makes one shape.
    """
    full = max(1, batch_tokens // length)
    small = max(1, full // tail)
    batches = [full] * (n_rows // full)
    last = [small] * -(-(n_rows % full) // small)
    return batches + (last if sum(last) * SMALL_BATCH_COST <= full else [full])


def attention_cost(n: int, width: int) -> float:
    """What a token costs that attends in a row of n, in tokens of linear work.

    Attention adds about n / (6 width) (`design.md`).
    """
    return 1 + n / (6 * width)


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


TARGETS_PER_TOKEN = 4  # slots for answers, per token of a batch


class ScoredPositions(NamedTuple):
    """Host arrays of `device.rows.Asked`, and which edges its answers are.

    Attributes:
        query: int32 [tokens of the batch], in order, zeros behind the last one.
        slot, answer: int32 [TARGETS_PER_TOKEN * tokens of the batch], likewise.
        edge: int32 [n_answers], index of each answer's edge in the forest.
    """

    query: np.ndarray
    n_queries: int
    slot: np.ndarray
    answer: np.ndarray
    edge: np.ndarray


def split_scored(
    token: np.ndarray, answer: np.ndarray, edge: np.ndarray, n_tokens: int
) -> Iterator[ScoredPositions]:
    """What is asked of a batch, in parts that have room in it, all of them with every query.

    Fewer queries in a part would change the sizes of the products that their terms come from.

    Args:
        token: [n], the token of the batch after which each answer is wanted, in order.
        answer, edge: [n], see `ScoredPositions`.
        n_tokens: of the batch, padding included.
    """
    room = TARGETS_PER_TOKEN * n_tokens
    asked, slot = np.unique(token, return_inverse=True)
    query = _padded(asked, n_tokens)
    for low in range(0, len(token), room):
        part = slice(low, low + room)
        yield ScoredPositions(
            query,
            len(asked),
            _padded(slot[part], room),
            _padded(answer[part], room),
            edge[part].astype(np.int32),
        )


def _padded(values: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros(length, np.int32)
    out[: len(values)] = values
    return out


@dataclasses.dataclass(frozen=True)
class RowBatch:
    """Host arrays of `device.rows.Rows`, and which edges its answers are.

    Attributes:
        n_tokens: tokens that are not padding.
    """

    ids: np.ndarray
    position: np.ndarray
    subtree_end: np.ndarray
    scored: ScoredPositions
    n_tokens: int

    @property
    def edge(self) -> np.ndarray:
        """int32 [n_answers], index of each answer's edge in the forest."""
        return self.scored.edge

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and row length: what a compiled program is made for."""
        rows, length = self.ids.shape
        return rows, length


class RowLayout:
    """Every token slot of a plan in one line, group after group, row after row."""

    def __init__(
        self, forest: Forest, lengths: Sequence[int], n_rows: Sequence[int], stretches: Stretches
    ) -> None:
        """`lengths` and `stretches` as of `PackedRows`; `n_rows` are the rows of each length."""
        self.forest = forest
        start, stop, span, n_in_row = stretches
        size = stop - start
        row_length = np.repeat(np.array(lengths, np.int64), n_rows)
        row_first = np.cumsum(row_length) - row_length
        group_end = np.cumsum(np.array(lengths, np.int64) * n_rows).tolist()
        self._group_end = dict(zip(lengths, group_end, strict=True))
        first = group_end[-1] if group_end else 0
        before = np.cumsum(size) - size  # tokens of the stretches before, in all rows
        own_first = np.cumsum(n_in_row) - n_in_row
        column = before - np.repeat(before[own_first], n_in_row)
        at = np.arange(int(size.sum())) - np.repeat(before, size)
        node = np.repeat(start, size) + at
        slot = np.repeat(np.repeat(row_first, n_in_row) + column, size) + at
        path = np.repeat(span > 0, size)
        end = np.repeat(np.where(span > 0, column + span, column - start), size)
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

        A second batch over the same rows follows where they exceed TARGETS_PER_TOKEN answers per
        token.
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
        a, b = range_within(self.edge_slot, first, stop)
        edge = self.edge[a:b]
        token, answer = self.edge_slot[a:b] - first, self.forest.edge_target[edge]
        for k, asked in enumerate(split_scored(token, answer, edge, budget)):
            yield RowBatch(
                ids=np.where(real, self.forest.ids[node], 0).reshape(count, length),
                position=np.where(real, self.forest.depth[node], 0).reshape(count, length),
                subtree_end=end.reshape(count, length),
                scored=asked,
                n_tokens=0 if k else int(real.sum()),
            )


@dataclasses.dataclass(frozen=True)
class OnePerRow:
    """A batch for each path of a forest built with `Share.WHOLE`. As `packing.PackedRows`."""

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
        return repr((SHORTEST_ROW, TARGETS_PER_TOKEN)).encode()

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
        """Its batch; more of the same row if it exceeds TARGETS_PER_TOKEN."""
        n, forest = stop - start, self.forest
        length = row_length(n)
        a, b = range_within(forest.edge_node, start, stop)
        ids, position = np.zeros((2, 1, length), np.int32)
        ids[0, :n], position[0, :n] = forest.ids[start:stop], np.arange(n)
        end = np.arange(1, length + 1, dtype=np.int32)[None]
        end[0, :n] = n
        column, answer = forest.edge_node[a:b] - start, forest.edge_target[a:b]
        for k, asked in enumerate(split_scored(column, answer, np.arange(a, b), length)):
            yield RowBatch(ids, position, end, asked, n_tokens=0 if k else n)


def row_length(n: int) -> int:
    """The power of two, from the shortest row on, that holds a path of n tokens."""
    return max(SHORTEST_ROW, 1 << (n - 1).bit_length())
