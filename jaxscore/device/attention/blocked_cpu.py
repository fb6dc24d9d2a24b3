"""Attention under the interval mask on the CPU: one head at a time, its scores in cache."""

import jax.numpy as jnp
from jax import lax

from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.visible import visible
from jaxscore.device.dots import as_integers, from_storage

BLOCK = 128  # query rows in each block; measured best of 64..512 at L 128..1024
MOST_BLOCKS = 8  # blocks are unrolled, so long rows get larger ones ...
LARGEST_BLOCK = 1024  # ... up to here: a block of scores is [block, L] float32


def blocked_cpu(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, *, rule, dtype):
    """One head of one row at a time, so that its scores stay in cache.

    Queries go in blocks that stop at their diagonal, which halves the work. Arguments and results
    are those of `blocked.blocked`.
    """
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    block = min(L, max(BLOCK, min(L // MOST_BLOCKS, LARGEST_BLOCK)))

    def by_head(x, heads):
        return as_integers(x.astype(dtype).transpose(0, 2, 1, 3).reshape(R * heads, L, H))

    q, k, v = by_head(q_RLNH, N), by_head(k_RLKH, K), by_head(v_RLKH, K)
    slopes = rule.slopes()

    def one_head(index):
        q_LH = from_storage(q[index])
        k_LH, v_LH = from_storage(k[index // G]), from_storage(v[index // G])
        position, end = position_RL[index // N], subtree_end_RL[index // N]
        slope = None if slopes is None else slopes[index % N]
        out, lse = [], []
        for low in range(0, L, block):
            high = min(low + block, L)
            mask = visible(
                jnp.arange(low, high)[:, None],
                jnp.arange(high)[None, :],
                end[None, :high],
                position[low:high, None],
                position[None, :high],
                window,
            )
            scores = lax.dot_general(
                q_LH[low:high],
                k_LH[:high],
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            scores = rule.scores(scores, slope, position[low:high, None], position[None, :high])
            scores = jnp.where(mask, scores, MASKED)
            top = scores.max(axis=1, keepdims=True)
            weights = jnp.exp(scores - top)
            total = weights.sum(axis=1, keepdims=True)
            mixed = lax.dot_general(
                weights.astype(dtype),
                v_LH[:high],
                (((1,), (0,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            out.append(mixed / total)
            lse.append((top + jnp.log(total))[:, 0])
        return jnp.concatenate(out), jnp.concatenate(lse)

    out, lse = lax.map(one_head, jnp.arange(R * N))
    return out.reshape(R, N, L, H).transpose(0, 2, 1, 3), lse.reshape(R, N, L).transpose(0, 2, 1)
