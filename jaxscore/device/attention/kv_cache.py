"""KV caches: keys and values of a prefix that many rows share, or of what a row has generated.

Softmax attention over several parts is each part's own, weighed by its log-sum-exp (as the
blocks of flash attention are, arXiv 2205.14135):

    out = sum_p e^(lse_p - lse) out_p        lse = ln sum_p e^lse_p
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.dots import compute_dtype, from_storage
from jaxscore.device.forms import Forms

MASKED = -1e30  # finite, so that a masked score minus a maximum is never inf - inf
QUERY_BLOCK = 1024  # most query rows of a product on the CPU; measured best of 64..4096 at S 1536
MOST_SCORES = 2**27  # of a product elsewhere, 512 MB


class KVCache(NamedTuple):
    """Keys and values of tokens that stand on the path before those of the rows.

    P is 1, a prefix that all rows share, or R, one of its own for each row. Slot s holds the
    token at position `first + s`; slots from `length` on hold nothing. With all layers together
    `key` and `value` have a leading layer axis.
    """

    key: Num[Array, "*N P S K H"]  # as stored, see `dots.as_integers`
    value: Num[Array, "*N P S K H"]
    first: Int[Array, ""]
    length: Int[Array, " P"]


def attend_cache(
    q_RLNH: Float[Array, "R L N H"],
    cache: KVCache,
    position_RL: Int[Array, "R L"],
    window: Int[Array, ""],
    *,
    rule: ScoreRule,
    forms: Forms,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Softmax attention of every token over one layer's cache, and its log-sum-exp.

    The products' inputs are of the cache's dtype; scores, softmax and sums are float32. Where a
    cache is empty the log-sum-exp is so low that `merge` gives it no weight.
    """
    R, L, N, H = q_RLNH.shape
    P, S, K, _ = cache.key.shape
    G = N // K
    dtype = compute_dtype(cache.key)
    # One product a cache and key head: all its tokens and query heads are rows of it.
    M = (R // P) * L * G
    q = q_RLNH.reshape(P, R // P, L, K, G, H).transpose(0, 3, 1, 2, 4, 5).reshape(P, K, M, H)
    at = jnp.broadcast_to(position_RL[:, :, None], (R, L, G)).reshape(P, M)
    slot = jnp.arange(S)
    slopes = rule.slopes()  # as the rows of q: the G heads of a key head side by side
    slopes_KM = None if slopes is None else jnp.tile(slopes.reshape(K, G), (1, M // G))

    def product(q_MH, at_M, slope_M, p, k):
        key_SH = from_storage(cache.key[p, :, k]).astype(dtype)
        value_SH = from_storage(cache.value[p, :, k]).astype(dtype)
        precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
        scores = lax.dot_general(
            q_MH.astype(dtype),
            key_SH,
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        key_at = cache.first + slot
        near = (window == 0) | (at_M[:, None] - key_at[None, :] < window)
        seen = near & (slot < cache.length[p])[None, :]
        slope_M1 = None if slope_M is None else slope_M[:, None]
        scores = rule.scores(scores, slope_M1, at_M[:, None], key_at[None, :])
        scores = jnp.where(seen, scores, MASKED)
        top = scores.max(axis=1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        mixed = lax.dot_general(
            weights.astype(dtype),
            value_SH,
            (((1,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        return mixed / total, (top + jnp.log(total))[:, 0]

    most = QUERY_BLOCK if forms.cache_by_head else max(1, MOST_SCORES // S)
    block = next(n for n in range(min(M, most), 0, -1) if M % n == 0)
    n_blocks = M // block

    def one(index):
        p, k, b = index // (K * n_blocks), index // n_blocks % K, index % n_blocks

        def mine(rows):
            return lax.dynamic_slice_in_dim(rows, b * block, block)

        slope = None if slopes_KM is None else mine(slopes_KM[k])
        return product(mine(q[p, k]), mine(at[p]), slope, p, k)

    # Many small products, one for the cache of each row, run side by side on an accelerator; the
    # large ones of a shared prefix would fill its memory so.
    side_by_side = not forms.cache_by_head and P > 1
    run = jax.vmap(one) if side_by_side else functools.partial(lax.map, one)
    out, lse = run(jnp.arange(P * K * n_blocks))
    out = out.reshape(P, K, R // P, L, G, H).transpose(0, 2, 3, 1, 4, 5).reshape(R, L, N, H)
    return out, lse.reshape(P, K, R // P, L, G).transpose(0, 2, 3, 1, 4).reshape(R, L, N)


def merge(
    parts: list[tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]],
) -> Float[Array, "R L N H"]:
    """The softmax over all parts together."""
    top = parts[0][1]
    for _, lse in parts[1:]:
        top = jnp.maximum(top, lse)
    weights = [jnp.exp(lse - top) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    mixed = [out * w[..., None] for (out, _), w in zip(parts, weights, strict=True)]
    return sum(mixed[1:], mixed[0]) / total[..., None]
