"""From the products of queries and keys to attention scores, before mask and softmax."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


class Alibi(NamedTuple):
    """A penalty that grows with the distance along the path (arXiv 2108.12409).

    Attributes:
        slopes: for each query head, a position's share of score.
        scale: factor on the penalty.
        coarse: slopes, positions and their products were rounded to bfloat16 where the model was
            trained, in whatever type its weights are.
    """

    slopes: tuple[float, ...]
    scale: float = 1.0
    coarse: bool = False


class ScoreRule(NamedTuple):
    """`softcap * tanh(scale * product / softcap) + alibi`; static."""

    scale: float
    softcap: float | None = None
    alibi: Alibi | None = None
    split: str | None = None  # mesh axis over which the query heads are split

    def slopes(self) -> Float[Array, " N"] | None:
        """For each query head that is here; None without ALiBi."""
        if self.alibi is None:
            return None
        slopes = jnp.asarray(self.alibi.slopes, jnp.float32)
        if self.split is None:
            return slopes
        n_here = len(self.alibi.slopes) // lax.axis_size(self.split)
        return lax.dynamic_slice_in_dim(slopes, lax.axis_index(self.split) * n_here, n_here)

    def scores(self, products, slope, position_i, position_j):
        """Attention scores, float32, of products that broadcast with the other arrays.

        Args:
            slope: of the products' heads, from `slopes`.
            position_i, position_j: depths of the tokens that look and that are looked at.
        """
        scores = products * self.scale
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        if self.alibi is None:
            return scores
        if not self.alibi.coarse:
            return scores + self.alibi.scale * slope * (position_j - position_i)

        def rounded(x):
            return lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)

        def bias(position):
            return rounded(rounded(slope) * rounded(position))

        return scores + self.alibi.scale * (bias(position_j) - bias(position_i))
