"""Tries of token sequences in depth-first order, and subforests that are planned separately.

Sorting the sequences builds the tries: each sequence adds the tokens after its common prefix with
the previous sequence. Depth-first order is then the sorted order, and no node objects are needed.

    sorted          shared   adds           nodes        0   1   2    3    4
    The cat ran        0     The cat ran    token      The cat ran  sat down
    The cat sat down   2     sat down       depth        0   1   2    2    3
                                            subtree_end  5   5   3    5    5

After the sort, this takes time proportional to the number of tokens.

Long prefixes that many requests share are computed once instead of once per row. A trie that
overflows a row is cut, and each piece repeats the path from the root. Where that path is long, the
subtrees at its end become a separate subforest: its rows omit the path and attend to its prefix
cache (`device.attention.kv_cache`).

    1500 prompt tokens -+- question 1      prefix:     1499 tokens, computed once
                        +- question 2      subforest:  the last prompt token and the questions,
                        +- ...                         with its root at depth 1499

The path's last token belongs to the subforest, since the first token of each continuation is
scored there.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.plan.requests import TokenSequence

SHORTEST_PREFIX = 128  # tokens; a shorter prefix saves less than its program costs


@dataclasses.dataclass(frozen=True)
class Forest:
    """Tries of M nodes in depth-first order, and their E distinct requested edges.

    An edge is one requested probability: a node and the token that follows it. The last token of
    a continuation is a target and not a node. A sequence without scored tokens adds nothing. The
    choices of a sequence are edges of its last node.

    Attributes:
        ids, depth, subtree_end, reach: int32 [M]; `reach` is the length in nodes of the longest
            path from the root through the node to one of its descendants.
        edge_node, edge_target: int32 [E], sorted by node.
        edge_of: int32 [scored tokens], the edge of each scored token, concatenated over sequences.
        offsets: int64 [sequences + 1], the offset of each sequence in `edge_of`, and the end.
        n_input_tokens: number of tokens of all sequences, before sharing.
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


@dataclasses.dataclass(frozen=True)
class Subforest:
    """A forest that is planned separately: a complete one, or the continuations of one prefix.

    Attributes:
        prefix: int32 [p], token ids of the prefix cache that all tries of the forest continue;
            empty if there is none. The forest's `depth` includes the prefix, its `reach` does not.
        forest: the tries; `edge_of` and `offsets` are empty unless the forest is complete.
        edges: int32 [E], the index of each edge in the complete forest.
    """

    prefix: np.ndarray
    forest: Forest
    edges: np.ndarray


def as_subforest(forest: Forest) -> Subforest:
    """Return a complete forest as a single subforest without a prefix."""
    return Subforest(np.zeros(0, np.int32), forest, np.arange(forest.n_edges, dtype=np.int32))


class Share(enum.Enum):
    """Rule for the nodes that sequences may share.

    TRIES: sequences share every common prefix. PATHS: tries have no branches, for models that take
    one request per row; a sequence shares nodes only with its own extensions. WHOLE: a sequence
    shares nodes only with sequences of the same input and scored tokens, so that its layout
    depends on it alone.
    """

    TRIES = enum.auto()
    PATHS = enum.auto()
    WHOLE = enum.auto()


def build_forest(sequences: Sequence[TokenSequence], *, share: Share = Share.TRIES) -> Forest:
    """Merge sequences, in any order and with duplicates, into tries."""
    # Over 60 lines: four steps that share most of their arrays.
    # 1. Sort the input ids of all sequences; leave out sequences without scored tokens.
    n_ids = np.array([len(sequence.ids) for sequence in sequences], np.int64)
    n_choices = np.array([len(sequence.choices) for sequence in sequences], np.int64)
    first = np.maximum(np.array([sequence.start for sequence in sequences], np.int64), 1)
    n_scored = np.where(n_choices > 0, n_choices, np.maximum(n_ids - first, 0))
    gapped = {k: s.positions for k, s in enumerate(sequences) if s.positions is not None}
    for k, positions in gapped.items():
        n_scored[k] = len(positions) - (positions[0] == 0)
    n_input = np.maximum(n_ids - (n_choices == 0), 0)
    ids = np.concatenate(
        [np.zeros(0, np.int32), *(sequence.ids for sequence in sequences)],
        dtype=np.int32,
        casting="unsafe",
    )
    start = _starts(n_ids)[:-1]
    keys = ids.astype(">u4").tobytes()  # big-endian bytes compare as the ids do
    bounds = zip((4 * start).tolist(), (4 * (start + n_input)).tolist(), strict=True)
    gaps = [gapped[k].tobytes() if k in gapped else b"" for k in range(len(sequences))]
    rank = list(zip((keys[a:b] for a, b in bounds), first.tolist(), gaps, strict=True))
    order = np.array(sorted(np.flatnonzero(n_scored).tolist(), key=rank.__getitem__), np.int64)
    lengths = n_input[order]
    starts = _starts(lengths)
    column = np.arange(int(starts[-1])) - np.repeat(starts[:-1], lengths)
    flat = ids[np.repeat(start[order], lengths) + column]

    # 2. Each sequence adds the nodes after its common prefix with the previous sequence.
    shared = _shared_with_previous(flat, starts, lengths)
    if share is not Share.TRIES and len(order):
        may_share = shared[1:] == lengths[:-1]
        if share is Share.WHOLE:
            may_share &= lengths[1:] == lengths[:-1]
            may_share &= first[order[1:]] == first[order[:-1]]
            may_share &= n_scored[order[1:]] == n_scored[order[:-1]]
            for k in np.flatnonzero(may_share).tolist() if gapped else ():
                may_share[k] = gaps[order[k]] == gaps[order[k + 1]]
        shared[1:] = np.where(may_share, shared[1:], 0)
    is_new = column >= np.repeat(shared, lengths)
    first_node = _starts(lengths - shared)
    subtree_end, reach = _subtrees(shared, lengths, first_node)

    # 3. Find the node of every token: in the common prefix, the previous sequence's node.
    node_of = np.zeros(len(flat), np.int64)
    node_of[is_new] = np.arange(int(first_node[-1]))
    sharing = np.flatnonzero(shared)
    for a, before, n in zip(
        *(x.tolist() for x in (starts[sharing], starts[sharing - 1], shared[sharing])), strict=True
    ):
        node_of[a : a + n] = node_of[before : before + n]

    # 4. Find the distinct edges. All choices of a sequence are edges of its last node.
    path_start = np.zeros(len(sequences), np.int64)  # offset of each sequence in `node_of`
    path_start[order] = starts[:-1]
    offsets = _starts(n_scored)
    nth = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], n_scored)
    for k, positions in gapped.items():
        nth[offsets[k] : offsets[k + 1]] = positions[positions > 0] - first[k]
    is_choice = np.repeat(n_choices > 0, n_scored)
    node = node_of[np.repeat(path_start + first - 1, n_scored) + np.where(is_choice, 0, nth)]
    all_ids = np.concatenate(
        [ids, *(sequence.choices for sequence in sequences)], dtype=np.int32, casting="unsafe"
    )
    first_choice = len(ids) + _starts(n_choices)[:-1]
    first_target = np.where(n_choices > 0, first_choice, start + first)
    target = all_ids[np.repeat(first_target, n_scored) + nth].astype(np.int64)
    edges, edge_of = _distinct((node << 32) | target)
    return Forest(
        ids=flat[is_new],
        depth=column[is_new].astype(np.int32),
        subtree_end=subtree_end.astype(np.int32),
        reach=reach.astype(np.int32),
        edge_node=(edges >> 32).astype(np.int32),
        edge_target=(edges & 0xFFFFFFFF).astype(np.int32),
        edge_of=edge_of,
        offsets=offsets,
        n_input_tokens=len(all_ids),
    )


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return the start offsets of n consecutive segments of these sizes, and the end: [n + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _shared_with_previous(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Compute the length of each sequence's common prefix with the previous one; first: 0."""
    shared = np.zeros(len(lengths), np.int64)
    if len(lengths) < 2:
        return shared
    span = np.minimum(lengths[1:], lengths[:-1])
    first = _starts(span)
    column = np.arange(int(first[-1])) - np.repeat(first[:-1], span)
    here, before = np.repeat(starts[1:-1], span) + column, np.repeat(starts[:-2], span) + column
    differs = np.where(flat[here] != flat[before], column, np.iinfo(np.int64).max)
    shared[1:] = np.minimum(np.minimum.reduceat(differs, first[:-1]), span)
    return shared


def _subtrees(
    shared: np.ndarray, lengths: np.ndarray, first_node: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `subtree_end` and `reach` of each node, int64 [M] each.

    A stack holds the branches of the current path as [depth, first node, nodes, reach]. A
    sequence that shares s tokens closes all branches at depth s or deeper.
    """
    n_nodes = int(first_node[-1])
    end, reach = np.empty(n_nodes, np.int64), np.empty(n_nodes, np.int64)
    stack: list[list[int]] = []
    # A final sequence of length 0 closes all branches.
    for depth, length, node in zip(
        [*shared.tolist(), 0], [*lengths.tolist(), 0], first_node.tolist(), strict=True
    ):
        deepest = 0
        while stack and stack[-1][0] + stack[-1][2] > depth:
            top, first, count, branch_reach = stack.pop()
            deepest = max(deepest, branch_reach)
            n_open = max(0, depth - top)
            end[first + n_open : first + count] = node
            reach[first + n_open : first + count] = deepest
            if n_open:
                stack.append([top, first, n_open, deepest])
                break
        if stack:
            stack[-1][3] = max(stack[-1][3], deepest)
        if length > depth:
            stack.append([depth, node, length - depth, length])
    return end, reach


def _distinct(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct keys, and the index of each key in them as int32.

    Same result as `np.unique(return_inverse=True)` in a third of the time: the nodes of a sequence
    are ascending, and a stable sort merges ascending runs.
    """
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_new[1:])
    index = np.empty(len(keys), np.int32)
    index[order] = np.cumsum(is_new, dtype=np.int32) - 1
    return keys[is_new], index


def range_within(values: np.ndarray, first: int, stop: int) -> tuple[int, int]:
    """Return the index range of the ascending values that are at least `first` and below `stop`."""
    bounds = np.array([first, stop], values.dtype)  # another dtype would convert all values
    a, b = np.searchsorted(values, bounds).tolist()
    return a, b


class _Path(NamedTuple):
    """Nodes [first, stop), each the only child of the previous one, below the path `above`."""

    first: int
    stop: int
    above: "_Path | None"


class _Prefix(NamedTuple):
    """A path of `length` tokens, and the nodes [first, stop) at its end."""

    first: int
    stop: int
    length: int
    above: int  # index of the prefix that this one continues, or -1
    path: _Path | None  # the path above `first`, or None if it is empty


def split_at_prefixes(forest: Forest) -> list[Subforest]:
    """Split a forest into a subforest without a prefix, then one subforest for each prefix.

    From the root down, a path becomes a prefix if it adds at least `SHORTEST_PREFIX` tokens to the
    prefix above it and if more tokens than it adds follow it. If too few of these remain after
    deeper prefixes have taken theirs, the prefix is dropped and its nodes go to the prefix above.
    Takes time proportional to the number of nodes times the nesting depth of prefixes.
    """
    prefixes = _find_prefixes(forest)
    owner = np.full(forest.n_nodes, -1, np.int64)  # index of each node's prefix, or -1
    size = np.zeros(len(prefixes) + 1, np.int64)  # nodes of each prefix; the last element is for -1
    for k, prefix in enumerate(prefixes):  # a prefix comes after the one above it
        n_nodes = prefix.stop - prefix.first
        owner[prefix.first : prefix.stop] = k
        size[k] += n_nodes
        size[prefix.above] -= n_nodes
    new_owner = np.arange(-1, len(prefixes))  # [k + 1]: prefix that gets the nodes of k
    chosen = []
    for k in reversed(range(len(prefixes))):
        above = prefixes[k].above
        if size[k] <= prefixes[k].length - (prefixes[above].length if above >= 0 else 0):
            size[above] += size[k]
            new_owner[k + 1] = above
        else:
            chosen.append(k)
    for k, prefix in enumerate(prefixes):
        if new_owner[k + 1] != k:
            new_owner[k + 1] = new_owner[prefix.above + 1]  # final: the prefix above came first
    owner = new_owner[owner + 1]
    subforests = [_subforest(forest, owner, -1, _Prefix(0, forest.n_nodes, 0, -1, None))]
    subforests += [_subforest(forest, owner, k, prefixes[k]) for k in reversed(chosen)]
    return [subforest for subforest in subforests if subforest.forest.n_edges]


def _find_prefixes(forest: Forest) -> list[_Prefix]:
    """Find all paths that are long enough, each after the one that it continues."""
    end, depth = forest.subtree_end, forest.depth
    # A node has a single child if the child's subtree ends where its own does. `last` is the last
    # node of each node's chain.
    nodes = np.arange(forest.n_nodes)
    goes_on = np.append(end[1:] == end[:-1], False)
    last = np.minimum.accumulate(np.where(goes_on, forest.n_nodes, nodes)[::-1])[::-1]
    prefixes: list[_Prefix] = []
    pending: list[tuple[int, int, _Path | None]] = [
        (node, -1, None) for node in _siblings(end, 0, forest.n_nodes)
    ]
    while pending:
        node, above, path_above = pending.pop()
        stop, length_above = int(end[node]), prefixes[above].length if above >= 0 else 0
        if stop - node <= 2 * SHORTEST_PREFIX:
            continue
        fork = int(last[node]) + 1
        length = int(depth[node]) + fork - node - 1
        if length - length_above >= SHORTEST_PREFIX and stop - fork > length - length_above:
            path = _Path(node, fork - 1, path_above) if fork - 1 > node else path_above
            prefixes.append(_Prefix(fork - 1, stop, length, above, path))
            above = len(prefixes) - 1
        chain = _Path(node, fork, path_above)
        pending += [(child, above, chain) for child in _siblings(end, fork, stop)]
    return prefixes


def _siblings(end: np.ndarray, first: int, stop: int) -> list[int]:
    """Return the roots of the consecutive subtrees in [first, stop)."""
    nodes = []
    while first < stop:
        nodes.append(first)
        first = int(end[first])
    return nodes


def _subforest(forest: Forest, owner: np.ndarray, k: int, prefix: _Prefix) -> Subforest:
    """Build the subforest of a prefix from the nodes that it owns and that an edge needs.

    Args:
        owner: int [M], index of each node's prefix.
        k: index of the prefix.
    """
    first, stop = prefix.first, prefix.stop
    edges = np.arange(*range_within(forest.edge_node, first, stop), dtype=np.int32)
    edges = edges[owner[forest.edge_node[edges]] == k]
    edge_node = forest.edge_node[edges] - first  # ascending, like `forest.edge_node`
    end = forest.subtree_end[first:stop] - first
    n_edges = np.concatenate([[0], np.cumsum(np.bincount(edge_node, minlength=stop - first))])
    is_needed = (owner[first:stop] == k) & (n_edges[end] > n_edges[:-1])
    index = np.concatenate([[0], np.cumsum(is_needed)]).astype(np.int32)
    depth = forest.depth[first:stop][is_needed]
    subtree_end = index[end[is_needed]]
    ids, path = [forest.ids[:0]], prefix.path
    while path is not None:
        ids.append(forest.ids[path.first : path.stop])
        path = path.above
    prefix_ids = np.concatenate(ids[::-1]).astype(np.int32)
    return Subforest(
        prefix_ids,
        Forest(
            ids=forest.ids[first:stop][is_needed],
            depth=depth,
            subtree_end=subtree_end,
            reach=_reach(depth, subtree_end) - np.int32(len(prefix_ids)),
            edge_node=index[edge_node],
            edge_target=forest.edge_target[edges],
            edge_of=np.zeros(0, np.int32),
            offsets=np.zeros(1, np.int64),
            n_input_tokens=0,
        ),
        edges,
    )


def _reach(depth: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Compute the length of the longest path through each node to a descendant, int32 [M].

    All nodes of a chain, in which each is the only child of the previous one, have the same reach:
    the depth of the deepest end of a chain in the subtree.
    """
    begins = np.ones(len(end), bool)
    begins[1:] = end[1:] != end[:-1]
    start = np.flatnonzero(begins)
    stop = np.append(start[1:], len(end))[: len(start)]
    subtrees = np.stack([np.arange(len(start)), np.searchsorted(start, end[start])], axis=1)
    lengths = np.append(depth[stop - 1] + 1, 0)  # the last subtree ends after the last chain
    reach = np.maximum.reduceat(lengths, subtrees.ravel())[::2]
    return np.repeat(reach, stop - start).astype(np.int32)
