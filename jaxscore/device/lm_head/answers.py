"""Log-probabilities of named tokens: a row of the unembedding each, beside the pass over all."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.dots import compute_dtype, from_storage
from jaxscore.device.lm_head.sums import Terms, transform
from jaxscore.device.rows import Unembedding


def answers(
    hidden_AD: Float[Array, "A D"],
    token_A: Int[Array, " A"],
    of_query: Terms,
    head: Unembedding,
) -> tuple[Float[Array, " A"], Bool[Array, " A"]]:
    """Log-probability of each token after its query, and whether it is the most probable one.

    Args:
        hidden_AD, of_query: those of each answer's query.
    """
    top, best = of_query.top, of_query.greedy_id
    # The pass over all may sum a product in another order. A token whose own product is that of
    # the most probable one has the largest logit to the last bit, and no token has a larger one.
    z, largest = (_logit(hidden_AD, token, head) for token in (token_A, best))
    z = jnp.where(z == largest, top, jnp.minimum(z, top))
    return (z - top) - of_query.log_total, token_A == best


def _logit(hidden_AD, token_A, head):
    """Logit of each token; the product's inputs are rounded as those of the pass over all."""
    axis, V, row = head.split, head.weight.shape[0], token_A
    if axis is not None:
        row = token_A - lax.axis_index(axis) * V
        here = (row >= 0) & (row < V)
        row = jnp.where(here, row, 0)
    dtype = compute_dtype(head.weight)
    rows = from_storage(head.weight[row]).astype(jnp.float32)
    products = hidden_AD.astype(dtype).astype(jnp.float32) * rows
    bias = None if head.bias is None else head.bias[row]
    z = transform(products.sum(axis=-1), bias, head.scale, head.softcap)
    return z if axis is None else lax.psum(jnp.where(here, z, 0.0), axis)
