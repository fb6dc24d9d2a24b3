"""Attention under the interval mask: `dense` for accelerators, `blocked_cpu` for the CPU.

Both are the same function; `reference.attention` is the slow twin that says what it is.

        j  0 1 2 3 4      The cat sat down ran, subtree_end 5 5 4 4 5
    i 0    x
      1    x x            `ran` (4) sees 0 and 1, whose subtrees end at 5,
      2    x x x          and neither 2 nor 3, whose subtrees end at 4.
      3    x x x x
      4    x x . . x

A token may also see a `KVCache`: keys and values that were computed before. Each part of what it
sees gives its own softmax and that softmax's log-sum-exp, by which the parts are weighed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import MASKED, KVCache, attend_cache, merge
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.dots import as_integers, from_storage
from jaxscore.device.forms import AttentionForm, Forms

BLOCK = 128  # query rows in each block on the CPU; measured best of 64..512 at L 128..1024
MOST_BLOCKS = 8  # blocks are unrolled, so long rows get larger ones ...
LARGEST_BLOCK = 1024  # ... up to here: a block of scores is [block, L] float32


def visible(i, j, subtree_end_j, position_i, position_j, window):
    """Whether token i sees token j; `window` 0 is no window, else a distance along the path."""
    seen = (j <= i) & (i < subtree_end_j)
    return seen & ((window == 0) | (position_i - position_j < window))


def attention(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""],
    *,
    caches: tuple[KVCache, ...] = (),
    rule: ScoreRule,
    dtype,
    forms: Forms,
) -> Float[Array, "R L N H"]:
    """Softmax attention of every token over the tokens it sees.

    Args:
        k_RLKH, v_RLKH: as `isolated` gives them.
        caches: one layer's keys and values before the rows, seen by all their tokens.
        window: 0, or how far along the path a token sees (its own position counts).
        rule: what the products become before the softmax.
        dtype: of the two products' inputs; scores, softmax and sums are float32.
        forms: which function of `ATTENTION` runs.
    """
    run = ATTENTION[forms.attention]
    own = run(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, rule=rule, dtype=dtype)
    if not caches:
        return own[0]
    parts = [
        attend_cache(q_RLNH, one, position_RL, window, rule=rule, forms=forms) for one in caches
    ]
    return merge([own, *parts])


def isolated(
    k_RLKH: Float[Array, "R L K H"], v_RLKH: Float[Array, "R L K H"]
) -> tuple[Float[Array, "R L K H"], Float[Array, "R L K H"]]:
    """Keys and values of which one that is not finite reaches those who see it, and no others.

    Such a value would reach every token of the row as 0 * NaN; it is moved into the key.
    """
    broken = ~jnp.isfinite(v_RLKH).all(axis=-1, keepdims=True)
    return jnp.where(broken, jnp.nan, k_RLKH), jnp.where(broken, 0.0, v_RLKH)


def dense(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, *, rule, dtype):
    """One product for all rows and heads.

    Returns:
        The mixed values [R, L, N, H] and the log-sum-exp of the scores [R, L, N].
    """
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    i = jnp.arange(L)
    mask_RLL = visible(
        i[None, :, None],
        i[None, None, :],
        subtree_end_RL[:, None, :],
        position_RL[:, :, None],
        position_RL[:, None, :],
        window,
    )
    scores = jnp.einsum(
        "rqkgh,rskh->rkgqs",
        q_RLNH.reshape(R, L, K, N // K, H).astype(dtype),
        k_RLKH.astype(dtype),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    slopes = rule.slopes()
    scores = rule.scores(
        scores,
        None if slopes is None else slopes.reshape(K, N // K, 1, 1),
        position_RL[:, None, None, :, None],
        position_RL[:, None, None, None, :],
    )
    scores = jnp.where(mask_RLL[:, None, None], scores, MASKED)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None]).astype(dtype)
    out = jnp.einsum(
        "rkgqs,rskh->rqkgh",
        weights,
        v_RLKH.astype(dtype),
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return out.reshape(R, L, N, H), lse.transpose(0, 3, 1, 2).reshape(R, L, N)


def blocked_cpu(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, *, rule, dtype):
    """One head of one row at a time, so that its scores stay in cache.

    Queries go in blocks that stop at their diagonal, which halves the work. Returns as `dense`.
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


ATTENTION: dict[AttentionForm, Callable[..., Any]] = {"blocked_cpu": blocked_cpu, "dense": dense}
