"""Scores of two models with one vocabulary, and divergences between their distributions.

The divergence of a column needs the normalisers of both models, which are known after the last
column. Therefore the logits of a block of positions are stored, [positions, V] for each model, and
a second pass sums the divergences. The products are computed once.

Each divergence is a sum of non-negative terms, so no digits are lost if p and q are nearly equal.
With d = ln q - ln p, the term of a column is

    KL(p || q)      p (e^d - 1 - d)      = p ln(p/q) - p + q, where -p + q sums to 0
    KL(q || p)      q (e^-d - 1 + d)
    Jensen-Shannon  half of KL(p || m) and half of KL(q || m), m = (p + q) / 2

(the Bregman divergence of the negative entropy: Banerjee et al. 2005, table 1; Lin 1991). With
b = max(p, q), s = |d| and e = e^-s the terms are

    KL from the larger to the smaller     b (s - 1 + e)
    KL from the smaller to the larger     b (1 - e - s e)
    Jensen-Shannon                        b ((1 + e) (ln 2 - ln(1 + e)) - s e) / 2

For small s these differences would lose all digits, so their Taylor series in s are used.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.lm_head import Select, map_position_blocks, score_edges
from jaxscore.device.lm_head.column_blocks import block_columns, block_starts, sums_and_logits
from jaxscore.device.lm_head.sums import LOWEST, Terms, terms
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding

# The series are used where |d| is below NEAR; their relative truncation error is below 1e-8.
NEAR = 0.25
# Coefficients of s^2, s^3, ...
FROM_LARGER = [(-1) ** k / math.factorial(k) for k in range(2, 9)]
FROM_SMALLER = [(-1) ** k * (k - 1) / math.factorial(k) for k in range(2, 10)]
# Coefficients of t^2, t^4, ... in t tanh t - ln cosh t, with t = s/2; times b (1 + e) / 2
JENSEN_SHANNON = [1 / 2, -1 / 4, 1 / 9, -17 / 360]


class Divergence(NamedTuple):
    """KL(p || q), KL(q || p) and Jensen-Shannon divergence (at most ln 2), float32 nats."""

    kl: Float[Array, "*Q"]
    reverse_kl: Float[Array, "*Q"]
    js: Float[Array, "*Q"]


def column_terms(ln_p: Float[Array, "Q C"], ln_q: Float[Array, "Q C"]) -> Divergence:
    """Compute the term of each column in each divergence, in nats.

    If both probabilities are 0, the terms are 0. If one is 0, the KL divergence from the other
    distribution is infinite.

    Args:
        ln_p, ln_q: log-probabilities; minus infinity is a probability of 0.
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
    from_larger = jnp.where(near, squared * _polynomial(FROM_LARGER, s), from_larger)
    from_smaller = jnp.where(near, squared * _polynomial(FROM_SMALLER, s), from_smaller)
    t2 = 0.25 * squared
    js = jnp.where(near, 0.5 * (1 + e) * t2 * _polynomial(JENSEN_SHANNON, t2), js)
    # Where both probabilities are 0, the term is 0 and not 0 * inf.
    from_larger = jnp.where(b == 0, 0.0, b * from_larger)
    from_smaller, js = b * from_smaller, b * js
    p_larger = ln_p >= ln_q
    return Divergence(
        jnp.where(p_larger, from_larger, from_smaller),
        jnp.where(p_larger, from_smaller, from_larger),
        js,
    )


def _polynomial(coefficients: Sequence[float], x: Float[Array, "Q C"]) -> Float[Array, "Q C"]:
    """Evaluate a polynomial in x by Horner's method."""
    out = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        out = out * x + coefficient
    return out


MAX_LOGIT_BYTES = 2**28  # limit for the logits of both models, unless MIN_POSITIONS need more
MIN_POSITIONS, MAX_POSITIONS = 128, 512  # positions in a block
MEASURES = (*Divergence._fields, "reference_entropy", "reference_logprob", "same_argmax")


class Pair(NamedTuple):
    """LM heads of two models with one vocabulary; both or neither are split over a mesh."""

    p: Unembedding
    q: Unembedding


def score_pair(
    hidden: tuple[Float[Array, "N D"], Float[Array, "N E"]],
    scored: ScoredPositions,
    heads: Pair,
    measures: tuple[str, ...] = MEASURES,
) -> Scores:
    """Compute the scores under p, and measures that compare both models.

    With "reference_logprob", arrays of positions have one entry per edge instead, as with "rank".

    Args:
        hidden: hidden states of p and of q for the same tokens.
        scored: scored positions and edges.
        heads: LM heads of both models.
        measures: names in `MEASURES`; all but "same_argmax" are in nats.
    """
    hidden_p, hidden_q = hidden

    def run(select: Select) -> tuple[Terms, Terms, Divergence]:
        token = select(scored.token)
        return _block_scores(hidden_p[token], hidden_q[token], heads)

    sizes = _block_size(heads.p.weight.shape[0]), MIN_POSITIONS
    terms_p, terms_q, divergence = map_position_blocks(
        scored.token.shape[0], scored.n_positions, sizes, run
    )
    values = {
        **divergence._asdict(),
        "reference_entropy": terms_q.entropy,
        "same_argmax": (terms_p.greedy_id == terms_q.greedy_id).astype(jnp.float32),
    }
    scores = score_edges(hidden_p, scored, terms_p, heads.p)
    if "reference_logprob" in measures:
        values = {name: value[scored.slot] for name, value in values.items()}
        values["reference_logprob"] = score_edges(hidden_q, scored, terms_q, heads.q).logprob
        entropy, certainty, id = (
            x[scored.slot] for x in (scores.entropy, scores.self_certainty, scores.greedy_id)
        )
        scores = scores._replace(entropy=entropy, self_certainty=certainty, greedy_id=id)
    return scores._replace(measures={name: values[name] for name in measures})


def _block_size(columns: int) -> int:
    """Return the number of positions per block, such that the logits fit in `MAX_LOGIT_BYTES`."""
    max_positions = MAX_LOGIT_BYTES // (2 * 4 * columns)
    return max(MIN_POSITIONS, min(MAX_POSITIONS, 1 << max(0, max_positions.bit_length() - 1)))


def _block_scores(
    hidden_p: Float[Array, "B D"], hidden_q: Float[Array, "B E"], heads: Pair
) -> tuple[Terms, Terms, Divergence]:
    sums_p, logits_p = sums_and_logits(hidden_p, heads.p)
    sums_q, logits_q = sums_and_logits(hidden_q, heads.q)
    terms_p, terms_q = terms(sums_p, heads.p), terms(sums_q, heads.q)

    def step(total: Divergence, block: Any) -> tuple[Divergence, None]:
        first, z_p, z_q = block
        _, fresh = block_columns(heads.p, first)
        column = column_terms(_logprobs(z_p, terms_p), _logprobs(z_q, terms_q))
        block_sum = jax.tree.map(lambda x: jnp.where(fresh, x, 0.0).sum(axis=1), column)
        return jax.tree.map(jnp.add, total, block_sum), None

    zero = jnp.zeros(hidden_p.shape[0], jnp.float32)
    blocks = block_starts(heads.p), logits_p, logits_q
    divergence = lax.scan(step, Divergence(zero, zero, zero), blocks)[0]
    if heads.p.split is not None:
        divergence = jax.tree.map(lambda x: lax.psum(x, heads.p.split), divergence)
    return terms_p, terms_q, divergence


def _logprobs(z: Float[Array, "B C"], by_position: Terms) -> Float[Array, "B C"]:
    return (z - by_position.top[:, None]) - by_position.log_total[:, None]
