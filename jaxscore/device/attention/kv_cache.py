"""KV caches: keys and values of a prefix that many rows share, or of what a row has generated.

Softmax attention over several parts is each part's own, weighed by its log-sum-exp (as the
blocks of flash attention are, arXiv 2205.14135):

    out = sum_p e^(lse_p - lse) out_p        lse = ln sum_p e^lse_p
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import Backend
from jaxscore.device.dots import compute_dtype, from_storage

MASKED = -1e30  # finite, so that a masked score minus a maximum is never inf - inf
QUERY_BLOCK = 1024  # most query rows of a product on the CPU; measured best of 64..4096 at S 1536
MOST_SCORES = 2**25  # of a product elsewhere, 128 MB


class KVCache(NamedTuple):
    """Keys and values of tokens that stand on the path before those of the rows.

    P is 1, a prefix that all rows share, or R, one of its own for each row. Slot s holds the
    token at position `first + s`, where `first` is one number or one per row; slots from `length`
    on hold nothing. With all layers together `key` and `value` have a leading layer axis. The slots
    of a head lie side by side: the products with all of them read the cache as it lies.
    """

    key: Num[Array, "*N P K S H"]  # as stored, see `dots.as_integers`
    value: Num[Array, "*N P K S H"]
    first: Int[Array, "*P"]
    length: Int[Array, " P"]


def attend_cache(
    q_RLNH: Float[Array, "R L N H"],
    cache: KVCache,
    position_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    backend: Backend,
    stretch: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Softmax attention of every token over one layer's cache, and its log-sum-exp.

    The products' inputs are of the cache's dtype; scores, softmax and sums are float32. Where a
    cache is empty the log-sum-exp is so low that `merge_parts` gives it no weight.

    Args:
        stretch: positions of the cache count in stretches of so many, as `position_RL` does.
    """
    R, L, N, H = q_RLNH.shape
    P, K, S, _ = cache.key.shape
    G = N // K
    dtype = compute_dtype(cache.key)
    # One product per cache and key head: all its tokens and query heads are rows of it.
    M = (R // P) * L * G
    q = q_RLNH.reshape(P, R // P, L, K, G, H).transpose(0, 3, 1, 2, 4, 5).reshape(P, K, M, H)
    at = jnp.broadcast_to(position_RL[:, :, None], (R, L, G)).reshape(P, 1, M)
    slopes = rule.slopes()  # as the rows of q: the G heads of a key head side by side
    slope = None if slopes is None else jnp.tile(slopes.reshape(1, K, G), (1, 1, M // G))
    most = QUERY_BLOCK if backend.cache_by_head else max(1, MOST_SCORES // (P * K * S))
    block = next(n for n in range(min(M, most), 0, -1) if M % n == 0)
    if backend.cache_by_head:
        out, lse = _each_head(q.astype(dtype), cache, at, slope, window, stretch, rule, block)
    else:
        out, lse = _all_heads(q.astype(dtype), cache, at, slope, window, stretch, rule, block)
    out = out.reshape(P, K, R // P, L, G, H).transpose(0, 2, 3, 1, 4, 5).reshape(R, L, N, H)
    return out, lse.reshape(P, K, R // P, L, G).transpose(0, 2, 3, 1, 4).reshape(R, L, N)


def _mixed(q, key, value, at, slope, first, length, window, stretch, rule):
    """Softmax attention [..., m, H] and log-sum-exp [..., m] over the slots of key and value.

    Args:
        q: [..., m, H].
        key, value: [..., S, H].
        at, slope: [..., m].
        length: [..., 1].
    """
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = jnp.einsum(
        "...mh,...sh->...ms", q, key, precision=precision, preferred_element_type=jnp.float32
    )
    slot = jnp.arange(key.shape[-2])
    at, slope = at[..., None], None if slope is None else slope[..., None]
    at_slot = first + slot if stretch is None else (first + slot) // stretch
    scores = rule.scores(scores, slope, at, at_slot)
    seen = (slot < length)[..., None, :]
    if window is not None:
        seen &= (window == 0) | (at - at_slot < window)
    scores = jnp.where(seen, scores, MASKED)
    top = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = jnp.einsum(
        "...ms,...sh->...mh",
        weights.astype(q.dtype),
        value,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return mixed / total, (top + jnp.log(total))[..., 0]


def _each_head(q_PKMH, cache, at_P1M, slope_1KM, window, stretch, rule, block):
    """One block of queries of one head at a time, so that its scores stay in cache."""
    P, K, M, _ = q_PKMH.shape
    n_blocks = M // block

    def one(index):
        p, k, b = index // (K * n_blocks), index // n_blocks % K, index % n_blocks

        def mine(rows):
            return lax.dynamic_slice_in_dim(rows, b * block, block)

        return _mixed(
            mine(q_PKMH[p, k]),
            from_storage(cache.key[p, k]).astype(q_PKMH.dtype),
            from_storage(cache.value[p, k]).astype(q_PKMH.dtype),
            mine(at_P1M[p, 0]),
            None if slope_1KM is None else mine(slope_1KM[0, k]),
            jnp.broadcast_to(cache.first, (P,))[p],
            cache.length[p, None],
            window,
            stretch,
            rule,
        )

    return lax.map(one, jnp.arange(P * K * n_blocks))


def _all_heads(q_PKMH, cache, at_P1M, slope_1KM, window, stretch, rule, block):
    """A block of queries of all caches and heads at a time, so that each cache is read once."""
    key, value = from_storage((cache.key, cache.value))
    first = jnp.reshape(cache.first, (-1, 1, 1, 1))

    def one(b):
        def mine(rows):
            return lax.dynamic_slice_in_dim(rows, b * block, block, axis=2)

        return _mixed(
            mine(q_PKMH),
            key,
            value,
            mine(at_P1M),
            None if slope_1KM is None else mine(slope_1KM),
            first,
            cache.length[:, None, None],
            window,
            stretch,
            rule,
        )

    n_blocks = q_PKMH.shape[2] // block
    if n_blocks == 1:
        return one(0)
    out, lse = lax.map(one, jnp.arange(n_blocks))  # [blocks, P, K, block, (H)]
    return jnp.moveaxis(out, 0, 2), jnp.moveaxis(lse, 0, 2)


def merge_parts(
    parts: list[tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]],
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """The softmax over all parts together, and its log-sum-exp."""
    top = parts[0][1]
    for _, lse in parts[1:]:
        top = jnp.maximum(top, lse)
    weights = [jnp.exp(lse - top) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    mixed = [out * w[..., None] for (out, _), w in zip(parts, weights, strict=True)]
    return sum(mixed[1:], mixed[0]) / total[..., None], top + jnp.log(total)
