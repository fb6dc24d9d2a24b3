"""Visibility of tokens to each other, and attention scores before the softmax.

Rows [R, L] are computed as one row of T = R * L tokens. Adding r * L to the subtree ends of row r
makes the rule `j <= i < end[j]` keep the rows separate. A pair of a query block and a key block is
skipped if no query of it attends to any key, and needs no mask if every query attends to every key.

        keys  0 1 2 3        Two rows of two blocks each. Pairs of different rows, (0, 2), (0, 3),
    queries 0 o              (1, 2) ..., and pairs above the diagonal are skipped.
            1 # o            o needs a mask, # does not.
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
    """Return True where token i attends to token j; the arguments broadcast.

    Args:
        i, j: token indices in the row.
        subtree_end_j: subtree end of token j.
        position_i, position_j: depths of the tokens in the trie.
        window: see `interval.attention`.
    """
    mask = (j <= i) & (i < subtree_end_j)
    if window is None:
        return mask
    return mask & ((window == 0) | (position_i - position_j < window))


class BlockPairs(NamedTuple):
    """Visibility of each key block to each query block, from the bounds of the blocks.

    Attributes:
        any_visible: False if no query attends to any key, so that the pair can be skipped.
        all_visible: True only if every query attends to every key, so that no mask is needed.
    """

    any_visible: Bool[Array, "n_queries n_keys"]
    all_visible: Bool[Array, "n_queries n_keys"]


def flatten_ends(subtree_end_RL: Int[Array, "R L"]) -> Int[Array, " T"]:
    """Return the subtree ends [T] of the rows concatenated into one row."""
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
    """Compute the visibility of every pair of a query block and a key block.

    Args:
        end_T: subtree ends from `flatten_ends`; T is a multiple of both block sizes. A token whose
            end is 0 is padding.
        position_T: depths of the tokens in the trie.
        window: see `interval.attention`.
        queries, keys: numbers of tokens in a query block and in a key block.
    """
    T = end_T.shape[0]
    i = jnp.arange(T // queries, dtype=jnp.int32)[:, None] * queries  # first token of each block
    j = jnp.arange(T // keys, dtype=jnp.int32)[None, :] * keys
    ends = end_T.reshape(-1, keys)
    any_visible = (j <= i + queries - 1) & (ends.max(axis=1)[None] > i)
    all_visible = (j + keys - 1 <= i) & (ends.min(axis=1)[None] >= i + queries)
    if window is not None:
        query_position, key_position = position_T.reshape(-1, queries), position_T.reshape(-1, keys)
        min_distance = query_position.min(axis=1)[:, None] - key_position.max(axis=1)[None]
        max_distance = query_position.max(axis=1)[:, None] - key_position.min(axis=1)[None]
        any_visible &= (window == 0) | (min_distance < window)
        all_visible &= (window == 0) | (max_distance < window)
    return BlockPairs(any_visible, all_visible & any_visible)


def pair_counts(T: int, length: int, queries: int, keys: int) -> list[int]:
    """Return an upper bound on the number of key blocks visible to each query block.

    It counts all key blocks from the start of the query block's row to the diagonal.

    Args:
        T: number of tokens of all rows, including padding.
        length: number of tokens in a row.
        queries, keys: numbers of tokens in a query block and in a key block.
    """
    return [
        (i + queries - 1) // keys - i // length * length // keys + 1 for i in range(0, T, queries)
    ]


def pad_to_multiple(x: jax.Array, multiple: int, axis: int) -> jax.Array:
    """Append zeros along an axis until its length is a multiple of `multiple`."""
    padding = -x.shape[axis] % multiple
    if not padding:
        return x
    return jnp.pad(x, [(0, padding if k == axis else 0) for k in range(x.ndim)])


class Alibi(NamedTuple):
    """ALiBi: a penalty proportional to the distance along the path (arXiv 2108.12409).

    Attributes:
        slopes: penalty per position, for each query head.
        scale: factor on the penalty.
        coarse: if True, slopes, positions and their products are rounded to bfloat16, as in the
            model's training.
    """

    slopes: tuple[float, ...]
    scale: float = 1.0
    coarse: bool = False


class ScoreRule(NamedTuple):
    """Static options of the score `softcap * tanh(scale * product / softcap) + alibi`.

    Attributes:
        scale: factor on the product of query and key.
        softcap: bound on the absolute score before ALiBi, or None for no bound.
        alibi: the ALiBi penalty, or None without ALiBi.
        split: mesh axis over which the query heads are split, or None.
    """

    scale: float
    softcap: float | None = None
    alibi: Alibi | None = None
    split: str | None = None

    def slopes(self) -> Float[Array, " N"] | None:
        """Return the ALiBi slopes of this shard's query heads, or None without ALiBi."""
        if self.alibi is None:
            return None
        slopes = jnp.asarray(self.alibi.slopes, jnp.float32)
        if self.split is None:
            return slopes
        n_heads = len(self.alibi.slopes) // lax.axis_size(self.split)
        return lax.dynamic_slice_in_dim(slopes, lax.axis_index(self.split) * n_heads, n_heads)

    def kernel_bias(
        self, position_T: Int[Array, " T"]
    ) -> tuple[Float[Array, " N"] | None, Float[Array, "N T"] | None] | None:
        """Return the ALiBi terms for a kernel, divided by ln 2, or None without ALiBi.

        Returns:
            (slopes per head, None), or (None, penalties per head and position) if ALiBi is coarse.
        """
        slopes = self.slopes()
        if self.alibi is None or slopes is None:
            return None
        scale = self.alibi.scale / math.log(2)
        if not self.alibi.coarse:
            return scale * slopes, None
        return None, scale * self.coarse_bias(slopes[:, None], position_T[None, :])

    def scores(self, products: Array, slope: Any, position_i: Any, position_j: Any) -> Array:
        """Compute float32 attention scores.

        Args:
            products: dot products q . k; they broadcast with the other arrays.
            slope: slopes of the products' heads, from `slopes`.
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
        """Compute `slope * position` in float32 with factors and product rounded to bfloat16."""

        def round_to_bfloat16(x: Any) -> Array:
            return lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)

        return round_to_bfloat16(round_to_bfloat16(slope) * round_to_bfloat16(position))
