"""The vocabulary in blocks of columns, in XLA's operations."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.rows import Unembedding
from jaxscore.device.vocabulary.ranked import nothing_ranked, ranked_with
from jaxscore.device.vocabulary.sums import LOWEST, Sums, transform


def by_columns(hidden_QD: Float[Array, "Q D"], head: Unembedding, top: int = 0) -> Sums:
    """Sums of each query over the columns that are here.

    Args:
        top: tokens to rank, see `ranked`; the sums have the first one.
    """
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    block = min(V, head.forms.vocabulary_columns)

    def step(carry, first):
        m, s0, s1, s2, best, ranked = carry
        # The last block is moved back inside the table, and the columns that an earlier block
        # has had are masked: padding the table would copy it.
        start = jnp.minimum(first, V - block)
        columns = start + jnp.arange(block, dtype=jnp.int32)
        fresh = (columns >= first)[None, :]
        z = _logits(hidden_QD, head, start, block)

        if ranked is None:
            block_max = jnp.where(fresh, z, -jnp.inf).max(axis=1)
        else:  # its first one is the maximum, so that both are the same bits
            ranked = ranked_with(ranked, z, start, fresh)
            block_max = ranked.z[:, 0]
        new_m = jnp.maximum(m, block_max)
        below = jnp.where(fresh, z - new_m[:, None], 0.0)
        weights = jnp.where(fresh, jnp.exp(below), 0.0)
        rise, shrink = m - new_m, jnp.exp(m - new_m)
        # A column of probability 0 adds nothing, also where its logit is minus infinity.
        added = jnp.where(weights > 0, weights * below, 0.0)
        s1 = shrink * (s1 + rise * s0) + added.sum(axis=1)
        s0 = shrink * s0 + weights.sum(axis=1)
        s2 = s2 + first.astype(jnp.float32) * rise + below.sum(axis=1)
        if ranked is None:
            # The lowest index that holds the maximum, as torch.argmax. jnp.argmax is a variadic
            # reduction, which costs as much again as all the rest of the elementwise work.
            holds = fresh & (z == block_max[:, None])
            block_best = jnp.where(holds, columns[None, :], V).min(axis=1)
            best = jnp.where(block_max > m, block_best, best)
        else:
            best = ranked.id[:, 0]
        return Sums(new_m, s0, s1, s2, best, ranked), None

    zero = jnp.zeros(Q, jnp.float32)
    none = jnp.full(Q, LOWEST, jnp.float32), zero, zero, zero, jnp.zeros(Q, jnp.int32)
    firsts = jnp.arange(0, V, block, dtype=jnp.int32)
    return lax.scan(step, Sums(*none, nothing_ranked(Q, head, top)), firsts)[0]


def all_logits(hidden_BD: Float[Array, "B D"], head: Unembedding) -> Float[Array, "B V"]:
    """Every logit of a few hidden states."""
    B, V = hidden_BD.shape[0], head.weight.shape[0]
    block = min(V, head.forms.vocabulary_columns)

    def step(out, first):
        start = jnp.minimum(first, V - block)
        z = _logits(hidden_BD, head, start, block)
        return lax.dynamic_update_slice_in_dim(out, z, start, 1), None

    firsts = jnp.arange(0, V, block, dtype=jnp.int32)
    own = lax.scan(step, jnp.zeros((B, V), jnp.float32), firsts)[0]
    return own if head.split is None else lax.all_gather(own, head.split, axis=1, tiled=True)


def _logits(hidden_QD, head, start, block):
    """Of some columns."""
    part = from_storage(lax.dynamic_slice_in_dim(head.weight, start, block))
    bias = None if head.bias is None else lax.dynamic_slice_in_dim(head.bias, start, block)
    return transform(dot_last(hidden_QD, part), bias, head.scale, head.softcap)
