"""The interval mask, per pair of tokens and per pair of blocks.

Rows [R, L] are one row of T = R * L tokens: if the subtree ends of row r are moved by r * L, the
rule `j <= i < end[j]` keeps rows apart by itself. A pair of blocks in which no token attends to
another is not listed; a pair in which all do needs no mask.

        keys  0 1 2 3        two rows of two blocks each: pairs of different rows, (0, 2), (0, 3),
    queries 0 o              (1, 2) ..., and pairs above the diagonal are not in the list;
            1 # o            o needs a mask, # does not
            2     o
            3     # o
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def visible(
    i: Any, j: Any, subtree_end_j: Any, position_i: Any, position_j: Any, window: Any
) -> Array:
    """Whether token i attends to token j, for arrays that broadcast with each other.

    Args:
        i, j: indices in the row.
        subtree_end_j: subtree end of token j.
        position_i, position_j: depths in the trie.
        window: see `interval.attention`.
    """
    seen = (j <= i) & (i < subtree_end_j)
    if window is None:
        return seen
    return seen & ((window == 0) | (position_i - position_j < window))


class BlockPairs(NamedTuple):
    """Visibility of each block of keys to each block of queries, from the bounds of the blocks."""

    some: Bool[Array, "n_queries n_keys"]  # some token may attend to another
    every: Bool[Array, "n_queries n_keys"]  # every token attends to every other: no mask


def flat_ends(subtree_end_RL: Int[Array, "R L"]) -> Int[Array, " T"]:
    """Subtree ends [T] of the rows laid end to end as one row."""
    R, L = subtree_end_RL.shape
    first = L * jnp.arange(R, dtype=jnp.int32)[:, None]
    return (jnp.minimum(subtree_end_RL, L) + first).reshape(-1)


def block_pairs(
    end_T: Int[Array, " T"],
    position_T: Int[Array, " T"],
    window: Int[Array, ""] | None,
    queries: int,
    keys: int,
) -> BlockPairs:
    """Visibility of every pair of a query block and a key block.

    Args:
        end_T: see `flat_ends`; T is a multiple of both block sizes. A token whose end is 0 is
            padding.
        position_T: depths in the trie.
        window: see `interval.attention`.
        queries, keys: tokens in a block.
    """
    T = end_T.shape[0]
    i = jnp.arange(T // queries, dtype=jnp.int32)[:, None] * queries  # the first of its block
    j = jnp.arange(T // keys, dtype=jnp.int32)[None, :] * keys
    ends = end_T.reshape(-1, keys)
    some = (j <= i + queries - 1) & (ends.max(axis=1)[None] > i)
    every = (j + keys - 1 <= i) & (ends.min(axis=1)[None] >= i + queries)
    if window is not None:
        of_queries, of_keys = position_T.reshape(-1, queries), position_T.reshape(-1, keys)
        nearest = of_queries.min(axis=1)[:, None] - of_keys.max(axis=1)[None]
        farthest = of_queries.max(axis=1)[:, None] - of_keys.min(axis=1)[None]
        some &= (window == 0) | (nearest < window)
        every &= (window == 0) | (farthest < window)
    return BlockPairs(some, every & some)


def most_pairs(T: int, queries: int, keys: int) -> int:
    """Number of block pairs that are not entirely above the diagonal."""
    return sum((i + queries - 1) // keys + 1 for i in range(0, T, queries))


def padded(x: jax.Array, multiple: int, axis: int) -> jax.Array:
    """Appends zeros along one axis, up to a multiple."""
    short = -x.shape[axis] % multiple
    if not short:
        return x
    return jnp.pad(x, [(0, short if k == axis else 0) for k in range(x.ndim)])
