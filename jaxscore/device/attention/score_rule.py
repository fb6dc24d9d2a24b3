"""Which tokens attend to which, and the scores of those pairs before the softmax.

Rows [R, L] are one row of T = R * L tokens: if the subtree ends of row r are moved by r * L, the
rule `j <= i < end[j]` keeps rows apart by itself. A pair of blocks in which no token attends to
another is not listed; a pair in which all do needs no mask.

        keys  0 1 2 3        two rows of two blocks each: pairs of different rows, (0, 2), (0, 3),
    queries 0 o              (1, 2) ..., and pairs above the diagonal are not in the list;
            1 # o            o needs a mask, # does not
            2     o
            3     # o
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class BatchTooLong(ValueError):
    """A batch has more tokens than a kernel can address."""


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


def pair_counts(T: int, length: int, queries: int, keys: int) -> list[int]:
    """Most key blocks that each query block sees: from the start of its row to the diagonal.

    Args:
        T: tokens of all rows, padding included.
        length: of a row.
    """
    return [
        (i + queries - 1) // keys - i // length * length // keys + 1 for i in range(0, T, queries)
    ]


def padded(x: jax.Array, multiple: int, axis: int) -> jax.Array:
    """Appends zeros along one axis, up to a multiple."""
    short = -x.shape[axis] % multiple
    if not short:
        return x
    return jnp.pad(x, [(0, short if k == axis else 0) for k in range(x.ndim)])


class Alibi(NamedTuple):
    """ALiBi: a penalty proportional to the distance along the path (arXiv 2108.12409).

    Attributes:
        slopes: penalty per position, for each query head.
        scale: factor on the penalty.
        coarse: slopes, positions and their products are rounded to bfloat16, as when the model was
            trained.
    """

    slopes: tuple[float, ...]
    scale: float = 1.0
    coarse: bool = False


class ScoreRule(NamedTuple):
    """The score `softcap * tanh(scale * product / softcap) + alibi`; static.

    Attributes:
        split: mesh axis over which the query heads are split.
    """

    scale: float
    softcap: float | None = None
    alibi: Alibi | None = None
    split: str | None = None

    def slopes(self) -> Float[Array, " N"] | None:
        """ALiBi slopes of this shard's query heads, or None without ALiBi."""
        if self.alibi is None:
            return None
        slopes = jnp.asarray(self.alibi.slopes, jnp.float32)
        if self.split is None:
            return slopes
        n_here = len(self.alibi.slopes) // lax.axis_size(self.split)
        return lax.dynamic_slice_in_dim(slopes, lax.axis_index(self.split) * n_here, n_here)

    def kernel_bias(
        self, position_T: Int[Array, " T"]
    ) -> tuple[Float[Array, " N"] | None, Float[Array, "N T"] | None] | None:
        """ALiBi for a kernel, divided by ln 2, or None without ALiBi.

        Returns:
            Slopes per head, or, if ALiBi is coarse, penalties per head and position; the other
            entry is None.
        """
        slopes = self.slopes()
        if self.alibi is None or slopes is None:
            return None
        scale = self.alibi.scale / math.log(2)
        if not self.alibi.coarse:
            return scale * slopes, None
        return None, scale * self.coarse_bias(slopes[:, None], position_T[None, :])

    def scores(self, products: Array, slope: Any, position_i: Any, position_j: Any) -> Array:
        """Attention scores, float32.

        Args:
            products: q . k, broadcasting with the other arrays.
            slope: of the products' heads, from `slopes`.
            position_i, position_j: depths of query and key in the trie.
        """
        scores = products * self.scale
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        if self.alibi is None:
            return scores
        if not self.alibi.coarse:
            return scores + self.alibi.scale * slope * (position_j - position_i)

        penalty = self.coarse_bias(slope, position_j) - self.coarse_bias(slope, position_i)
        return scores + self.alibi.scale * penalty

    @staticmethod
    def coarse_bias(slope: Any, position: Any) -> Array:
        """`slope * position` as float32, factors and product rounded to bfloat16."""

        def rounded(x: Any) -> Array:
            return lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)

        return rounded(rounded(slope) * rounded(position))
