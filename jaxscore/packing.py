"""Tries to rows of a few lengths, and rows to batches of a fixed token budget.

A trie that fits a row goes whole. A larger one is cut at its branches: each piece carries the
path from the root again, and the subtrees that hang on one branch are packed under as few
copies of the path as best-fit finds. Pieces then share rows.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxscore.forest import Forest

SHORTEST_ROW = 64  # tokens
TARGETS = 4  # a query; one with more takes several slots
TAIL = 8  # the last rows of a length go in batches of an eighth

Range = tuple[int, int]  # nodes [start, stop) in depth-first order


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of a trie that goes into one row: a path, then the subtrees below it."""

    path: tuple[Range, ...]
    subtrees: tuple[Range, ...]
    size: int


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
    """

    forest: Forest
    lengths: list[int]
    rows: list[list[list[Piece]]]
    batch_tokens: int

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, repeated paths included and padding not."""
        return sum(piece.size for group in self.rows for row in group for piece in row)

    def batches(self) -> Iterator[RowBatch]:
        """Batches in order; every edge of the forest is in exactly one of them."""
        slots = _Slots(self)
        first = 0
        for length, rows in zip(self.lengths, self.rows, strict=True):
            for count in batch_rows(len(rows), length, self.batch_tokens):
                stop = min(first + count * length, slots.group_end(length))
                yield from slots.batches(first, stop, count, length)
                first = stop


def row_lengths(max_positions: int) -> list[int]:
    """Powers of two, up to one that holds the longest path."""
    lengths = [SHORTEST_ROW]
    while lengths[-1] < max_positions:
        lengths.append(lengths[-1] * 2)
    return lengths


def batch_rows(n_rows: int, length: int, batch_tokens: int) -> list[int]:
    """Rows of each batch: whole budgets, then eighths where they pad less.

    Two shapes a row length, so that a run compiles few programs and a single short request
    does not pay for a whole budget.
    """
    full = max(1, batch_tokens // length)
    small = max(1, full // TAIL)
    batches = [full] * (n_rows // full)
    rest = n_rows % full
    if rest > full // 2:
        return [*batches, full]
    return batches + [small] * -(-rest // small)


def plan(
    forest: Forest, *, max_positions: int, width: int, batch_tokens: int, pack: bool = True
) -> Plan:
    """Choose the row length that costs least and pack.

    Attention over rows of N tokens adds about N / (6 width) to a token's linear work
    (`design.md`), so longer rows repeat less and pad less but attend more.

    Args:
        max_positions: longest path of any sequence.
        width: of the model's hidden states.
        batch_tokens: tokens a batch, padding included.
        pack: False puts one trie in a row, for models without the interval mask.
    """
    cutter = _Cutter(forest)
    best: tuple[float, Plan] | None = None
    for base in row_lengths(max_positions):
        groups: dict[int, list[Piece]] = {}
        for length, piece in cutter.cut(base):
            groups.setdefault(length, []).append(piece)
        rows = _rows(groups, pack)
        lengths = sorted(rows)
        cost = sum(
            sum(batch_rows(len(rows[n]), n, batch_tokens)) * n * (1 + n / (6 * width))
            for n in lengths
        )
        candidate = Plan(forest, lengths, [rows[n] for n in lengths], batch_tokens)
        if best is None or cost < best[0]:
            best = (cost, candidate)
        if base >= forest.n_nodes or base >= 8 * width:
            break
    assert best is not None  # row_lengths is never empty
    return best[1]


class _Cutter:
    """Cuts tries for a given shortest row."""

    def __init__(self, forest: Forest) -> None:
        self.end: list[int] = forest.subtree_end.tolist()
        self.reach: list[int] = forest.reach.tolist()

    def cut(self, base: int) -> list[tuple[int, Piece]]:
        """Pieces of all tries with the row length that each is for."""
        out: list[tuple[int, Piece]] = []
        # Each entry: siblings, the path above them and its length.
        todo: list[tuple[list[int], tuple[Range, ...], int]] = [
            (self._siblings(0, len(self.end)), (), 0)
        ]
        while todo:
            siblings, path, above = todo.pop()
            fitting: dict[int, list[tuple[int, int]]] = {}
            for node in siblings:
                length = self._row_length(node, base)
                size = self.end[node] - node
                if above + size <= length:
                    fitting.setdefault(length, []).append((size, node))
                else:
                    branch = self._branch(node)
                    below = self._siblings(branch, self.end[node])
                    todo.append((below, (*path, (node, branch)), above + branch - node))
            for length, items in fitting.items():
                if not above:
                    out += [
                        (length, Piece((), ((node, node + size),), size)) for size, node in items
                    ]
                    continue
                for bin_items in best_fit(items, length - above):
                    subtrees = tuple(
                        (node, node + size) for size, node in sorted_by_node(bin_items)
                    )
                    total = above + sum(size for size, _ in bin_items)
                    out.append((length, Piece(path, subtrees, total)))
        return out

    def _row_length(self, node: int, base: int) -> int:
        length = base
        while length < self.reach[node]:
            length *= 2
        return length

    def _siblings(self, first: int, stop: int) -> list[int]:
        """Roots of the consecutive subtrees in [first, stop)."""
        nodes = []
        while first < stop:
            nodes.append(first)
            first = self.end[first]
        return nodes

    def _branch(self, node: int) -> int:
        """First node below `node` at which the path has forked: the one after its chain."""
        stop = self.end[node]
        node += 1
        while node < stop and self.end[node] == stop:
            node += 1
        return node


def sorted_by_node(items: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(size, node) pairs in depth-first order, so that rows read as the tries do."""
    return sorted(items, key=lambda item: item[1])


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
                    stop = column + piece.size
                    for ranges, repeated in ((piece.path, True), (piece.subtrees, False)):
                        for a, b in ranges:
                            starts.append(a)
                            sizes.append(b - a)
                            slots.append(first + column)
                            ends.append(stop if repeated else column - a)
                            is_path.append(repeated)
                            column += b - a
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
