"""Best-fit decreasing: things of given sizes into few bins, with the things or only counted.

Bit r of `open_rooms` says that a bin with room r exists, so the tightest bin that fits is the
lowest set bit from the size up. At most 11/9 of the best number of bins (Johnson 1974).
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxscore.plan.row_batches import (
    TAIL,
    RowBatch,
    RowLayout,
    Stretches,
    attention_cost,
    batch_rows,
    row_lengths,
)
from jaxscore.plan.tries import Forest


def best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Things into as few bins of `capacity` as it finds, by their place in `sizes`."""
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
    """Room that is left -> how many of the bins that `best_fit` fills have it.

    Items of one size go as far as they fit into the tightest bin, then into the next, so bins
    with equal room are counted together.

    Args:
        counts: size -> how many things have it.
        capacity: of each bin.
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
            if left and available > full:  # the last items go into one bin more
                after[room - left * size] = 1
                full, left = full + 1, 0
            after[room] = available - full
            for empty, n in after.items():
                if n:
                    rooms[empty] = rooms.get(empty, 0) + n
                    open_rooms |= 1 << empty
    return rooms


TOP = -1  # the branch above all roots


class Pieces:
    """Parts of tries, each of which goes into one row, by number.

    Lists by number rather than an object for each: there are twice as many as requests.

    Attributes:
        start, stop: nodes in depth-first order: a whole subtree, or, where there are parts, a
            stretch of a path without branches.
        size: tokens, those of the parts included.
        parts: the pieces of the subtrees below that stretch that are in this piece.
    """

    def __init__(self) -> None:
        self.start: list[int] = []
        self.stop: list[int] = []
        self.size: list[int] = []
        self.parts: list[Sequence[int]] = []

    def add(self, start: int, stop: int, size: int, parts: Sequence[int] = ()) -> int:
        """One more; its number."""
        self.start.append(start)
        self.stop.append(stop)
        self.size.append(size)
        self.parts.append(parts)
        return len(self.start) - 1

    def ranges(self, k: int) -> Iterator[tuple[int, int, int]]:
        """(start, stop, span) of a piece in row order; span is 0 for a whole subtree, and for a
        stretch of path the number of tokens from its start to the end of all that is below it
        here."""
        todo = [k]
        while todo:
            one = todo.pop()
            yield self.start[one], self.stop[one], self.size[one] if self.parts[one] else 0
            todo.extend(reversed(self.parts[one]))


class Cutter:
    """Cuts tries for a given shortest row."""

    def __init__(self, forest: Forest, lengths: list[int]) -> None:
        self.lengths = np.array(lengths, np.int64)
        end = forest.subtree_end.astype(np.int64)
        goes_on = end[1:] == end[:-1]
        start = np.flatnonzero(np.concatenate([np.ones(min(1, len(end)), bool), ~goes_on]))
        self._reach, self._size = forest.reach[start], end[start] - start
        self._depth = forest.depth[start] - forest.depth[start[:1]]  # nodes above it
        self._start: list[int] = start.tolist()
        self._stop = [*self._start[1:], len(end)]
        self._after: list[int] = np.searchsorted(start, end[start]).tolist()
        self._roots = np.array(self._children(TOP), np.int64)

    def sizes(self, base: int) -> dict[int, dict[int, int]]:
        """Row length -> size -> how many of the pieces that `cut` gives have it."""
        length, opened, above = self._opened(base)
        size = self._size.tolist()
        held: dict[int, dict[int, dict[int, int]]] = {branch: {} for branch in opened}
        for branch, children in opened.items():
            own = held[branch]
            for k in children:
                if k not in opened:
                    of_length = own.setdefault(length[k], {})
                    of_length[size[k]] = of_length.get(size[k], 0) + 1
        for branch in reversed([*above]):
            path, depth = self._path(branch)
            for n, counts in held[branch].items():
                of_length = held[above[branch]].setdefault(n, {})
                for room, n_bins in rooms_left(counts, n - depth).items():
                    filled = path + n - depth - room
                    of_length[filled] = of_length.get(filled, 0) + n_bins
        return held[TOP]

    def least(self, base: int) -> dict[int, int]:
        """Tokens by the shortest row length that they can have; cutting only adds to them."""
        size, length = self._size[self._roots], self._row_lengths(base)[self._roots]
        whole = size <= length
        length = np.where(whole, length, base)  # what is cut off may go into shorter rows
        return {n: int(size[length == n].sum()) for n in np.unique(length).tolist()}

    def cut(self, base: int) -> tuple[Pieces, dict[int, list[int]]]:
        """Pieces of all tries, and for each row length those that are for it.

        A subtree that does not fit below its path is opened at its first branch. From the
        deepest branch up, what hangs on a branch is packed under as few copies of the path as
        best-fit finds, and what is packed goes on as one thing to the branch above.
        """
        length, opened, above = self._opened(base)
        size, start, pieces = self._size.tolist(), self._start, Pieces()
        held: dict[int, dict[int, list[int]]] = {branch: {} for branch in opened}
        for branch, children in opened.items():
            own = held[branch]
            for k in children:
                if k not in opened:
                    piece = pieces.add(start[k], start[k] + size[k], size[k])
                    own.setdefault(length[k], []).append(piece)
        for branch in reversed([*above]):
            path, depth = self._path(branch)
            for n, hanging in held[branch].items():
                onto = held[above[branch]].setdefault(n, [])
                sizes = [pieces.size[k] for k in hanging]
                for chosen in best_fit(sizes, n - depth):
                    parts = [hanging[k] for k in sorted(chosen)]
                    filled = path + sum(sizes[k] for k in chosen)
                    onto.append(pieces.add(start[branch], self._stop[branch], filled, parts))
        return pieces, held[TOP]

    def _opened(self, base: int) -> tuple[list[int], dict[int, list[int]], dict[int, int]]:
        """How the tries are opened for a shortest row.

        Returns:
            The row length of each chain's subtree; the chains that are opened, each after the one
            above it, with the chains that begin where they end; and for each of them but `TOP`
            the one above it.
        """
        row_lengths = self._row_lengths(base)
        whole = (self._depth + self._size <= row_lengths).tolist()
        opened: dict[int, list[int]] = {TOP: self._children(TOP)}
        above: dict[int, int] = {}
        todo = [TOP]
        for branch in todo:
            for k in opened[branch]:
                if not whole[k]:
                    opened[k], above[k] = self._children(k), branch
                    todo.append(k)
        return row_lengths.tolist(), opened, above

    def _path(self, branch: int) -> tuple[int, int]:
        """Nodes of a chain, and nodes from the root to its end."""
        path = self._stop[branch] - self._start[branch]
        return path, int(self._depth[branch]) + path

    def _children(self, chain: int) -> list[int]:
        """The chains that begin where this one ends; of `TOP`, those of all roots."""
        stop = len(self._start) if chain == TOP else self._after[chain]
        out, k = [], chain + 1
        while k < stop:
            out.append(k)
            k = self._after[k]
        return out

    def _row_lengths(self, base: int) -> np.ndarray:
        """Of each chain's subtree."""
        return self.lengths[np.searchsorted(self.lengths, np.maximum(base, self._reach))]


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows for a forest. `batches` makes each batch as it is asked for.

    Attributes:
        lengths: row length of each group, ascending.
        n_rows: rows of each group.
        stretches: what lies in the rows, one after the other.
        batch_tokens: the budget.
        cost: padding and attention counted, in tokens of linear work.
        tail: the last rows of a length go in batches of one `tail`-th, see `batch_rows`.
    """

    forest: Forest
    lengths: list[int]
    n_rows: list[int]
    stretches: Stretches
    batch_tokens: int
    cost: float
    tail: int

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, repeated paths included and padding not."""
        return int((self.stretches.stop - self.stretches.start).sum())

    @functools.cached_property
    def rows(self) -> RowLayout:
        """What lies in each slot of all rows."""
        return RowLayout(self.forest, self.lengths, self.n_rows, self.stretches)

    def layout(self) -> bytes:
        """What beside the forest decides the batches."""
        facts = (self.lengths, self.n_rows, self.batch_tokens, self.tail)
        return repr(facts).encode() + b"".join(one.tobytes() for one in self.stretches)

    def batches(self) -> Iterator[RowBatch]:
        """Batches in order; every edge of the forest is in exactly one of them."""
        slots, first = self.rows, 0
        for length, n_rows in zip(self.lengths, self.n_rows, strict=True):
            for count in batch_rows(n_rows, length, self.batch_tokens, self.tail):
                stop = min(first + count * length, slots.group_end(length))
                yield from slots.batches(first, stop, count, length)
                first = stop


def pack_rows(
    forest: Forest,
    *,
    max_positions: int,
    width: int,
    batch_tokens: int,
    prefix: int = 0,
    pack: bool = True,
    program_cost: float = 0.0,
) -> PackedRows:
    """Choose the row length that costs least and pack.

    Longer rows repeat less and pad less but attend more, see `attention_cost`. A longer shortest
    row also makes fewer shapes, each of which is a program.

    Args:
        max_positions: longest path of any sequence, the prefix's left out.
        width: of the model's hidden states.
        batch_tokens: tokens in each batch, padding included.
        prefix: tokens before every trie, which all tokens see and no row holds.
        pack: False puts one trie in a row, for models without the interval mask.
        program_cost: of each shape of batches, in tokens of linear work; counts in the choice,
            and not in the plan's cost.
    """
    allowed = row_lengths(max_positions)
    cutter = Cutter(forest, allowed)
    best: tuple[int, int, float] | None = None  # shortest row, tail and cost
    least_total = math.inf
    # Shorter rows than the shortest path needs all give the same rows.
    shortest = int(forest.reach.min()) if forest.n_nodes else 0
    for base in allowed[bisect.bisect_left(allowed, shortest) :]:
        # Nothing beats every node once and no padding, and attention only grows from here.
        if forest.n_nodes * attention_cost(base + prefix, width) >= least_total:
            break
        least = sum(k * attention_cost(n + prefix, width) for n, k in cutter.least(base).items())
        if least < least_total:
            n_rows = {
                n: sum((rooms_left(counts, n) if pack else counts).values())
                for n, counts in sorted(cutter.sizes(base).items())
            }
            for tail in (TAIL, 1):
                shapes = [
                    (count, n)
                    for n, k in n_rows.items()
                    for count in batch_rows(k, n, batch_tokens, tail)
                ]
                cost = sum(count * n * attention_cost(n + prefix, width) for count, n in shapes)
                total = cost + program_cost * len(set(shapes))
                if total < least_total:
                    least_total, best = total, (base, tail, cost)
        if base >= forest.n_nodes:
            break
    assert best is not None  # no path is longer than max_positions, so a length is left
    base, tail, cost = best
    pieces, of_length = cutter.cut(base)
    rows = _rows(pieces, of_length, pack)
    return _laid_out(forest, pieces, rows, batch_tokens, cost, tail)


def pack_uniform_rows(
    forest: Forest, *, row_length: int, width: int, batch_tokens: int
) -> PackedRows:
    """All batches of one shape, for work that is not worth a second program.

    Args:
        row_length: at least the longest path.
        width, batch_tokens: as in `plan`.
    """
    pieces, of_length = Cutter(forest, [row_length]).cut(row_length)
    rows = _rows(pieces, of_length, True)
    n_rows = len(rows.get(row_length, []))
    n_tokens = sum(batch_rows(n_rows, row_length, batch_tokens, 1)) * row_length
    cost = n_tokens * attention_cost(row_length, width)
    return _laid_out(forest, pieces, rows, batch_tokens, cost, tail=1)


def _laid_out(
    forest: Forest,
    pieces: Pieces,
    rows: dict[int, list[list[int]]],
    batch_tokens: int,
    cost: float,
    tail: int,
) -> PackedRows:
    """The plan of these rows, see `_rows`: their pieces become arrays."""
    lengths = sorted(rows)
    stretches = _stretches(pieces, [row for n in lengths for row in rows[n]])
    n_rows = [len(rows[n]) for n in lengths]
    return PackedRows(forest, lengths, n_rows, stretches, batch_tokens, cost, tail)


def _rows(
    pieces: Pieces, of_length: dict[int, list[int]], pack: bool
) -> dict[int, list[list[int]]]:
    """For each row length its rows of pieces."""
    if not pack:
        return {length: [[k] for k in own] for length, own in of_length.items()}
    return {
        length: [
            [own[place] for place in chosen]
            for chosen in best_fit([pieces.size[k] for k in own], length)
        ]
        for length, own in of_length.items()
    }


def _stretches(pieces: Pieces, rows: Sequence[Sequence[int]]) -> Stretches:
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
    return Stretches(start, stop, span, np.array(n_in_row, np.int64))
