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

import numpy as np

from jaxscore.plan.forest import Forest

SHORTEST = 128  # tokens of a path that is worth a program of its own


@dataclasses.dataclass(frozen=True)
class Part:
    """A forest that is planned by itself.

    Attributes:
        prefix: int32 [p], the path that all its tries continue; empty where they have none. The
            forest's `depth` counts it, its `reach` does not.
        forest: see `jaxscore.plan.forest`; without `edge_of` and `offsets`, which are the whole's.
        edges: int32 [E], for each of its edges the whole forest's.
    """

    prefix: np.ndarray
    forest: Forest
    edges: np.ndarray


def whole(forest: Forest) -> Part:
    """All of a forest in one part."""
    return Part(np.zeros(0, np.int32), forest, np.arange(forest.n_edges, dtype=np.int32))


def split(forest: Forest) -> list[Part]:
    """The parts of a forest: one without a prefix, then one for each prefix.

    From the root down, a path becomes a prefix where it goes on for at least `SHORTEST` tokens
    beyond the one above it and more tokens than these hang at its end. A prefix that the deeper
    ones have left with fewer gives them back to the one above.
    """
    prefixes = _prefixes(forest)
    owner = np.full(forest.n_nodes, -1, np.int64)
    for k, prefix in enumerate(prefixes):  # those above come first
        owner[prefix.first : prefix.stop] = k
    for k in reversed(range(len(prefixes))):
        own, above = owner == k, prefixes[k].above
        shorter = prefixes[above].path if above >= 0 else 0
        if int(own.sum()) <= prefixes[k].path - shorter:
            owner[own] = above
    parts = []
    for k in range(-1, len(prefixes)):
        edges = np.flatnonzero(owner[forest.edge_node] == k)
        if len(edges):
            first = prefixes[k].first if k >= 0 else 0
            # Nodes before the first whose subtrees go on beyond it are its path.
            path = forest.ids[:first][forest.subtree_end[:first] > first]
            parts.append(_part(forest, owner == k, path, edges.astype(np.int32)))
    return parts


@dataclasses.dataclass(frozen=True)
class _Prefix:
    """What hangs at the end of a path of so many tokens: the nodes [first, stop)."""

    first: int
    stop: int
    path: int
    above: int  # index of the prefix that this one goes on from, -1 for none


def _prefixes(forest: Forest) -> list[_Prefix]:
    end, depth = forest.subtree_end, forest.depth
    found: list[_Prefix] = []
    todo = [(node, -1) for node in _siblings(end, 0, forest.n_nodes)]
    while todo:
        node, above = todo.pop()
        stop, behind = int(end[node]), found[above].path if above >= 0 else 0
        if stop - node <= 2 * SHORTEST:
            continue
        # The path goes on while a node has one child, which ends where it ends.
        alone = end[node + 1 : stop] == stop
        fork = node + 1 + int(np.argmin(alone)) if not alone.all() else stop
        path = int(depth[node]) + fork - node - 1
        if path - behind >= SHORTEST and stop - fork > path - behind:
            found.append(_Prefix(fork - 1, stop, path, above))
            above = len(found) - 1
        todo += [(child, above) for child in _siblings(end, fork, stop)]
    return found


def _siblings(end: np.ndarray, first: int, stop: int) -> list[int]:
    """Roots of the consecutive subtrees in [first, stop)."""
    nodes = []
    while first < stop:
        nodes.append(first)
        first = int(end[first])
    return nodes


def _part(forest: Forest, own: np.ndarray, prefix: np.ndarray, edges: np.ndarray) -> Part:
    """The nodes of `own` that an edge of `edges` needs, as a forest of their own."""
    asked = forest.edge_node[edges]  # sorted, as all edges are
    nodes = np.arange(forest.n_nodes)
    first = np.searchsorted(asked, nodes)
    needed = own & (np.searchsorted(asked, forest.subtree_end) > first)
    index = np.concatenate([[0], np.cumsum(needed)]).astype(np.int32)
    depth = forest.depth[needed]
    return Part(
        prefix.astype(np.int32),
        Forest(
            ids=forest.ids[needed],
            depth=depth,
            subtree_end=index[forest.subtree_end[needed]],
            reach=_reach(depth) - np.int32(len(prefix)),
            edge_node=index[asked],
            edge_target=forest.edge_target[edges],
            edge_of=np.zeros(0, np.int32),
            offsets=np.zeros(1, np.int64),
            n_given=0,
        ),
        edges,
    )


def _reach(depth: np.ndarray) -> np.ndarray:
    """The longest path through each node to a node below it, one level at a time."""
    reach = depth + 1
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
    for parents, children in reversed(list(itertools.pairwise(levels))):
        parent = parents[np.searchsorted(parents, children) - 1]  # the last before each child
        np.maximum.at(reach, parent, reach[children])
    return reach.astype(np.int32)
