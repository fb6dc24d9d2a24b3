"""Packs tries into rows of a few lengths: cuts long tries, packs the pieces by best fit.

    tries    The cat ─┬─ ran            rows of 8    The cat ran sat down A dog ·
                      └─ sat down                    A piece may share a row with others: the
             A dog                                   attention mask keeps tries apart.

A trie that fits in a row is not cut. A longer one is cut at its branches, and each piece repeats
the path from the root. The row length is chosen by cost: long rows have fewer repeated and padding
tokens, but a higher cost of attention.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.plan.row_batches import (
    RowBatch,
    attention_cost,
    batch_rows,
    row_lengths,
    split_scored,
    tails,
)
from jaxscore.plan.tries import Forest, range_within

TOP = -1  # the branch above all roots


class Piece(NamedTuple):
    """Part of a trie that goes into one row.

    Attributes:
        start, stop: range of nodes in depth-first order: a complete subtree or, if there are
            `parts`, a segment of a path without branches.
        size: number of tokens, including those of `parts`.
        parts: pieces of the subtrees below that segment.
    """

    start: int
    stop: int
    size: int
    parts: Sequence["Piece"] = ()


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Packed rows of a forest, and their batches.

    Each row is a sequence of node ranges. Rows are grouped by length.

    Attributes:
        lengths: row length of each group, ascending.
        n_rows: number of rows of each group.
        start, stop: int64 [ranges], node ranges of all rows, in order.
        span: int64 [ranges]; 0 for a complete subtree; for a segment of a path, the number of
            tokens from its start to the end of its last descendant in this row.
        n_in_row: int64 [rows], number of ranges in each row.
        batch_tokens: number of tokens of a batch, including padding.
        cost: cost in tokens of linear work, with padding and attention; NaN for uniform rows.
        tail: divisor of the size of the last batches of a length, see `batch_rows`.
    """

    forest: Forest
    lengths: list[int]
    n_rows: list[int]
    start: np.ndarray
    stop: np.ndarray
    span: np.ndarray
    n_in_row: np.ndarray
    batch_tokens: int
    cost: float
    tail: int

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the rows, including repeated paths, without padding."""
        return int((self.stop - self.start).sum())

    def layout(self) -> bytes:
        """Return bytes that, together with the forest, determine the batches, for digests."""
        facts = (self.lengths, self.n_rows, self.batch_tokens, self.tail)
        ranges = (self.start, self.stop, self.span, self.n_in_row)
        return repr(facts).encode() + b"".join(array.tobytes() for array in ranges)

    @functools.cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Content of the cells of all rows, concatenated.

        Returns:
            node: int32 [cells], the node in each cell, -1 for padding.
            end: int32 [cells], the node's `subtree_end` as a column of the row.
            edge: int64 [E], edges sorted by the cell at which they are scored.
            edge_cell: int64 [E], the cell of each of these edges.
        """
        size = self.stop - self.start
        row_length = np.repeat(np.array(self.lengths, np.int64), self.n_rows)
        row_first = np.cumsum(row_length) - row_length
        before = np.cumsum(size) - size  # tokens of all preceding ranges, in all rows
        first_range = np.cumsum(self.n_in_row) - self.n_in_row
        column = before - np.repeat(before[first_range], self.n_in_row)
        nth = np.arange(int(size.sum())) - np.repeat(before, size)
        node = np.repeat(self.start, size) + nth
        cell = np.repeat(np.repeat(row_first, self.n_in_row) + column, size) + nth
        is_path = np.repeat(self.span > 0, size)
        # `subtree_end` of a path is the end of its span; that of a subtree moves with its start.
        end = np.where(self.span > 0, column + self.span, column - self.start)
        end = np.repeat(end, size)
        n_cells = int(row_length.sum())
        node_of, end_of = np.full(n_cells, -1, np.int32), np.zeros(n_cells, np.int32)
        node_of[cell] = node
        end_of[cell] = np.where(is_path, end, self.forest.subtree_end[node] + end)
        # The edges of a repeated path are scored only at its first occurrence.
        first_cell = np.empty(self.forest.n_nodes, np.int64)
        first_cell[node[is_path][::-1]] = cell[is_path][::-1]
        first_cell[node[~is_path]] = cell[~is_path]
        cell_of_edge = first_cell[self.forest.edge_node]
        edge = np.argsort(cell_of_edge, kind="stable")
        return node_of, end_of, edge, cell_of_edge[edge]

    def batches(self) -> Iterator[RowBatch]:
        """Yield the batches in order. Every edge of the forest is in exactly one of them.

        Rows with more edges than TARGETS_PER_TOKEN allows are repeated in further batches.
        """
        nodes, ends, edges, edge_cell = self.rows
        forest, first, group_end = self.forest, 0, 0
        for length, n_rows in zip(self.lengths, self.n_rows, strict=True):
            group_end += length * n_rows
            for count in batch_rows(n_rows, length, self.batch_tokens, self.tail):
                stop, budget = min(first + count * length, group_end), count * length
                node = np.full(budget, -1, np.int32)
                node[: stop - first] = nodes[first:stop]
                is_token = node >= 0
                end = np.arange(budget, dtype=np.int32) % length + 1  # padding attends to itself
                end[is_token] = ends[first:stop][is_token[: stop - first]]
                a, b = range_within(edge_cell, first, stop)
                edge, token = edges[a:b], edge_cell[a:b] - first
                groups = split_scored(token, forest.edge_target[edge], edge, budget)
                for k, scored in enumerate(groups):
                    yield RowBatch(
                        ids=np.where(is_token, forest.ids[node], 0).reshape(count, length),
                        position=np.where(is_token, forest.depth[node], 0).reshape(count, length),
                        subtree_end=end.reshape(count, length),
                        scored=scored,
                        n_tokens=0 if k else int(is_token.sum()),
                    )
                first = stop


def pack_rows(
    forest: Forest,
    *,
    max_positions: int,
    width: int,
    batch_tokens: int,
    prefix: int = 0,
    pack: bool = True,
    deal: bool = False,
    batch_cost: float = 0.0,
    program_cost: float = 0.0,
) -> PackedRows:
    """Pack a forest into rows of the lengths with the lowest cost.

    Every path goes into the shortest row that holds it, subject to a minimum row length, which is
    chosen here. A higher minimum also means fewer shapes, each of which needs its own program.

    Args:
        max_positions: length of the longest path of any sequence, without the prefix.
        width: width of the model's hidden states.
        batch_tokens: number of tokens of each batch, including padding.
        prefix: number of tokens of a prefix cache that all tokens attend to.
        pack: if False, each row holds one piece, for models without the interval mask.
        deal: if True, rows of one length are dealt to their batches in turn. Rows are filled by
            decreasing size, and the chunks of a batch (`plan.chunks`) fill better with pieces of
            all sizes.
        batch_cost: cost of each batch in tokens of linear work.
        program_cost: cost of each batch shape in tokens of linear work; it affects the choice, but
            is not included in the plan's cost.
    """
    # Over 60 lines: half are documentation; the rest is one search with early exits.
    allowed = row_lengths(max_positions)
    cutter = TrieCutter(forest, allowed)
    best: tuple[int, int, float] | None = None  # minimum row length, tail and cost
    best_total = math.inf
    # All minimum lengths below the shortest path give the same rows.
    shortest = int(forest.reach.min()) if forest.n_nodes else 0
    for base in allowed[bisect.bisect_left(allowed, shortest) :]:
        # The lower bound is each node once without padding; longer rows only add attention.
        if forest.n_nodes * attention_cost(base + prefix, width) >= best_total:
            break
        lower_bound = cutter.least_tokens(base).items()
        if sum(k * attention_cost(n + prefix, width) for n, k in lower_bound) < best_total:
            n_rows = {
                n: sum((rooms_left(counts, n) if pack else counts).values())
                for n, counts in sorted(cutter.count_sizes(base).items())
            }
            # A single row is its own batch, so that a short text alone does not cost eight rows.
            choice = (*tails(expensive=batch_cost > 0), 1)
            for tail in choice if sum(n_rows.values()) > 1 else (batch_tokens,):
                shapes = [
                    (count, n)
                    for n, k in n_rows.items()
                    for count in batch_rows(k, n, batch_tokens, tail)
                ]
                cost = sum(count * n * attention_cost(n + prefix, width) for count, n in shapes)
                # A row longer than `batch_tokens` saves no batch.
                cost += batch_cost * sum(max(1, count * n / batch_tokens) for count, n in shapes)
                total = cost + program_cost * len(set(shapes))
                if total < best_total:
                    best_total, best = total, (base, tail, cost)
        if base >= forest.n_nodes:
            break
    assert best is not None  # no path is longer than max_positions, so at least one length fits
    base, tail, cost = best
    return _as_arrays(forest, cutter.cut(base), pack, batch_tokens, cost, tail, deal)


def pack_uniform_rows(forest: Forest, *, row_length: int, batch_tokens: int) -> PackedRows:
    """Pack a forest into batches of one shape, so that a single program is compiled.

    Args:
        row_length: row length, at least that of the longest path.
        batch_tokens: see `pack_rows`.
    """
    pieces = TrieCutter(forest, [row_length]).cut(row_length)
    return _as_arrays(forest, pieces, True, batch_tokens, math.nan, tail=1)


def _as_arrays(
    forest: Forest,
    pieces: dict[int, list[Piece]],
    pack: bool,
    batch_tokens: int,
    cost: float,
    tail: int,
    deal: bool = False,
) -> PackedRows:
    """Pack the pieces of each row length into rows, and flatten the rows into arrays."""
    lengths, n_rows = sorted(pieces), []
    flat: list[int] = []  # start, stop and span of each range
    n_in_row = []
    for length in lengths:
        pieces_of_length = pieces[length]
        sizes = [piece.size for piece in pieces_of_length]
        rows = best_fit(sizes, length) if pack else [[k] for k in range(len(sizes))]
        if deal:
            n_batches = -(-len(rows) // max(1, batch_tokens // length))
            rows = [row for first in range(n_batches) for row in rows[first::n_batches]]
        n_rows.append(len(rows))
        for row in rows:
            n_before = len(flat)
            pending = [pieces_of_length[k] for k in reversed(row)]
            while pending:
                piece = pending.pop()
                flat += (piece.start, piece.stop, piece.size if piece.parts else 0)
                pending += piece.parts[::-1]
            n_in_row.append((len(flat) - n_before) // 3)
    start, stop, span = np.ascontiguousarray(np.array(flat, np.int64).reshape(-1, 3).T)
    in_row = np.array(n_in_row, np.int64)
    return PackedRows(forest, lengths, n_rows, start, stop, span, in_row, batch_tokens, cost, tail)


class TrieCutter:
    """Cuts the tries of a forest into pieces that fit rows of given lengths.

    Works on chains: maximal runs of nodes in which each is the only child of the previous one. A
    window of requests has about two chains for each request, and far more nodes.
    """

    def __init__(self, forest: Forest, lengths: list[int]) -> None:
        """`lengths` are the row lengths, ascending."""
        end = forest.subtree_end.astype(np.int64)
        begins = np.ones(len(end), bool)
        begins[1:] = end[1:] != end[:-1]
        start = np.flatnonzero(begins)
        self._size = end[start] - start  # nodes of the subtree that starts with the chain
        self._depth = forest.depth[start] - forest.depth[start[:1]]  # nodes above the chain
        # The shortest row length that holds the longest path through the chain.
        self._needed = np.array(lengths, np.int64)[np.searchsorted(lengths, forest.reach[start])]
        self._start: list[int] = start.tolist()
        self._stop = [*self._start[1:], len(end)]
        # The chain after each chain's subtree; at `TOP`, the last index, the number of chains.
        self._after: list[int] = [*np.searchsorted(start, end[start]).tolist(), len(start)]

    def least_tokens(self, base: int) -> dict[int, int]:
        """Return the number of tokens by row length without repeated paths: a lower bound.

        Args:
            base: minimum row length.
        """
        is_root = self._depth == 0
        size, length = self._size[is_root], np.maximum(base, self._needed[is_root])
        length = np.where(size <= length, length, base)  # pieces may fit in shorter rows
        return {n: int(size[length == n].sum()) for n in np.unique(length).tolist()}

    def count_sizes(self, base: int) -> dict[int, dict[int, int]]:
        """Count the pieces that `cut` returns by size, without creating them.

        Returns:
            Row length -> size -> number of pieces.
        """
        length, opened, above = self._open(base)
        size = self._size.tolist()
        hanging: dict[int, dict[int, dict[int, int]]] = {branch: {} for branch in opened}
        for branch, children in opened.items():
            for k in children:
                if k not in opened:
                    counts = hanging[branch].setdefault(length[k], {})
                    counts[size[k]] = counts.get(size[k], 0) + 1
        for branch in reversed([*above]):
            path, depth = self._path(branch)
            for n, counts in hanging[branch].items():
                onto = hanging[above[branch]].setdefault(n, {})
                for room, n_bins in rooms_left(counts, n - depth).items():
                    filled = path + n - depth - room
                    onto[filled] = onto.get(filled, 0) + n_bins
        return hanging[TOP]

    def cut(self, base: int) -> dict[int, list[Piece]]:
        """Cut all tries.

        A subtree that does not fit in a row together with the path above it is opened at its first
        branch. From the deepest branch up, the pieces below a branch are packed by best fit, and
        each bin gets a copy of the branch's path. Path and bin form one piece of the branch above.

        Args:
            base: minimum row length.

        Returns:
            Row length -> pieces for rows of that length.
        """
        length, opened, above = self._open(base)
        size, start = self._size.tolist(), self._start
        hanging: dict[int, dict[int, list[Piece]]] = {branch: {} for branch in opened}
        for branch, children in opened.items():
            for k in children:
                if k not in opened:
                    piece = Piece(start[k], start[k] + size[k], size[k])
                    hanging[branch].setdefault(length[k], []).append(piece)
        for branch in reversed([*above]):
            path, depth = self._path(branch)
            for n, pieces in hanging[branch].items():
                onto = hanging[above[branch]].setdefault(n, [])
                sizes = [piece.size for piece in pieces]
                for chosen in best_fit(sizes, n - depth):
                    parts = [pieces[k] for k in sorted(chosen)]
                    filled = path + sum(sizes[k] for k in chosen)
                    onto.append(Piece(start[branch], self._stop[branch], filled, parts))
        return hanging[TOP]

    def _open(self, base: int) -> tuple[list[int], dict[int, list[int]], dict[int, int]]:
        """Decide which chains are opened for a minimum row length.

        Returns:
            length: the row length of each chain's subtree.
            opened: opened chain -> its child chains; parents come before their children.
            above: opened chain, except `TOP` -> the opened chain above it.
        """
        row_length = np.maximum(base, self._needed)
        fits = (self._depth + self._size <= row_length).tolist()
        opened: dict[int, list[int]] = {}
        above: dict[int, int] = {}
        pending = [TOP]
        for branch in pending:
            opened[branch] = []
            child, stop = branch + 1, self._after[branch]
            while child < stop:
                opened[branch].append(child)
                if not fits[child]:
                    above[child] = branch
                    pending.append(child)
                child = self._after[child]
        return row_length.tolist(), opened, above

    def _path(self, branch: int) -> tuple[int, int]:
        """Return the number of nodes of a chain, and of the path from the root to its end."""
        path = self._stop[branch] - self._start[branch]
        return path, int(self._depth[branch]) + path


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items into few bins by best-fit decreasing: at most 11/9 of the optimum (Johnson 1974).

    Bit r of `open_rooms` is set if a bin with room r exists. The tightest bin that fits an item is
    therefore the lowest set bit at or above the item's size.

    Returns:
        Indices of the items of each bin.
    """
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    open_rooms = 0
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        size = sizes[k]
        fitting = open_rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            index = by_room[room].pop()
            if not by_room[room]:
                open_rooms &= ~(1 << room)
        else:
            room, index = capacity, len(bins)
            bins.append([])
        bins[index].append(k)
        left = room - size
        by_room.setdefault(left, []).append(index)
        open_rooms |= 1 << left
    return bins


def rooms_left(counts: Mapping[int, int], capacity: int) -> dict[int, int]:
    """Count the bins of `best_fit` by the room left in them, without filling them.

    Items of one size fill the tightest bin that holds them, then the next one, so bins with equal
    room are counted together.

    Args:
        counts: size -> number of items.

    Returns:
        Room left in a bin -> number of bins.
    """
    rooms: dict[int, int] = {}
    open_rooms = 0
    for size in sorted(counts, reverse=True):
        left = counts[size]
        while left:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                available = rooms.pop(room)
                open_rooms &= ~(1 << room)
            else:
                room = capacity
                available = -(-left // (capacity // size))
            each = room // size
            full = min(available, left // each)
            left -= full * each
            after = {room - each * size: full}
            if left and available > full:  # the last items go into one further bin
                after[room - left * size] = 1
                full, left = full + 1, 0
            after[room] = available - full
            for empty, n in after.items():
                if n:
                    rooms[empty] = rooms.get(empty, 0) + n
                    open_rooms |= 1 << empty
    return rooms
