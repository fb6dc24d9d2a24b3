"""Two models over one vocabulary: the scores of both, and how far their distributions lie apart.

The divergence of a column needs the normalisers of both models, which are known after the last
column. So the logits of a block of queries are held, [queries, V] of each model, and the columns
go by a second time; the products are computed once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.lm_head.column_blocks import columns_of, firsts, with_logits
from jaxscore.device.lm_head.divergence_terms import Divergence, column_terms
from jaxscore.device.lm_head.query_blocks import Slots, in_blocks
from jaxscore.device.lm_head.scores import with_answers
from jaxscore.device.lm_head.sums import Terms, terms
from jaxscore.device.rows import Asked, Scores, Unembedding

MOST_HELD = 2**28  # bytes of the logits of both models, where the smallest block takes no more
FEWEST, MOST = 128, 512  # queries in a block
MEASURES = (*Divergence._fields, "reference_entropy", "reference_logprob", "same_argmax")


class Pair(NamedTuple):
    """Two models' unembeddings, with as many columns and both split or neither."""

    p: Unembedding
    q: Unembedding


def score_pair(
    hidden: tuple[Float[Array, "N D"], Float[Array, "N E"]],
    asked: Asked,
    heads: Pair,
    measures: tuple[str, ...] = MEASURES,
) -> Scores:
    """Scores under p of the tokens that are asked for, and `measures` of both models together.

    With "reference_logprob" what else is of every query is of every answer, as ranks have it.

    Args:
        hidden: of p and of q, which have read the same tokens.
        measures: some of `MEASURES`.
    """
    hidden_p, hidden_q = hidden

    def run(slots: Slots) -> tuple[Terms, Terms, Divergence]:
        query = slots(asked.query)
        return _of_block(hidden_p[query], hidden_q[query], heads)

    sizes = _block(heads.p.weight.shape[0]), FEWEST
    of_p, of_q, divergence = in_blocks(asked.query.shape[0], asked.n_queries, sizes, run)
    every = {
        **divergence._asdict(),
        "reference_entropy": of_q.entropy,
        "same_argmax": (of_p.greedy_id == of_q.greedy_id).astype(jnp.float32),
    }
    p = with_answers(hidden_p, asked, of_p, heads.p)
    if "reference_logprob" in measures:
        every = {name: value[asked.slot] for name, value in every.items()}
        every["reference_logprob"] = with_answers(hidden_q, asked, of_q, heads.q).logprob
        entropy, certainty, id = (x[asked.slot] for x in (p.entropy, p.self_certainty, p.greedy_id))
        p = p._replace(entropy=entropy, self_certainty=certainty, greedy_id=id)
    return p._replace(measures={name: every[name] for name in measures})


def _block(columns: int) -> int:
    """Queries whose logits are held at a time: as many as `MOST_HELD` takes."""
    held = MOST_HELD // (2 * 4 * columns)
    return max(FEWEST, min(MOST, 1 << max(0, held.bit_length() - 1)))


def _of_block(
    hidden_p: Float[Array, "B D"], hidden_q: Float[Array, "B E"], heads: Pair
) -> tuple[Terms, Terms, Divergence]:
    sums_p, logits_p = with_logits(hidden_p, heads.p)
    sums_q, logits_q = with_logits(hidden_q, heads.q)
    of_p, of_q = terms(sums_p, heads.p), terms(sums_q, heads.q)

    def step(total, block):
        first, z_p, z_q = block
        _, fresh = columns_of(heads.p, first)
        part = column_terms(_logprobs(z_p, of_p), _logprobs(z_q, of_q))
        added = jax.tree.map(lambda x: jnp.where(fresh, x, 0.0).sum(axis=1), part)
        return jax.tree.map(jnp.add, total, added), None

    zero = jnp.zeros(hidden_p.shape[0], jnp.float32)
    blocks = firsts(heads.p), logits_p, logits_q
    divergence = lax.scan(step, Divergence(zero, zero, zero), blocks)[0]
    if heads.p.split is not None:
        divergence = jax.tree.map(lambda x: lax.psum(x, heads.p.split), divergence)
    return of_p, of_q, divergence


def _logprobs(z: Float[Array, "B C"], of: Terms) -> Float[Array, "B C"]:
    return (z - of.top[:, None]) - of.log_total[:, None]
