"""Chunks of a batch's tokens for recurrent layers.

All tokens of a chunk start from one recurrent state: each token's parent is in the chunk, or is
the chunk's *entry*, a token of an earlier chunk; roots start from the initial state. Siblings and
unrelated texts share a chunk, in which the ancestor mask replaces the triangular mask of the
chunked form. A token that is the entry of a chunk is an *exit* of its own chunk. Only exits need
their state, and they are computed level by level.

    The ─ cat ─┬─ sat ─ down      chunks of 4    [The cat A dog]       from the initial state
               └─ ran ─ off                      [sat down ran off]    from `cat`, the one exit
    A ─ dog

Chunks are cut from the leaves up: a node takes the open pieces of its children. If these exceed a
chunk, they are packed into chunks with that node as entry, and the emptiest goes on up. What is
left over is then at the top, where many pieces share an entry and fill chunks together.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.plan.packing import best_fit
from jaxscore.plan.row_batches import RowBatch

NO_TOKEN = -1


class Chunk(NamedTuple):
    """Tokens that start from one state.

    Attributes:
        entry: token whose state they start from, or NO_TOKEN for the initial state.
        ranges: the tokens, as disjoint ranges in ascending order.
    """

    entry: int
    ranges: list[tuple[int, int]]


class ChunkShape(NamedTuple):
    """Static sizes of a `ChunkPlan`.

    Attributes:
        n_chunks: empty ones included.
        size: slots of a chunk.
        width: exits per step.
    """

    n_chunks: int
    size: int
    width: int


class PathNeeds(NamedTuple):
    """What the recurrent layers of a model take of a batch beside its rows.

    Attributes:
        size: slots of a chunk, a power of two; 0 if parents suffice.
        width: exits per step.
    """

    size: int
    width: int

    def shape(self, n_tokens: int, needed: int = 0) -> ChunkShape:
        """Static sizes for a batch with this many tokens, padding included.

        Args:
            needed: chunks of `cut_chunks`.
        """
        n_chunks = chunk_count(needed, n_tokens, self.size) if self.size else 0
        return ChunkShape(n_chunks, self.size, self.width)

    def usual_shape(self, n_tokens: int) -> ChunkShape:
        """`shape` of a batch whose tries leave some slots empty, as memory is planned."""
        least = -(-n_tokens // max(1, self.size))
        return self.shape(n_tokens, least + (least > 1))


class ChunkPlan(NamedTuple):
    """Host arrays of `device.rows.Chunks`, int32; N chunks of C slots, W exits per step.

    Attributes:
        token: [N, C], index of each slot's token in the T flattened tokens of the rows, ascending;
            T in empty slots.
        entry: [N], start state of each chunk: 0 is the initial state, 1 + e the state of exit e.
        exit: [N + W], slot of each exit among all N * C, by level.
        step: [N], first exit of each step. A step computes W exits; those of the next level among
            them are computed again.
        n_steps: number of steps.
    """

    token: np.ndarray
    entry: np.ndarray
    exit: np.ndarray
    step: np.ndarray
    n_steps: int


class PathPlan(NamedTuple):
    """Host arrays of `device.rows.Paths`, and their sizes.

    Attributes:
        parent: int32 [T].
        chunks: None if no layer has a state.
    """

    parent: np.ndarray
    chunks: ChunkPlan | None
    shape: ChunkShape


def plan_paths(batch: RowBatch, needs: PathNeeds) -> PathPlan:
    """Plan of a batch, which depends on that batch alone, so that the bits of its scores do."""
    return _plan(batch.subtree_end, batch.scored.query[: batch.scored.n_queries], needs)


def plan_path(length: int, needs: PathNeeds) -> PathPlan:
    """Plan of one row that is one path of tokens."""
    return _plan(np.full((1, length), length, np.int32), np.arange(length), needs)


def _plan(end: np.ndarray, scored: np.ndarray, needs: PathNeeds) -> PathPlan:
    parent = parents(end)
    if not needs.size:
        return PathPlan(parent, None, needs.shape(end.size))
    chunks = cut_chunks(end, padding(end, scored), needs.size)
    shape = needs.shape(end.size, len(chunks))
    return PathPlan(parent, chunk_plan(chunks, end.size, shape), shape)


class _Chains(NamedTuple):
    """Stretches of tokens in which each is the only child of the one before.

    Attributes:
        start, stop: token ranges.
        above: index of the chain that each continues, or NO_TOKEN.
    """

    start: list[int]
    stop: list[int]
    above: list[int]


def _chains(subtree_end: np.ndarray) -> _Chains:
    n_rows, length = subtree_end.shape
    end = (subtree_end + length * np.arange(n_rows, dtype=np.int64)[:, None]).ravel()
    starts = np.flatnonzero(np.append(True, end[1:] != end[:-1]))
    ends = end[starts].tolist()
    start: list[int] = starts.tolist()
    above: list[int] = []
    path: list[int] = []
    for chain, first in enumerate(start):
        while path and ends[path[-1]] <= first:
            path.pop()
        above.append(path[-1] if path else NO_TOKEN)
        path.append(chain)
    return _Chains(start, [*start[1:], len(end)], above)


def parents(subtree_end: np.ndarray) -> np.ndarray:
    """Parent of every token.

    Args:
        subtree_end: int [R, L], see `device.rows.Rows`.

    Returns:
        int32 [T], indices of the T = R * L flattened tokens; T at roots.
    """
    n_tokens = subtree_end.size
    chains = _chains(subtree_end)
    last = np.array([*chains.stop, n_tokens + 1]) - 1  # the last entry is for NO_TOKEN
    parent = np.arange(-1, n_tokens - 1, dtype=np.int32)
    parent[chains.start] = last[chains.above]
    return parent


def padding(subtree_end: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """Which tokens are padding: trees of one token at which nothing is scored.

    Args:
        subtree_end: int [R, L].
        scored: int [Q], scored positions as indices of the flattened tokens.

    Returns:
        bool [T].
    """
    alone = (subtree_end == np.arange(1, subtree_end.shape[1] + 1)).ravel()
    alone &= parents(subtree_end) == subtree_end.size
    alone[scored] = False
    return alone


def cut_chunks(subtree_end: np.ndarray, is_padding: np.ndarray, size: int) -> list[Chunk]:
    """Cut the tries of some rows into chunks of at most `size` tokens.

    At most 2 T / size + 1 chunks: at most one of those with one entry is half empty, and it goes
    on up.

    Args:
        subtree_end: int [R, L].
        is_padding: bool [T]; these tokens are in no chunk.

    Returns:
        The chunks, each after the one that holds its entry; those without entry come first.
    """
    chains = _chains(subtree_end)
    # Open pieces below each chain; the last entry has those at the roots.
    below: list[list[list[tuple[int, int]]]] = [[] for _ in range(len(chains.start) + 1)]
    chunks: list[Chunk] = []
    for chain in reversed(range(len(chains.start))):
        start, stop = chains.start[chain], chains.stop[chain]
        if is_padding[start]:
            continue
        full, piece = _merge(below[chain], size)
        chunks += [Chunk(stop - 1, ranges) for ranges in full]
        room = size - _n_tokens(piece)
        while stop - start > room:
            chunks.append(Chunk(stop - room - 1, [*piece, (stop - room, stop)]))
            stop, room, piece = stop - room, size, []
        below[chains.above[chain]].append([*piece, (start, stop)])
    full, piece = _merge(below[NO_TOKEN], size)
    chunks += [Chunk(NO_TOKEN, ranges) for ranges in ([piece] if piece else []) + full]
    return [Chunk(entry, sorted(ranges)) for entry, ranges in reversed(chunks)]


def _n_tokens(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _merge(
    pieces: list[list[tuple[int, int]]], size: int
) -> tuple[list[list[tuple[int, int]]], list[tuple[int, int]]]:
    """Chunks of pieces with one entry, and the emptiest one, which has room for that entry."""
    sizes = [_n_tokens(piece) for piece in pieces]
    if sum(sizes) < size:
        return [], [*itertools.chain(*pieces)]
    bins = best_fit(sizes, size)
    filled = [sum(sizes[k] for k in members) for members in bins]
    emptiest = min(range(len(bins)), key=filled.__getitem__)
    merged = [[*itertools.chain(*(pieces[k] for k in members))] for members in bins]
    return merged, ([] if filled[emptiest] == size else merged.pop(emptiest))


def chunk_count(needed: int, n_tokens: int, size: int) -> int:
    """Number of chunks, empty ones included, of a batch: one of three per batch shape.

    Full rows fill the least number or a few more; rare tries take up to twice as many.

    Args:
        needed: chunks of `cut_chunks`.
        n_tokens: of the batch, padding included.
    """
    least = -(-n_tokens // size)
    usual = least if least == 1 else least + max(1, least // 8)
    return next((n for n in (least, usual) if needed <= n), 2 * least + 2)


def chunk_plan(chunks: Sequence[Chunk], n_tokens: int, shape: ChunkShape) -> ChunkPlan:
    """Arrays of chunks for the device.

    Args:
        chunks: of `cut_chunks`.
        n_tokens: of the batch, padding included.
    """
    n_chunks, size, width = shape
    token = np.full((n_chunks, size), n_tokens, np.int32)
    slot_of = np.zeros(n_tokens, np.int64)
    if chunks:
        n_ranges = [len(chunk.ranges) for chunk in chunks]
        start, stop = np.array([pair for chunk in chunks for pair in chunk.ranges]).T
        lengths = stop - start
        before = np.cumsum(lengths) - lengths
        members = np.arange(int(lengths.sum())) + np.repeat(start - before, lengths)
        chunk_of = np.repeat(np.repeat(np.arange(len(chunks)), n_ranges), lengths)
        first = np.searchsorted(chunk_of, np.arange(len(chunks)))
        slot_of[members] = chunk_of * size + np.arange(len(members)) - first[chunk_of]
        token.ravel()[slot_of[members]] = members

    levels: list[int] = []  # of each chunk; an exit has its chunk's level
    for chunk in chunks:
        is_first = chunk.entry == NO_TOKEN
        levels.append(0 if is_first else levels[slot_of[chunk.entry] // size] + 1)
    exits = sorted(
        {chunk.entry for chunk in chunks} - {NO_TOKEN},
        key=lambda entry: (levels[slot_of[entry] // size], slot_of[entry]),
    )
    number = {NO_TOKEN: 0} | {entry: 1 + e for e, entry in enumerate(exits)}
    steps: list[int] = []
    e = 0
    for _, level in itertools.groupby(exits, key=lambda entry: levels[slot_of[entry] // size]):
        n_exits = len([*level])
        steps += range(e, e + n_exits, width)
        e += n_exits

    def padded(values: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
        out = np.zeros(length, np.int32)
        out[: len(values)] = values
        return out

    return ChunkPlan(
        token,
        padded([number[chunk.entry] for chunk in chunks], n_chunks),
        padded(slot_of[exits], n_chunks + width),
        padded(steps, n_chunks),
        len(steps),
    )
