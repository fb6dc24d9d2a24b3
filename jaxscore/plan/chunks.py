"""Chunks of a batch's tokens for recurrent layers.

All tokens of a chunk start from one recurrent state: each token's parent is in the chunk, or is
the chunk's *entry*, a token of an earlier chunk; roots start from the initial state. Siblings and
unrelated texts share a chunk, in which the ancestor mask replaces the triangular mask of the
chunked form. A token that is the entry of another chunk is an *exit* of the chunk that contains it.
Only the states of exits are needed; they are computed level by level.

    The ─ cat ─┬─ sat ─ down      chunks of 4    [The cat A dog]       from the initial state
               └─ ran ─ off                      [sat down ran off]    from `cat`, the one exit
    A ─ dog

Chunks are cut from the leaves up: a node takes the open pieces of its children. If these exceed a
chunk, they are packed into chunks with that node as entry, and the emptiest chunk is passed on to
the node's parent. The remaining pieces therefore end up at the roots, where many pieces share an
entry and fill chunks together.
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
        entry: the token whose state they start from, or NO_TOKEN for the initial state.
        ranges: the tokens, as disjoint ranges in ascending order.
    """

    entry: int
    ranges: list[tuple[int, int]]


class ChunkShape(NamedTuple):
    """Static sizes of a `ChunkPlan`.

    Attributes:
        n_chunks: number of chunks, including empty ones.
        size: slots per chunk.
        width: exits per step.
    """

    n_chunks: int
    size: int
    width: int


class PathNeeds(NamedTuple):
    """Inputs that a model's recurrent layers need in addition to a batch's rows.

    Attributes:
        size: slots per chunk, a power of two; 0 if the layers only need each token's parent.
        width: exits per step.
    """

    size: int
    width: int

    def shape(self, n_tokens: int, needed: int = 0) -> ChunkShape:
        """Return the static sizes for a batch of `n_tokens` tokens, including padding.

        Args:
            needed: number of chunks that `cut_chunks` returned.
        """
        n_chunks = chunk_count(needed, n_tokens, self.size) if self.size else 0
        return ChunkShape(n_chunks, self.size, self.width)

    def usual_shape(self, n_tokens: int) -> ChunkShape:
        """Return the shape for which memory is planned: some slots are left empty."""
        minimum = -(-n_tokens // max(1, self.size))
        return self.shape(n_tokens, minimum + (minimum > 1))


class ChunkPlan(NamedTuple):
    """Host arrays of `device.rows.Chunks`, int32; N chunks of C slots, W exits per step.

    Attributes:
        token: [N, C], index of each slot's token in the T flattened tokens of the rows, ascending;
            T for empty slots.
        entry: [N], start state of each chunk: 0 is the initial state, 1 + e the state of exit e.
        exit: [N + W], slot of each exit among all N * C slots, sorted by level.
        step: [N], first exit of each step. A step computes W exits; if some of them belong to the
            next level, they are computed again.
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
        parent: int32 [T], each token's parent, see `parents`.
        chunks: the chunks, or None if no layer has a state.
    """

    parent: np.ndarray
    chunks: ChunkPlan | None
    shape: ChunkShape


def plan_paths(batch: RowBatch, needs: PathNeeds) -> PathPlan:
    """Plan a batch. The plan depends on this batch alone, and so do the bits of its scores."""
    return _plan(batch.subtree_end, batch.scored.query[: batch.scored.n_queries], needs)


def plan_path(length: int, needs: PathNeeds) -> PathPlan:
    """Plan a single row that holds one path of tokens."""
    return _plan(np.full((1, length), length, np.int32), np.arange(length), needs)


def _plan(end: np.ndarray, scored: np.ndarray, needs: PathNeeds) -> PathPlan:
    parent = parents(end)
    if not needs.size:
        return PathPlan(parent, None, needs.shape(end.size))
    chunks = cut_chunks(end, padding(end, scored), needs.size)
    shape = needs.shape(end.size, len(chunks))
    return PathPlan(parent, chunk_plan(chunks, end.size, shape), shape)


class _Chains(NamedTuple):
    """Maximal runs of tokens in which each token is the only child of the previous one.

    Attributes:
        start, stop: the token range of each chain.
        above: the index of the chain that each chain continues, or NO_TOKEN.
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
    """Compute the parent of every token.

    Args:
        subtree_end: int [R, L], see `device.rows.Rows`.

    Returns:
        int32 [T], indices into the T = R * L flattened tokens; T for roots.
    """
    n_tokens = subtree_end.size
    chains = _chains(subtree_end)
    last = np.array([*chains.stop, n_tokens + 1]) - 1  # the last entry is for NO_TOKEN
    parent = np.arange(-1, n_tokens - 1, dtype=np.int32)
    parent[chains.start] = last[chains.above]
    return parent


def padding(subtree_end: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """Return a mask of the padding tokens: tries of one token at which nothing is scored.

    Args:
        subtree_end: int [R, L].
        scored: int [Q], scored positions as indices into the flattened tokens.

    Returns:
        bool [T].
    """
    is_padding = (subtree_end == np.arange(1, subtree_end.shape[1] + 1)).ravel()
    is_padding &= parents(subtree_end) == subtree_end.size
    is_padding[scored] = False
    return is_padding


def cut_chunks(subtree_end: np.ndarray, is_padding: np.ndarray, size: int) -> list[Chunk]:
    """Cut the tries of some rows into chunks of at most `size` tokens.

    There are at most 2 T / size + 1 chunks: of the chunks with the same entry, at most one is less
    than half full, and it is passed on to the entry's parent.

    Args:
        subtree_end: int [R, L].
        is_padding: bool [T]; padding is in no chunk.

    Returns:
        The chunks, each after the chunk that contains its entry; chunks without an entry first.
    """
    chains = _chains(subtree_end)
    # Open pieces below each chain; the last element holds those at the roots.
    pieces_below: list[list[list[tuple[int, int]]]] = [[] for _ in range(len(chains.start) + 1)]
    chunks: list[Chunk] = []
    for chain in reversed(range(len(chains.start))):
        start, stop = chains.start[chain], chains.stop[chain]
        if is_padding[start]:
            continue
        full, piece = _merge(pieces_below[chain], size)
        chunks += [Chunk(stop - 1, ranges) for ranges in full]
        room = size - _n_tokens(piece)
        while stop - start > room:
            chunks.append(Chunk(stop - room - 1, [*piece, (stop - room, stop)]))
            stop, room, piece = stop - room, size, []
        pieces_below[chains.above[chain]].append([*piece, (start, stop)])
    full, piece = _merge(pieces_below[NO_TOKEN], size)
    chunks += [Chunk(NO_TOKEN, ranges) for ranges in ([piece] if piece else []) + full]
    return [Chunk(entry, sorted(ranges)) for entry, ranges in reversed(chunks)]


def _n_tokens(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _merge(
    pieces: list[list[tuple[int, int]]], size: int
) -> tuple[list[list[tuple[int, int]]], list[tuple[int, int]]]:
    """Pack pieces with the same entry into chunks.

    Returns:
        The full chunks, and the emptiest chunk, which has room for the entry.
    """
    sizes = [_n_tokens(piece) for piece in pieces]
    if sum(sizes) < size:
        return [], [*itertools.chain(*pieces)]
    bins = best_fit(sizes, size)
    filled = [sum(sizes[k] for k in members) for members in bins]
    emptiest = min(range(len(bins)), key=filled.__getitem__)
    merged = [[*itertools.chain(*(pieces[k] for k in members))] for members in bins]
    return merged, ([] if filled[emptiest] == size else merged.pop(emptiest))


def chunk_count(needed: int, n_tokens: int, size: int) -> int:
    """Round up a number of chunks to one of three values per batch shape, to compile few programs.

    Full rows need the minimum or a few chunks more; rare tries need up to twice the minimum.

    Args:
        needed: number of chunks that `cut_chunks` returned.
        n_tokens: number of tokens of the batch, including padding.
    """
    minimum = -(-n_tokens // size)
    usual = minimum if minimum == 1 else minimum + max(1, minimum // 8)
    return next((n for n in (minimum, usual) if needed <= n), 2 * minimum + 2)


def chunk_plan(chunks: Sequence[Chunk], n_tokens: int, shape: ChunkShape) -> ChunkPlan:
    """Convert chunks to arrays for the device.

    Args:
        chunks: the chunks that `cut_chunks` returned.
        n_tokens: number of tokens of the batch, including padding.
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

    levels: list[int] = []  # level of each chunk; an exit has the level of its chunk
    for chunk in chunks:
        starts_at_root = chunk.entry == NO_TOKEN
        levels.append(0 if starts_at_root else levels[slot_of[chunk.entry] // size] + 1)
    exits = sorted(
        {chunk.entry for chunk in chunks} - {NO_TOKEN},
        key=lambda entry: (levels[slot_of[entry] // size], slot_of[entry]),
    )
    state_index = {NO_TOKEN: 0} | {entry: 1 + e for e, entry in enumerate(exits)}
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
        padded([state_index[chunk.entry] for chunk in chunks], n_chunks),
        padded(slot_of[exits], n_chunks + width),
        padded(steps, n_chunks),
        len(steps),
    )
