"""Tries cut into pieces that fit rows of given lengths.

A trie that fits a row goes whole. A larger one is cut at its branches, and each piece carries
the path from the root again. What decides a cut are chains, nodes of which each is the only child
of the one before: a window of requests has about two for each request, and far more nodes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxscore.plan.bins import best_fit, rooms_left
from jaxscore.plan.forest import Forest

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
