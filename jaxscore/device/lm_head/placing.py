"""The sums of a pass with the rank of each query's target, equal logits counted exactly.

A rank compares the target's logit with all others, so it needs that logit before the pass, in the
bits that the pass itself computes: two columns with equal weights then have equal logits. The
target's logit is therefore a guess first, from a product of the same form, and the pass returns
what it computes for the target. Where that is another number, the pass is repeated with it.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.lm_head.column_blocks import Target, by_columns, no_sums
from jaxscore.device.lm_head.sums import Sums, transform
from jaxscore.device.rows import Unembedding

# The second pass compares with the logits of the first, which are its own wherever a product gives
# the same bits each time. On the CPU the guess has them, and there is one pass.
PASSES = 4
GUESSED = 512  # queries whose targets' logits are guessed at a time, each by so many products


def placed(
    hidden_QD: Float[Array, "Q D"],
    token_Q: Int[Array, " Q"],
    head: Unembedding,
    top: int,
    measures: tuple[str, ...],
) -> Sums:
    """`by_columns` with the measure "rank".

    Args:
        token_Q: the target of each query, an id of the whole vocabulary.
        top, measures: as of `by_columns`.
    """
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    column = token_Q if head.split is None else token_Q - lax.axis_index(head.split) * V

    def step(state):
        n, _, z, _ = state
        sums = by_columns(hidden_QD, head, top, measures, Target(column, z))
        assert sums.place is not None
        found = sums.place.found if head.split is None else lax.psum(sums.place.found, head.split)
        settled = jnp.all((found == z) | jnp.isnan(found))
        return n + 1, settled, found, sums

    def goes_on(state):
        n, settled, _, _ = state
        return (n < PASSES) & ~settled

    first = _guess(hidden_QD, column, head)
    state = jnp.int32(0), jnp.zeros((), bool), first, no_sums(Q, head, top, measures)
    return lax.while_loop(goes_on, step, state)[3]


def _guess(hidden_QD, column_Q, head):
    """The logit of each query's target, out of the products of some targets with their queries."""
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    here = (column_Q >= 0) & (column_Q < V)
    row_Q = jnp.where(here, column_Q, 0)
    block = next(n for n in range(min(Q, GUESSED), 0, -1) if Q % n == 0)

    def products(some):
        hidden_BD, row_B = some
        return jnp.diagonal(dot_last(hidden_BD, from_storage(head.weight[row_B])))

    blocks = hidden_QD.reshape(-1, block, hidden_QD.shape[1]), row_Q.reshape(-1, block)
    bias = None if head.bias is None else head.bias[row_Q]
    z = transform(lax.map(products, blocks).reshape(-1), bias, head.scale, head.softcap)
    return z if head.split is None else lax.psum(jnp.where(here, z, 0.0), head.split)
