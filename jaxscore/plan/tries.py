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
from typing import NamedTuple

import numpy as np

from jaxscore.plan.requests import TokenSequence


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
        n_input_tokens: tokens of all sequences, shared or not.
    """

    ids: np.ndarray
    depth: np.ndarray
    subtree_end: np.ndarray
    reach: np.ndarray
    edge_node: np.ndarray
    edge_target: np.ndarray
    edge_of: np.ndarray
    offsets: np.ndarray
    n_input_tokens: int

    @property
    def n_nodes(self) -> int:
        return len(self.ids)

    @property
    def n_edges(self) -> int:
        return len(self.edge_node)


def range_within(values: np.ndarray, first: int, stop: int) -> tuple[int, int]:
    """The slice of ascending values that are at least `first` and below `stop`."""
    bounds = np.array([first, stop], values.dtype)  # of another type, all values are converted
    a, b = np.searchsorted(values, bounds).tolist()
    return a, b


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


def build_forest(sequences: Sequence[TokenSequence], *, share: Share = Share.TRIES) -> Forest:
    """Merge sequences, in any order and with duplicates, into tries."""
    asked = _Asked.of(sequences)
    # Big-endian bytes compare as the ids do.
    keys = asked.ids.astype(">u4").tobytes()
    bounds = (4 * asked.start).tolist(), (4 * (asked.start + asked.n_fed)).tolist()
    paths = [keys[a:b] for a, b in zip(*bounds, strict=True)]
    firsts = asked.first.tolist()
    # Of what is laid out: what is never scored adds nothing.
    laid = np.flatnonzero(asked.n_scored).tolist()
    order = np.array(sorted(laid, key=lambda k: (paths[k], firsts[k])), np.int64)
    lengths = asked.n_fed[order]
    starts = _starts(lengths)
    flat = asked.ids[
        np.arange(int(starts[-1])) + np.repeat(asked.start[order] - starts[:-1], lengths)
    ]

    shared = _shared_with_previous(flat, starts, lengths)
    if share is not Share.TRIES and len(order):
        may = shared[1:] == lengths[:-1]
        if share is Share.WHOLE:
            first = asked.first[order]
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
    again = np.flatnonzero(shared)
    for a, before, n in zip(
        starts[again].tolist(), starts[again - 1].tolist(), shared[again].tolist(), strict=True
    ):
        node_of[a : a + n] = node_of[before : before + n]

    place = np.zeros(len(sequences), np.int64)  # of each path in `node_of`
    place[order] = starts[:-1]
    edges = _edges(asked, node_of, place)
    return Forest(
        ids=flat[new],
        depth=column[new].astype(np.int32),
        subtree_end=subtree_end.astype(np.int32),
        reach=reach.astype(np.int32),
        edge_node=edges[0].astype(np.int32),
        edge_target=edges[1].astype(np.int32),
        edge_of=edges[2],
        offsets=_starts(asked.n_scored),
        n_input_tokens=len(asked.ids) + len(asked.choices),
    )


class _Asked(NamedTuple):
    """Sequences as arrays.

    Attributes:
        ids, choices: int32, of all sequences, one after the other.
        start: where the ids of each begin.
        n_fed, first, n_scored, n_choices: of each, see `TokenSequence`.
    """

    ids: np.ndarray
    choices: np.ndarray
    start: np.ndarray
    n_fed: np.ndarray
    first: np.ndarray
    n_scored: np.ndarray
    n_choices: np.ndarray

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence]) -> "_Asked":
        n_ids = np.array([len(s.ids) for s in sequences], np.int64)
        n_choices = np.array([len(s.choices) for s in sequences], np.int64)
        first = np.maximum(np.array([s.start for s in sequences], np.int64), 1)
        return cls(
            _joined([s.ids for s in sequences]),
            _joined([s.choices for s in sequences]),
            _starts(n_ids)[:-1],
            np.maximum(n_ids - (n_choices == 0), 0),
            first,
            np.where(n_choices > 0, n_choices, np.maximum(n_ids - first, 0)),
            n_choices,
        )


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    nothing = np.zeros(0, np.int32)
    return np.concatenate([nothing, *arrays], dtype=np.int32, casting="unsafe")


def _starts(counts: np.ndarray) -> np.ndarray:
    """int64 [n + 1]: where each of n parts of so many begins, and the end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


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
    asked: _Asked, node_of: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct (node, target) pairs sorted by node, and each scored token's index in them.

    Args:
        node_of: of each token of the paths.
        place: where in it each sequence's path begins.
    """
    n = asked.n_scored
    at = np.arange(int(n.sum())) - np.repeat(_starts(n)[:-1], n)
    choice = np.repeat(asked.n_choices > 0, n)
    # One node for all choices.
    node = np.repeat(place + asked.first - 1, n) + np.where(choice, 0, at)
    all_ids = np.concatenate([asked.ids, asked.choices])
    first_choice = len(asked.ids) + _starts(asked.n_choices)[:-1]
    first_target = np.where(asked.n_choices > 0, first_choice, asked.start + asked.first)
    target = all_ids[np.repeat(first_target, n) + at].astype(np.int64)
    key = (node_of[node] << 32) | target
    # A sequence's nodes rise, and a stable sort merges what rises: a third of `np.unique`'s time.
    by = np.argsort(key, kind="stable")
    key = key[by]
    new = np.ones(len(key), bool)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    edge_of = np.empty(len(key), np.int32)
    edge_of[by] = np.cumsum(new, dtype=np.int32) - 1
    distinct = key[new]
    return distinct >> 32, distinct & 0xFFFFFFFF, edge_of
