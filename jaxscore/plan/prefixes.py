"""Long prefixes that many requests share, computed once instead of once a row.

A trie that overflows a row is cut, and each piece carries the path from the root again. Where
that path is long, what hangs at its end becomes a forest of its own: its rows leave the path
out, and see the path's keys and values (`device.attention.kv_cache`) before their own tokens.

    1500 prompt tokens -+- question 1      prefix: 1499 tokens, once
                        +- question 2      part:  a forest of the last one and the questions,
                        +- ...                    its root at depth 1499

The path's last token stays with what follows it, since that is where the first token of each
continuation is asked for.
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from jaxscore.plan.tries import Forest, range_within

SHORTEST = 128  # tokens of a path that is worth a program of its own


@dataclasses.dataclass(frozen=True)
class Part:
    """A forest that is planned by itself.

    Attributes:
        prefix: int32 [p], the path that all its tries continue; empty where they have none. The
            forest's `depth` counts it, its `reach` does not.
        forest: see `jaxscore.plan.tries`; without `edge_of` and `offsets`, which are the whole's.
        edges: int32 [E], for each of its edges the whole forest's.
    """

    prefix: np.ndarray
    forest: Forest
    edges: np.ndarray


def as_one_part(forest: Forest) -> Part:
    """All of a forest in one part."""
    return Part(np.zeros(0, np.int32), forest, np.arange(forest.n_edges, dtype=np.int32))


def split_at_prefixes(forest: Forest) -> list[Part]:
    """The parts of a forest: one without a prefix, then one for each prefix.

    From the root down, a path becomes a prefix where it goes on for at least `SHORTEST` tokens
    beyond the one above it and more tokens than these hang at its end. A prefix that the deeper
    ones have left with fewer gives them back to the one above. Takes time in proportion to the
    nodes, times how deep prefixes hang below each other.
    """
    prefixes = _prefixes(forest)
    owner = np.full(forest.n_nodes, -1, np.int64)
    size = np.zeros(len(prefixes) + 1, np.int64)  # nodes of each; the last entry is without prefix
    for k, one in enumerate(prefixes):  # those above come first
        owner[one.first : one.stop] = k
        size[k] += one.stop - one.first
        size[one.above] -= one.stop - one.first
    keeps = np.arange(-1, len(prefixes))  # [k + 1]: which prefix has the nodes of k
    kept = []
    for k in reversed(range(len(prefixes))):
        above = prefixes[k].above
        if size[k] <= prefixes[k].path - (prefixes[above].path if above >= 0 else 0):
            size[above] += size[k]
            keeps[k + 1] = above
        else:
            kept.append(k)
    for k, one in enumerate(prefixes):
        if keeps[k + 1] != k:
            keeps[k + 1] = keeps[one.above + 1]  # final already, since those above come first
    owner = keeps[owner + 1]
    parts = [_part(forest, owner, -1, _Prefix(0, forest.n_nodes, 0, -1, None))]
    parts += [_part(forest, owner, k, prefixes[k]) for k in reversed(kept)]
    return [part for part in parts if part.forest.n_edges]


class _Path(NamedTuple):
    """Nodes [first, stop), each the only child of the one before, below the path `above`."""

    first: int
    stop: int
    above: "_Path | None"

    def ids(self, forest: Forest) -> np.ndarray:
        """Token ids from the root to the last node."""
        pieces: list[np.ndarray] = []
        one: _Path | None = self
        while one is not None:
            pieces.append(forest.ids[one.first : one.stop])
            one = one.above
        return np.concatenate(pieces[::-1])


class _Prefix(NamedTuple):
    """What hangs at the end of a path of so many tokens: the nodes [first, stop)."""

    first: int
    stop: int
    path: int
    above: int  # index of the prefix that this one goes on from, -1 for none
    nodes: _Path | None  # above `first`; None where there are none


def _prefixes(forest: Forest) -> list[_Prefix]:
    end, depth = forest.subtree_end, forest.depth
    # A path goes on while a node has one child, which ends where it ends. For each node the last
    # such one.
    nodes = np.arange(forest.n_nodes)
    goes_on = np.append(end[1:] == end[:-1], False)
    last = np.minimum.accumulate(np.where(goes_on, forest.n_nodes, nodes)[::-1])[::-1]
    found: list[_Prefix] = []
    todo: list[tuple[int, int, _Path | None]] = [
        (node, -1, None) for node in _siblings(end, 0, forest.n_nodes)
    ]
    while todo:
        node, above, path_above = todo.pop()
        stop, behind = int(end[node]), found[above].path if above >= 0 else 0
        if stop - node <= 2 * SHORTEST:
            continue
        fork = int(last[node]) + 1
        path = int(depth[node]) + fork - node - 1
        if path - behind >= SHORTEST and stop - fork > path - behind:
            shorter = _Path(node, fork - 1, path_above) if fork - 1 > node else path_above
            found.append(_Prefix(fork - 1, stop, path, above, shorter))
            above = len(found) - 1
        own = _Path(node, fork, path_above)
        todo += [(child, above, own) for child in _siblings(end, fork, stop)]
    return found


def _siblings(end: np.ndarray, first: int, stop: int) -> list[int]:
    """Roots of the consecutive subtrees in [first, stop)."""
    nodes = []
    while first < stop:
        nodes.append(first)
        first = int(end[first])
    return nodes


def _part(forest: Forest, owner: np.ndarray, k: int, prefix: _Prefix) -> Part:
    """The nodes that k owns and that an edge needs, as a forest of their own."""
    first, stop = prefix.first, prefix.stop
    edges = np.arange(*range_within(forest.edge_node, first, stop), dtype=np.int32)
    edges = edges[owner[forest.edge_node[edges]] == k]
    asked = forest.edge_node[edges] - first  # sorted, as all edges are
    own = owner[first:stop] == k
    end = forest.subtree_end[first:stop] - first
    n_asked = np.concatenate([[0], np.cumsum(np.bincount(asked, minlength=stop - first))])
    needed = own & (n_asked[end] > n_asked[:-1])
    index = np.concatenate([[0], np.cumsum(needed)]).astype(np.int32)
    depth = forest.depth[first:stop][needed]
    subtree_end = index[end[needed]]
    path = forest.ids[:0] if prefix.nodes is None else prefix.nodes.ids(forest)
    return Part(
        path.astype(np.int32),
        Forest(
            ids=forest.ids[first:stop][needed],
            depth=depth,
            subtree_end=subtree_end,
            reach=_reach(depth, subtree_end) - np.int32(len(path)),
            edge_node=index[asked],
            edge_target=forest.edge_target[edges],
            edge_of=np.zeros(0, np.int32),
            offsets=np.zeros(1, np.int64),
            n_input_tokens=0,
        ),
        edges,
    )


def _reach(depth: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The longest path through each node to a node below it.

    Nodes with one child reach as far as it does, so chains of them are looked at, one level of
    branches at a time.
    """
    goes_on = end[1:] == end[:-1]
    start = np.flatnonzero(np.concatenate([np.ones(min(1, len(end)), bool), ~goes_on]))
    stop = np.append(start[1:], len(end))[: len(start)]
    reach = depth[stop - 1] + 1
    n_ended = np.searchsorted(np.sort(end[start]), start, side="right")
    level = np.arange(len(start)) - n_ended  # chains above
    order = np.argsort(level, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(level[order])) + 1)
    for parents, children in reversed(list(itertools.pairwise(levels))):
        parent = parents[np.searchsorted(parents, children) - 1]  # the last before each child
        np.maximum.at(reach, parent, reach[children])
    return np.repeat(reach, stop - start).astype(np.int32)
