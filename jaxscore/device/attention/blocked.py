"""Attention under the interval mask where no kernel applies: blocks of queries and keys.

The online softmax of flash attention (arXiv 2205.14135) in XLA's operations, all rows and heads
in one product. Blocks of keys above the diagonal are left out, and no more scores exist at a time
than those of one pair of blocks.
"""

import jax.numpy as jnp
from jax import lax

from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.visible import visible

BLOCK = 512  # most queries, and keys, of each row in a block


def blocked(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, *, rule, dtype):
    """What `interval.attention` computes without caches; arguments as there.

    Returns:
        The mixed values [R, L, N, H] and the log-sum-exp of the scores [R, L, N].
    """
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    block = next(n for n in range(min(L, BLOCK), 0, -1) if L % n == 0)
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    q = q_RLNH.reshape(R, L, K, G, H).astype(dtype)
    k, v = k_RLKH.astype(dtype), v_RLKH.astype(dtype)
    slopes = rule.slopes()
    slope_KG11 = None if slopes is None else slopes.reshape(K, G, 1, 1)

    def of_queries(nth):
        i = nth * block + jnp.arange(block)

        def taken(x, n):
            return lax.dynamic_slice_in_dim(x, n * block, block, axis=1)

        q_block, at_i = taken(q, nth), taken(position_RL, nth)[:, None, None, :, None]

        def step(n, carry):
            mixed, top, total = carry
            j, at_j = n * block + jnp.arange(block), taken(position_RL, n)[:, None, None, None]
            end_j = taken(subtree_end_RL, n)[:, None, None, None]
            scores = jnp.einsum(
                "rqkgh,rskh->rkgqs",
                q_block,
                taken(k, n),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            scores = rule.scores(scores, slope_KG11, at_i, at_j)
            seen = visible(i[:, None], j[None, :], end_j, at_i, at_j, window)
            scores = jnp.where(seen, scores, MASKED)
            higher = jnp.maximum(top, scores.max(axis=-1))
            # What is masked weighs 0 also before anything was seen.
            weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
            shrink = jnp.exp(top - higher)
            more = jnp.einsum(
                "rkgqs,rskh->rkgqh",
                weights.astype(dtype),
                taken(v, n),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            mixed = mixed * shrink[..., None] + more
            return mixed, higher, total * shrink + weights.sum(axis=-1)

        shape = R, K, G, block
        start = jnp.zeros((*shape, H)), jnp.full(shape, MASKED), jnp.zeros(shape)
        mixed, top, total = lax.fori_loop(0, nth + 1, step, start)
        return mixed / total[..., None], top + jnp.log(total)

    out, lse = lax.map(of_queries, jnp.arange(L // block))  # [blocks, R, K, G, block, (H)]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(R, L, N, H)
    return out, lse.transpose(1, 0, 4, 2, 3).reshape(R, L, N)
