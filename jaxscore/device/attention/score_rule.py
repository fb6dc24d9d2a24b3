"""Attention scores from the products of queries and keys, before mask and softmax."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


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
