"""From the products of queries and keys to attention scores, before mask and softmax."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


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

    def kernel_bias(
        self, position_T: Int[Array, " T"]
    ) -> tuple[Float[Array, " N"] | None, Float[Array, "N T"] | None] | None:
        """What kernels add for ALiBi, over ln 2: a slope for each head, or, where it is coarse,
        the penalty of each head and position; None without ALiBi."""
        slopes = self.slopes()
        if self.alibi is None or slopes is None:
            return None
        scale = self.alibi.scale / math.log(2)
        if not self.alibi.coarse:
            return scale * slopes, None
        return None, scale * self.coarse_bias(slopes[:, None], position_T[None, :])

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

        penalty = self.coarse_bias(slope, position_j) - self.coarse_bias(slope, position_i)
        return scores + self.alibi.scale * penalty

    @staticmethod
    def coarse_bias(slope, position):
        """The slope times the position, both and their product rounded to bfloat16, as float32."""

        def rounded(x):
            return lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)

        return rounded(rounded(slope) * rounded(position))
