"""How far two distributions p and q over the vocabulary lie apart, column by column.

Each divergence is a sum of terms of which none is negative, so that nothing is lost where p and q
are nearly equal. Of a column, with d = ln q - ln p,

    KL(p || q)      p (e^d - 1 - d)      = p ln(p/q) - p + q, whose - p + q sum to 0
    KL(q || p)      q (e^-d - 1 + d)
    Jensen-Shannon  half of KL(p || m) and half of KL(q || m), m = (p + q) / 2

(a Bregman divergence of the negative entropy: Banerjee et al. 2005, table 1; Lin 1991). With b the
larger one of p and q, s = |d| and e = e^-s the terms are

    KL from the larger one    b (s - 1 + e)
    KL from the smaller one   b (1 - e - s e)
    Jensen-Shannon            b ((1 + e) (ln 2 - ln(1 + e)) - s e) / 2

and their Taylor series in s where s is small, in which the differences would lose all digits.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscore.device.lm_head.sums import LOWEST

NEAR = 0.25  # |d| below which the series are taken; their first term left out is below 1e-8 of them
# Coefficients of s^2, s^3 ...
FROM_LARGER = [(-1) ** k / math.factorial(k) for k in range(2, 9)]
FROM_SMALLER = [(-1) ** k * (k - 1) / math.factorial(k) for k in range(2, 10)]
# Of (s/2)^2, (s/2)^4 ... in t tanh t - ln cosh t, t = s/2, times b (1 + e) / 2
JENSEN_SHANNON = [1 / 2, -1 / 4, 1 / 9, -17 / 360]


class Divergence(NamedTuple):
    """float32 nats: KL(p || q), KL(q || p), and Jensen-Shannon, which is at most ln 2."""

    kl: Float[Array, "*Q"]
    reverse_kl: Float[Array, "*Q"]
    js: Float[Array, "*Q"]


def column_terms(ln_p: Float[Array, "Q C"], ln_q: Float[Array, "Q C"]) -> Divergence:
    """What each column adds to the divergences.

    A probability of 0 is a logarithm of minus infinity: where both are, nothing is added, and
    where one is, infinity is added to the KL divergence from the other.
    """
    larger, smaller = jnp.maximum(ln_p, ln_q), jnp.minimum(ln_p, ln_q)
    b = jnp.exp(larger)
    s = jnp.where(larger > LOWEST, larger - smaller, 0.0)
    e = jnp.exp(-s)
    far = jnp.where(s > -LOWEST, 0.0, s * e)  # 0 where s is infinite
    from_larger = s - 1 + e
    from_smaller = 1 - e - far
    js = 0.5 * ((1 + e) * (math.log(2) - jnp.log(1 + e)) - far)
    near, squared = s < NEAR, jnp.square(s)
    from_larger = jnp.where(near, squared * _series(FROM_LARGER, s), from_larger)
    from_smaller = jnp.where(near, squared * _series(FROM_SMALLER, s), from_smaller)
    t2 = 0.25 * squared
    js = jnp.where(near, 0.5 * (1 + e) * t2 * _series(JENSEN_SHANNON, t2), js)
    # A product with an infinite difference is 0 where the larger probability is.
    from_larger = jnp.where(b == 0, 0.0, b * from_larger)
    from_smaller, js = b * from_smaller, b * js
    p_larger = ln_p >= ln_q
    return Divergence(
        jnp.where(p_larger, from_larger, from_smaller),
        jnp.where(p_larger, from_smaller, from_larger),
        js,
    )


def _series(coefficients: Sequence[float], x: Float[Array, "Q C"]) -> Float[Array, "Q C"]:
    """A polynomial, by Horner's rule."""
    out = jnp.full_like(x, coefficients[-1])
    for one in reversed(coefficients[:-1]):
        out = out * x + one
    return out
