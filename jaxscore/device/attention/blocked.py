"""Attention under the interval mask in XLA's operations, for platforms without a kernel.

The online softmax of flash attention (arXiv 2205.14135). `blocked` takes blocks of queries and
keys, all rows and heads in one product; blocks of keys above the diagonal are left out, and only
the scores of one pair of blocks exist at a time. `blocked_cpu` takes one head at a time, whose
scores stay in the processor's cache.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import ScoreRule, visible
from jaxscore.device.dots import as_integers, from_storage

BLOCK = 512  # most queries, and most keys, of a row in one block


def blocked(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    dtype: Any,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Attention of the rows' own tokens, in blocks of queries and keys.

    Args:
        window, rule, dtype: as in `interval.attention`.

    Returns:
        The mixed values [R, L, N, H] and the log-sum-exp of the scores [R, L, N], float32.
    """
    # Over 60 lines: one loop over blocks, whose parts share the block sizes.
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    block = next(n for n in range(min(L, BLOCK), 0, -1) if L % n == 0)
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    q = q_RLNH.reshape(R, L, K, G, H).astype(dtype)
    k, v = k_RLKH.astype(dtype), v_RLKH.astype(dtype)
    slopes = rule.slopes()
    slope_KG11 = None if slopes is None else slopes.reshape(K, G, 1, 1)

    def query_block(nth: jax.Array) -> tuple[jax.Array, jax.Array]:
        i = nth * block + jnp.arange(block)

        def take_block(x: jax.Array, n: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(x, n * block, block, axis=1)

        q_block, at_i = take_block(q, nth), take_block(position_RL, nth)[:, None, None, :, None]

        def step(n: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            mixed, top, total = carry
            j, at_j = n * block + jnp.arange(block), take_block(position_RL, n)[:, None, None, None]
            end_j = take_block(subtree_end_RL, n)[:, None, None, None]
            scores = jnp.einsum(
                "rqkgh,rskh->rkgqs",
                q_block,
                take_block(k, n),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            scores = rule.scores(scores, slope_KG11, at_i, at_j)
            seen = visible(i[:, None], j[None, :], end_j, at_i, at_j, window)
            scores = jnp.where(seen, scores, MASKED)
            higher = jnp.maximum(top, scores.max(axis=-1))
            # Masked scores weigh 0 also before the first visible key.
            weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
            shrink = jnp.exp(top - higher)
            more = jnp.einsum(
                "rkgqs,rskh->rkgqh",
                weights.astype(dtype),
                take_block(v, n),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            mixed = mixed * shrink[..., None] + more
            return mixed, higher, total * shrink + weights.sum(axis=-1)

        shape = R, K, G, block
        start = jnp.zeros((*shape, H)), jnp.full(shape, MASKED), jnp.zeros(shape)
        mixed, top, total = lax.fori_loop(0, nth + 1, step, start)
        return mixed / total[..., None], top + jnp.log(total)

    out, lse = lax.map(query_block, jnp.arange(L // block))  # [blocks, R, K, G, block, (H)]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(R, L, N, H)
    return out, lse.transpose(1, 0, 4, 2, 3).reshape(R, L, N)


CPU_BLOCK = 128  # query rows in each block; measured best of 64..512 at L 128..1024
CPU_MOST_BLOCKS = 8  # blocks are unrolled, so long rows get larger ones ...
CPU_LARGEST_BLOCK = 1024  # ... up to here: a block of scores is [block, L] float32


def blocked_cpu(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    dtype: Any,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """`blocked` for the CPU: one head of one row at a time, so that its scores stay in cache.

    Blocks of queries stop at their diagonal, which halves the work.
    """
    # Over 60 lines: as `blocked`.
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    block = min(L, max(CPU_BLOCK, min(L // CPU_MOST_BLOCKS, CPU_LARGEST_BLOCK)))

    def by_head(x: jax.Array, heads: int) -> jax.Array:
        return as_integers(x.astype(dtype).transpose(0, 2, 1, 3).reshape(R * heads, L, H))

    q, k, v = by_head(q_RLNH, N), by_head(k_RLKH, K), by_head(v_RLKH, K)
    slopes = rule.slopes()

    def one_head(index: jax.Array) -> tuple[jax.Array, jax.Array]:
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
