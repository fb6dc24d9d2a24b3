"""Token sequences to tries in depth-first order. NumPy only, linear in tokens.

Sorted sequences are the tries: a sequence adds the tokens by which it differs from the one
before it, so depth-first order is the order of the sort and no node object is ever made.

    sorted          shared   adds           nodes        0   1   2    3    4
    The cat ran        0     The cat ran    token      The cat ran  sat down
    The cat sat down   2     sat down       depth        0   1   2    2    3
                                            subtree_end  5   5   3    5    5
"""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from jaxscore.plan.token_requests import TokenSequence


@dataclasses.dataclass(frozen=True)
class Forest:
    """Tries of M nodes in depth-first order, and the E distinct edges that are asked for.

    Only what a probability depends on is laid out: the last token of a continuation is a target,
    not a node, and a sequence without scored tokens adds nothing. The choices of a sequence are
    edges of its last node.

    Attributes:
        ids, depth, subtree_end, reach: int32 [M]; `reach` is the longest path, in nodes, from
            the root through the node to any node below it.
        edge_node, edge_target: int32 [E], sorted by node.
        edge_of: int32, for each scored token of each sequence, one sequence after the other,
            its edge.
        offsets: int64 [sequences + 1], where each sequence's part of `edge_of` starts.
        n_given: tokens of all sequences, shared or not.
    """

    ids: np.ndarray
    depth: np.ndarray
    subtree_end: np.ndarray
    reach: np.ndarray
    edge_node: np.ndarray
    edge_target: np.ndarray
    edge_of: np.ndarray
    offsets: np.ndarray
    n_given: int

    @property
    def n_nodes(self) -> int:
        return len(self.ids)

    @property
    def n_edges(self) -> int:
        return len(self.edge_node)


class Share(enum.Enum):
    """What may be computed once for several sequences.

    TRIES: every common beginning. PATHS: paths stay without branches, for models that take one
    request a row, so that a sequence shares only with one that continues it. WHOLE: only with
    one that is fed the same tokens and scored from the same one on, so that what is laid out
    for a sequence depends on that sequence alone.
    """

    TRIES = enum.auto()
    PATHS = enum.auto()
    WHOLE = enum.auto()


def build(sequences: Sequence[TokenSequence], *, share: Share = Share.TRIES) -> Forest:
    """Merge sequences, in any order and with duplicates, into tries."""
    scored = np.array([s.n_scored for s in sequences], np.int64)
    offsets = np.concatenate([[0], np.cumsum(scored)]).astype(np.int64)
    n_given = sum(s.n_given for s in sequences)
    laid = [k for k, s in enumerate(sequences) if s.n_scored]
    paths = [np.ascontiguousarray(sequences[k].fed, dtype=np.int32) for k in laid]
    # Big-endian bytes compare as the ids do.
    keys = [path.astype(">u4").tobytes() for path in paths]
    firsts = [sequences[k].first_scored for k in laid]
    order = sorted(range(len(paths)), key=lambda k: (keys[k], firsts[k]))
    lengths = np.array([len(paths[k]) for k in order], np.int64)
    flat = np.concatenate([paths[k] for k in order]) if order else np.zeros(0, np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    shared = _shared_with_previous(flat, starts, lengths)
    if share is not Share.TRIES and len(order):
        may = shared[1:] == lengths[:-1]
        if share is Share.WHOLE:
            first = np.array([firsts[k] for k in order], np.int64)
            may &= (lengths[1:] == lengths[:-1]) & (first[1:] == first[:-1])
        shared[1:] = np.where(may, shared[1:], 0)
    column = np.arange(len(flat)) - np.repeat(starts[:-1], lengths)
    new = column >= np.repeat(shared, lengths)
    added = lengths - shared
    base = np.concatenate([[0], np.cumsum(added)]).astype(np.int64)
    subtree_end, reach = _subtrees(shared, lengths, base)

    # Each sequence's last occurrence of a shared prefix is the previous sequence's node.
    node_of = np.zeros(len(flat), np.int64)
    node_of[new] = np.arange(int(base[-1]))
    for k in np.flatnonzero(shared):
        a, n = starts[k], shared[k]
        node_of[a : a + n] = node_of[starts[k - 1] : starts[k - 1] + n]

    edges = _edges(sequences, laid, order, starts, lengths, node_of, offsets)
    return Forest(
        ids=flat[new],
        depth=column[new].astype(np.int32),
        subtree_end=subtree_end.astype(np.int32),
        reach=reach.astype(np.int32),
        edge_node=edges[0].astype(np.int32),
        edge_target=edges[1].astype(np.int32),
        edge_of=edges[2],
        offsets=offsets,
        n_given=n_given,
    )


def _shared_with_previous(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Length of the common prefix of each sequence with the one before it; 0 for the first."""
    n = len(lengths)
    shared = np.zeros(n, np.int64)
    if n < 2:
        return shared
    span = np.minimum(lengths[1:], lengths[:-1])
    first = np.concatenate([[0], np.cumsum(span)])
    column = np.arange(int(first[-1])) - np.repeat(first[:-1], span)
    here, before = np.repeat(starts[1:-1], span) + column, np.repeat(starts[:-2], span) + column
    differs = np.where(flat[here] != flat[before], column, np.iinfo(np.int64).max)
    shared[1:] = np.minimum(np.minimum.reduceat(differs, first[:-1]), span)
    return shared


def _subtrees(
    shared: np.ndarray, lengths: np.ndarray, base: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where each node's subtree ends, and how deep it reaches.

    A stack holds the branches of the current path as [depth, first node, reach]; a sequence
    that shares s tokens closes all that lies at depth s or deeper.
    """
    end, reach = np.empty(int(base[-1]), np.int64), np.empty(int(base[-1]), np.int64)
    stack: list[list[int]] = []

    def close(depth: int, node: int) -> None:
        """End at `node` every subtree of the stack that starts at `depth` or deeper."""
        deepest = 0
        while stack and stack[-1][0] + stack[-1][2] > depth:
            top, first, count, furthest = stack[-1]
            deepest = max(deepest, furthest)
            keep = max(0, depth - top)
            end[first + keep : first + count] = node
            reach[first + keep : first + count] = deepest
            if keep:
                stack[-1][2:] = [keep, deepest]
                return
            stack.pop()
        if stack:
            stack[-1][3] = max(stack[-1][3], deepest)

    for s, n, first in zip(shared.tolist(), lengths.tolist(), base.tolist(), strict=False):
        close(s, first)
        if n > s:
            stack.append([s, first, n - s, n])
    close(0, int(base[-1]))
    return end, reach


def _edges(
    sequences: Sequence[TokenSequence],
    laid: list[int],
    order: list[int],
    starts: np.ndarray,
    lengths: np.ndarray,
    node_of: np.ndarray,
    offsets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct (node, target) pairs sorted by node, and each scored token's index in them."""
    wanted = np.zeros(int(offsets[-1]), np.int64)
    for rank, k in enumerate(order):
        request = laid[k]
        sequence = sequences[request]
        first, end = sequence.first_scored, starts[rank] + lengths[rank]
        nodes = node_of[starts[rank] + first - 1 : end]  # one for all choices
        targets = sequence.targets.astype(np.int64)
        wanted[offsets[request] : offsets[request + 1]] = (nodes << 32) | targets
    distinct, edge_of = np.unique(wanted, return_inverse=True)
    return distinct >> 32, distinct & 0xFFFFFFFF, edge_of.astype(np.int32)
