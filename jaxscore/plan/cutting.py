"""Tries cut into pieces that fit rows of given lengths.

A trie that fits a row goes whole. A larger one is cut at its branches, and each piece carries
the path from the root again.
"""

import bisect
import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxscore.plan.forest import Forest


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


class Cutter:
    """Cuts tries for a given shortest row."""

    def __init__(self, forest: Forest, lengths: list[int]) -> None:
        self.lengths = lengths
        self.end: list[int] = forest.subtree_end.tolist()
        self.reach: list[int] = forest.reach.tolist()
        roots = np.array(self._siblings(0, len(self.end)), np.int64)
        self._size = forest.subtree_end[roots] - roots
        self._reach = forest.reach[roots]

    def sizes(self, base: int) -> dict[int, np.ndarray]:
        """The sizes of what `cut` gives for each row length, without the pieces.

        Where all tries fit their rows this takes no look at single nodes.
        """
        length = self._row_lengths(base)
        if (self._size <= length).all():
            return {n: self._size[length == n] for n in np.unique(length).tolist()}
        found: dict[int, list[int]] = {}
        for n, piece in self.cut(base):
            found.setdefault(n, []).append(piece.size)
        return {n: np.array(sizes) for n, sizes in found.items()}

    def least(self, base: int) -> dict[int, int]:
        """Tokens by the shortest row length that they can have; cutting only adds to them."""
        length = self._row_lengths(base)
        whole = self._size <= length
        length = np.where(whole, length, base)  # what is cut off may go into shorter rows
        return {n: int(self._size[length == n].sum()) for n in np.unique(length).tolist()}

    def _row_lengths(self, base: int) -> np.ndarray:
        """Of each trie."""
        at = np.searchsorted(self.lengths, np.maximum(base, self._reach))
        return np.array(self.lengths, np.int64)[at]

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


def n_bins(sizes: np.ndarray, capacity: int) -> int:
    """How many bins `best_fit` fills.

    Items of one size go as far as they fit into the tightest bin, then into the next, so bins
    with equal room are counted together.
    """
    rooms: dict[int, int] = {}  # room -> bins that have it
    open_rooms, total = 0, 0
    distinct, counts = np.unique(sizes, return_counts=True)
    for size, left in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while left:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                available = rooms.pop(room)
                open_rooms &= ~(1 << room)
            else:
                room = capacity
                available = -(-left // (capacity // size))
                total += available
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
    return total


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
