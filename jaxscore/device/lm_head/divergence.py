"""Two models over one vocabulary: the scores of both, and the divergence of their distributions.

The divergence of a column needs the normalisers of both models, which are known after the last
column. So the logits of a block of positions are stored, [positions, V] of each model, and a
second pass adds up the divergences; the products are computed once.

Each divergence is a sum of terms, none of which is negative, so no digits are lost if p and q are
nearly equal. With d = ln q - ln p, the term of a column is

    KL(p || q)      p (e^d - 1 - d)      = p ln(p/q) - p + q, whose - p + q sum to 0
    KL(q || p)      q (e^-d - 1 + d)
    Jensen-Shannon  half of KL(p || m) and half of KL(q || m), m = (p + q) / 2

(a Bregman divergence of the negative entropy: Banerjee et al. 2005, table 1; Lin 1991). With b the
larger one of p and q, s = |d| and e = e^-s the terms are

    KL from the larger one    b (s - 1 + e)
    KL from the smaller one   b (1 - e - s e)
    Jensen-Shannon            b ((1 + e) (ln 2 - ln(1 + e)) - s e) / 2

and their Taylor series in s if s is small, where the differences would lose all digits.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.lm_head import Select, map_position_blocks, score_edges
from jaxscore.device.lm_head.column_blocks import block_columns, block_starts, with_logits
from jaxscore.device.lm_head.sums import LOWEST, Terms, terms
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding

NEAR = 0.25  # |d| below which the series are used; their truncation error is below 1e-8 of them
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
    """Term of each column in each divergence, nats.

    A probability of 0 is a logarithm of minus infinity. If both are 0, the term is 0; if one is 0,
    the KL divergence from the other is infinite.

    Args:
        ln_p, ln_q: log-probabilities.
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
    for coefficient in reversed(coefficients[:-1]):
        out = out * x + coefficient
    return out


MAX_LOGIT_BYTES = 2**28  # of both models, if the smallest block takes no more
MIN_POSITIONS, MAX_POSITIONS = 128, 512  # in a block
MEASURES = (*Divergence._fields, "reference_entropy", "reference_logprob", "same_argmax")


class Pair(NamedTuple):
    """LM heads of two models over one vocabulary, both split over a mesh or neither."""

    p: Unembedding
    q: Unembedding


def score_pair(
    hidden: tuple[Float[Array, "N D"], Float[Array, "N E"]],
    scored: ScoredPositions,
    heads: Pair,
    measures: tuple[str, ...] = MEASURES,
) -> Scores:
    """Scores under p, and measures of both models together.

    With "reference_logprob" arrays of positions have one entry per edge instead, as with "rank".

    Args:
        hidden: hidden states of p and of q for the same tokens.
        scored: positions and edges.
        heads: LM heads of both.
        measures: some of `MEASURES`, in nats.
    """
    hidden_p, hidden_q = hidden

    def run(select: Select) -> tuple[Terms, Terms, Divergence]:
        token = select(scored.token)
        return _block_scores(hidden_p[token], hidden_q[token], heads)

    sizes = _block(heads.p.weight.shape[0]), MIN_POSITIONS
    of_p, of_q, divergence = map_position_blocks(
        scored.token.shape[0], scored.n_positions, sizes, run
    )
    values = {
        **divergence._asdict(),
        "reference_entropy": of_q.entropy,
        "same_argmax": (of_p.greedy_id == of_q.greedy_id).astype(jnp.float32),
    }
    p = score_edges(hidden_p, scored, of_p, heads.p)
    if "reference_logprob" in measures:
        values = {name: value[scored.slot] for name, value in values.items()}
        values["reference_logprob"] = score_edges(hidden_q, scored, of_q, heads.q).logprob
        entropy, certainty, id = (
            x[scored.slot] for x in (p.entropy, p.self_certainty, p.greedy_id)
        )
        p = p._replace(entropy=entropy, self_certainty=certainty, greedy_id=id)
    return p._replace(measures={name: values[name] for name in measures})


def _block(columns: int) -> int:
    """Positions whose logits are in memory at a time: as many as fit in `MAX_LOGIT_BYTES`."""
    fitting = MAX_LOGIT_BYTES // (2 * 4 * columns)
    return max(MIN_POSITIONS, min(MAX_POSITIONS, 1 << max(0, fitting.bit_length() - 1)))


def _block_scores(
    hidden_p: Float[Array, "B D"], hidden_q: Float[Array, "B E"], heads: Pair
) -> tuple[Terms, Terms, Divergence]:
    sums_p, logits_p = with_logits(hidden_p, heads.p)
    sums_q, logits_q = with_logits(hidden_q, heads.q)
    of_p, of_q = terms(sums_p, heads.p), terms(sums_q, heads.q)

    def step(total: Divergence, block: Any) -> tuple[Divergence, None]:
        first, z_p, z_q = block
        _, fresh = block_columns(heads.p, first)
        part = column_terms(_logprobs(z_p, of_p), _logprobs(z_q, of_q))
        added = jax.tree.map(lambda x: jnp.where(fresh, x, 0.0).sum(axis=1), part)
        return jax.tree.map(jnp.add, total, added), None

    zero = jnp.zeros(hidden_p.shape[0], jnp.float32)
    blocks = block_starts(heads.p), logits_p, logits_q
    divergence = lax.scan(step, Divergence(zero, zero, zero), blocks)[0]
    if heads.p.split is not None:
        divergence = jax.tree.map(lambda x: lax.psum(x, heads.p.split), divergence)
    return of_p, of_q, divergence


def _logprobs(z: Float[Array, "B C"], of: Terms) -> Float[Array, "B C"]:
    return (z - of.top[:, None]) - of.log_total[:, None]
