"""Tries to rows of a few lengths, and rows to batches of a fixed token budget.

A trie that fits a row goes whole. A larger one is cut at its branches, and each piece carries
the path from the root again. Pieces then share rows.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxscore.plan.forest import Forest

SHORTEST_ROW = 64  # tokens
TARGETS = 4  # a query; one with more takes several slots
TAIL = 8  # the last rows of a length go in batches of an eighth
SMALL_BATCH_COST = 1.1  # of a token in such a batch, against one in a whole batch


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Part of a trie that goes into one row.

    Attributes:
        start, stop: nodes in depth-first order: a whole subtree, or, where there are parts, a
            stretch of a path without branches.
        parts: what of the subtrees below that stretch is in this piece.
        size: tokens, those of the parts included.
    """

    start: int
    stop: int
    parts: tuple["Piece", ...]
    size: int

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(start, stop, span) in row order; span is 0 for a whole subtree, and for a stretch of
        path the number of tokens from its start to the end of all that is below it here."""
        todo = [self]
        while todo:
            piece = todo.pop()
            yield piece.start, piece.stop, piece.size if piece.parts else 0
            todo.extend(reversed(piece.parts))


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """Rows for a forest. `batches` makes the arrays as they are asked for.

    Attributes:
        lengths: row length of each group, ascending.
        rows: for each group, for each row its pieces.
        batch_tokens: the budget.
        cost: padding and attention counted, in tokens of linear work.
        tail: the last rows of a length go in batches of one `tail`-th, see `batch_rows`.
    """

    forest: Forest
    lengths: list[int]
    rows: list[list[list[Piece]]]
    batch_tokens: int
    cost: float
    tail: int

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, repeated paths included and padding not."""
        return sum(piece.size for group in self.rows for row in group for piece in row)

    def layout(self) -> tuple[Any, ...]:
        """What beside the forest decides the batches."""
        places = [[[[*piece.ranges()] for piece in row] for row in group] for group in self.rows]
        return self.lengths, places, self.batch_tokens, self.tail

    def batches(self) -> Iterator[RowBatch]:
        """Batches in order; every edge of the forest is in exactly one of them."""
        slots = _Slots(self)
        first = 0
        for length, rows in zip(self.lengths, self.rows, strict=True):
            for count in batch_rows(len(rows), length, self.batch_tokens, self.tail):
                stop = min(first + count * length, slots.group_end(length))
                yield from slots.batches(first, stop, count, length)
                first = stop


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

    Two shapes a row length, so that a run compiles few programs and a single short request
    does not pay for a whole budget. A tail of 1 makes one shape.
    """
    full = max(1, batch_tokens // length)
    small = max(1, full // tail)
    batches = [full] * (n_rows // full)
    last = [small] * -(-(n_rows % full) // small)
    return batches + (last if sum(last) * SMALL_BATCH_COST <= full else [full])


def plan(
    forest: Forest,
    *,
    max_positions: int,
    width: int,
    batch_tokens: int,
    trunk: int = 0,
    pack: bool = True,
    program_cost: float = 0.0,
) -> Plan:
    """Choose the row length that costs least and pack.

    Longer rows repeat less and pad less but attend more, see `attention_cost`. A longer shortest
    row also makes fewer shapes, each of which is a program.

    Args:
        max_positions: longest path of any sequence, the trunk's left out.
        width: of the model's hidden states.
        batch_tokens: tokens a batch, padding included.
        trunk: tokens before every trie, which all tokens see and no row holds.
        pack: False puts one trie in a row, for models without the interval mask.
        program_cost: of each shape of batches, in tokens of linear work; counts in the choice,
            and not in the plan's cost.
    """
    allowed = row_lengths(max_positions)
    cutter = _Cutter(forest, allowed)
    best: Plan | None = None
    least_total = math.inf
    # Shorter rows than the shortest path needs all give the same rows.
    shortest = int(forest.reach.min()) if forest.n_nodes else 0
    for base in allowed[bisect.bisect_left(allowed, shortest) :]:
        # Nothing beats every node once and no padding, and attention only grows from here.
        least = forest.n_nodes * attention_cost(base + trunk, width)
        if least >= least_total:
            break
        groups: dict[int, list[Piece]] = {}
        for length, piece in cutter.cut(base):
            groups.setdefault(length, []).append(piece)
        rows = _rows(groups, pack)
        lengths = sorted(rows)
        for tail in (TAIL, 1):
            shapes = [
                (count, n)
                for n in lengths
                for count in batch_rows(len(rows[n]), n, batch_tokens, tail)
            ]
            cost = sum(count * n * attention_cost(n + trunk, width) for count, n in shapes)
            total = cost + program_cost * len(set(shapes))
            if total < least_total:
                least_total = total
                own = [rows[n] for n in lengths]
                best = Plan(forest, lengths, own, batch_tokens, cost, tail)
        if base >= forest.n_nodes:
            break
    assert best is not None  # no path is longer than max_positions, so a length is left
    return best


def plan_uniform(forest: Forest, *, row_length: int, width: int, batch_tokens: int) -> Plan:
    """All batches of one shape, for work that is not worth a second program.

    Args:
        row_length: at least the longest path.
        width, batch_tokens: as in `plan`.
    """
    pieces = [piece for _, piece in _Cutter(forest, [row_length]).cut(row_length)]
    rows = _rows({row_length: pieces}, True)[row_length]
    n_tokens = sum(batch_rows(len(rows), row_length, batch_tokens, 1)) * row_length
    cost = n_tokens * attention_cost(row_length, width)
    return Plan(forest, [row_length], [rows], batch_tokens, cost, tail=1)


def attention_cost(n: int, width: int) -> float:
    """What a token costs that attends in a row of n, in tokens of linear work.

    Attention adds about n / (6 width) (`design.md`).
    """
    return 1 + n / (6 * width)


class _Cutter:
    """Cuts tries for a given shortest row."""

    def __init__(self, forest: Forest, lengths: list[int]) -> None:
        self.lengths = lengths
        self.end: list[int] = forest.subtree_end.tolist()
        self.reach: list[int] = forest.reach.tolist()

    def cut(self, base: int) -> list[tuple[int, Piece]]:
        """Pieces of all tries with the row length that each is for.

        A subtree that does not fit below its path is opened at its first branch. From the
        deepest branch up, what hangs on a branch is packed under as few copies of the path as
        best-fit finds, and what is packed goes on as one thing to the branch above.
        """
        opened = [_Branch(-1, 0, 0, None)]  # above all roots; each comes before those below it
        for branch in opened:
            stop = self.end[branch.node] if branch.node >= 0 else len(self.end)
            for node in self._siblings(branch.stop, stop):
                length, size = self._row_length(node, base), self.end[node] - node
                if branch.depth + size <= length:
                    branch.put(length, Piece(node, node + size, (), size))
                else:
                    fork = self._fork(node)
                    depth = branch.depth + fork - node
                    opened.append(_Branch(node, fork, depth, branch))
        for branch in reversed(opened[1:]):
            assert branch.above is not None
            for length, pieces in branch.pieces.items():
                sizes = [(piece.size, k) for k, piece in enumerate(pieces)]
                for chosen in best_fit(sizes, length - branch.depth):
                    parts = tuple(pieces[k] for k in sorted(k for _, k in chosen))
                    size = branch.stop - branch.node + sum(part.size for part in parts)
                    branch.above.put(length, Piece(branch.node, branch.stop, parts, size))
        return [(length, piece) for length, pieces in opened[0].pieces.items() for piece in pieces]

    def _row_length(self, node: int, base: int) -> int:
        return self.lengths[bisect.bisect_left(self.lengths, max(base, self.reach[node]))]

    def _siblings(self, first: int, stop: int) -> list[int]:
        """Roots of the consecutive subtrees in [first, stop)."""
        nodes = []
        while first < stop:
            nodes.append(first)
            first = self.end[first]
        return nodes

    def _fork(self, node: int) -> int:
        """First node after the chain that starts at `node`: there the path has forked."""
        stop = self.end[node]
        node += 1
        while node < stop and self.end[node] == stop:
            node += 1
        return node


class _Branch:
    """An opened subtree: the path [node, stop), `depth` tokens to its end, and what hangs there."""

    def __init__(self, node: int, stop: int, depth: int, above: "_Branch | None") -> None:
        self.node, self.stop, self.depth, self.above = node, stop, depth, above
        self.pieces: dict[int, list[Piece]] = {}

    def put(self, length: int, piece: Piece) -> None:
        self.pieces.setdefault(length, []).append(piece)


def best_fit(items: list[tuple[int, int]], capacity: int) -> list[list[tuple[int, int]]]:
    """Best-fit decreasing: (size, name) pairs into as few bins of `capacity` as it finds.

    Bit r of `open_rooms` says that a bin with room r exists, so the tightest bin that fits is
    the lowest set bit from `size` up. At most 11/9 of the best number of bins (Johnson 1974).
    """
    bins: list[list[tuple[int, int]]] = []
    by_room: dict[int, list[int]] = {}
    open_rooms = 0
    for item in sorted(items, key=lambda item: (-item[0], item[1])):
        fitting = open_rooms >> item[0]
        if fitting:
            room = item[0] + (fitting & -fitting).bit_length() - 1
            index = by_room[room].pop()
            if not by_room[room]:
                open_rooms &= ~(1 << room)
        else:
            room, index = capacity, len(bins)
            bins.append([])
        bins[index].append(item)
        left = room - item[0]
        by_room.setdefault(left, []).append(index)
        open_rooms |= 1 << left
    return bins


def _rows(groups: dict[int, list[Piece]], pack: bool) -> dict[int, list[list[Piece]]]:
    if not pack:
        return {length: [[piece] for piece in pieces] for length, pieces in groups.items()}
    rows = {}
    for length, pieces in groups.items():
        sizes = [(piece.size, k) for k, piece in enumerate(pieces)]
        bins = best_fit(sizes, length)
        rows[length] = [[pieces[k] for _, k in items] for items in bins]
    return rows


class _Slots:
    """Every token slot of a plan in one line, group after group, row after row."""

    def __init__(self, plan: Plan) -> None:
        forest = plan.forest
        self.forest = forest
        starts, sizes, slots, ends, is_path = [], [], [], [], []
        self._group_end: dict[int, int] = {}
        first = 0
        for length, rows in zip(plan.lengths, plan.rows, strict=True):
            for row in rows:
                column = 0
                for piece in row:
                    for start, stop, span in piece.ranges():
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
