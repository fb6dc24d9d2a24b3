"""Long prefixes that many requests share, computed once instead of once per row.

A trie that overflows a row is cut, and each piece repeats the path from the root. Where that
path is long, the subtrees at its end become a forest of their own: its rows omit the path and
attend to its prefix cache (`device.attention.kv_cache`).

    1500 prompt tokens -+- question 1      prefix: 1499 tokens, once
                        +- question 2      part:  a forest of the last one and the questions,
                        +- ...                    its root at depth 1499

The path's last token stays with its subtrees, since the first token of each continuation is
scored there.
"""

from typing import NamedTuple

import numpy as np

from jaxscore.plan.tries import Forest, Part, range_within

SHORTEST = 128  # tokens of a prefix that is worth a program of its own


class _Path(NamedTuple):
    """Nodes [first, stop), each the only child of the one before, below the path `above`."""

    first: int
    stop: int
    above: "_Path | None"


class _Prefix(NamedTuple):
    """A path of `length` tokens, and the nodes [first, stop) at its end."""

    first: int
    stop: int
    length: int
    above: int  # index of the prefix that this one continues, or -1
    path: _Path | None  # above `first`; None if there are no nodes


def split_at_prefixes(forest: Forest) -> list[Part]:
    """Split a forest into one part without a prefix, then one part for each prefix.

    From the root down, a path becomes a prefix if it adds at least `SHORTEST` tokens to the
    prefix above and if more tokens than these follow it. A prefix that deeper ones have left
    with fewer returns them to the one above. Takes time in proportion to the nodes, times the
    depth to which prefixes are nested.
    """
    prefixes = _find_prefixes(forest)
    owner = np.full(forest.n_nodes, -1, np.int64)  # of each node: index of its prefix, or -1
    size = np.zeros(len(prefixes) + 1, np.int64)  # nodes of each; the last entry is for -1
    for k, prefix in enumerate(prefixes):  # those above come first
        n_nodes = prefix.stop - prefix.first
        owner[prefix.first : prefix.stop] = k
        size[k] += n_nodes
        size[prefix.above] -= n_nodes
    new_owner = np.arange(-1, len(prefixes))  # [k + 1]: the prefix that gets the nodes of k
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
            new_owner[k + 1] = new_owner[prefix.above + 1]  # final, since those above come first
    owner = new_owner[owner + 1]
    parts = [_part(forest, owner, -1, _Prefix(0, forest.n_nodes, 0, -1, None))]
    parts += [_part(forest, owner, k, prefixes[k]) for k in reversed(chosen)]
    return [part for part in parts if part.forest.n_edges]


def _find_prefixes(forest: Forest) -> list[_Prefix]:
    """All paths that are long enough, each after the one that it continues."""
    end, depth = forest.subtree_end, forest.depth
    # A node has one child if that ends where it ends. For each node the last node of its chain.
    nodes = np.arange(forest.n_nodes)
    goes_on = np.append(end[1:] == end[:-1], False)
    last = np.minimum.accumulate(np.where(goes_on, forest.n_nodes, nodes)[::-1])[::-1]
    found: list[_Prefix] = []
    pending: list[tuple[int, int, _Path | None]] = [
        (node, -1, None) for node in _siblings(end, 0, forest.n_nodes)
    ]
    while pending:
        node, above, path_above = pending.pop()
        stop, length_above = int(end[node]), found[above].length if above >= 0 else 0
        if stop - node <= 2 * SHORTEST:
            continue
        fork = int(last[node]) + 1
        length = int(depth[node]) + fork - node - 1
        if length - length_above >= SHORTEST and stop - fork > length - length_above:
            path = _Path(node, fork - 1, path_above) if fork - 1 > node else path_above
            found.append(_Prefix(fork - 1, stop, length, above, path))
            above = len(found) - 1
        chain = _Path(node, fork, path_above)
        pending += [(child, above, chain) for child in _siblings(end, fork, stop)]
    return found


def _siblings(end: np.ndarray, first: int, stop: int) -> list[int]:
    """Roots of the consecutive subtrees in [first, stop)."""
    nodes = []
    while first < stop:
        nodes.append(first)
        first = int(end[first])
    return nodes


def _part(forest: Forest, owner: np.ndarray, k: int, prefix: _Prefix) -> Part:
    """Part of a prefix: the nodes that it owns and that an edge needs, as a forest.

    Args:
        owner: int [M], index of the prefix of each node.
        k: index of the prefix.
    """
    first, stop = prefix.first, prefix.stop
    edges = np.arange(*range_within(forest.edge_node, first, stop), dtype=np.int32)
    edges = edges[owner[forest.edge_node[edges]] == k]
    edge_node = forest.edge_node[edges] - first  # sorted, as all edges are
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
    return Part(
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
    """Length of the longest path through each node to a node below it, int32 [M].

    All nodes of a chain, in which each is the only child of the one before, reach equally far:
    to the deepest end of a chain in its subtree.
    """
    begins = np.ones(len(end), bool)
    begins[1:] = end[1:] != end[:-1]
    start = np.flatnonzero(begins)
    stop = np.append(start[1:], len(end))[: len(start)]
    subtrees = np.stack([np.arange(len(start)), np.searchsorted(start, end[start])], axis=1)
    lengths = np.append(depth[stop - 1] + 1, 0)  # the last subtree ends behind the last chain
    reach = np.maximum.reduceat(lengths, subtrees.ravel())[::2]
    return np.repeat(reach, stop - start).astype(np.int32)
