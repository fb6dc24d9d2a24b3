"""KV caches: of a prefix that all rows share (prefix cache), or of each slot's generated text.

Softmax attention over several parts is a mean of the parts, weighed by their log-sum-exp, like the
blocks of flash attention (arXiv 2205.14135):

    out = sum_p e^(lse_p - lse) out_p        lse = ln sum_p e^lse_p
"""

from typing import Any, NamedTuple

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
    """Keys and values of tokens that precede the rows' tokens on their paths.

    P is 1 if all rows share the cache, or R if each row has its own. Entry s holds the token at
    position `first + s`. The entries of a head are contiguous, so products read the cache in order.

    Attributes:
        key, value: as stored, see `dots.as_integers`; of all layers with attention with a leading
            layer axis.
        first: position of entry 0, one for all or one per cache.
        length: entries in use, per cache.
        states: of recurrent layers after the last token, see `recurrence.mixers`: a tree of
            [layers, P, ...], float32. The last one of several caches has them.
    """

    key: Num[Array, "*N P K S H"]
    value: Num[Array, "*N P K S H"]
    first: Int[Array, "*P"]
    length: Int[Array, " P"]
    states: Any = ()


def attend_cache(
    q_RLNH: Float[Array, "R L N H"],
    cache: KVCache,
    position_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    backend: Backend,
    chunk: Int[Array, ""] | None = None,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Softmax attention of every token over one layer's cache.

    The products' inputs have the cache's dtype; scores, softmax and sums are float32.

    Args:
        q_RLNH: queries.
        position_RL: depths in the trie, the cache's tokens counted; in chunks if `chunk` is given.
        window, rule, backend: see `interval.attention`.
        chunk: positions per chunk, by which the cache's positions are divided; None is 1.

    Returns:
        Mixed values and log-sum-exp. The log-sum-exp over an empty cache is so low that
        `merge_parts` gives it no weight.
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
        out, lse = _each_head(q.astype(dtype), cache, at, slope, window, chunk, rule, block)
    else:
        out, lse = _all_heads(q.astype(dtype), cache, at, slope, window, chunk, rule, block)
    out = out.reshape(P, K, R // P, L, G, H).transpose(0, 2, 3, 1, 4, 5).reshape(R, L, N, H)
    return out, lse.reshape(P, K, R // P, L, G).transpose(0, 2, 3, 1, 4).reshape(R, L, N)


def _mixed(
    q: Array,
    key: Array,
    value: Array,
    at: Array,
    slope: Array | None,
    first: Array,
    length: Array,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
) -> tuple[Array, Array]:
    """Softmax attention [..., m, H] and log-sum-exp [..., m] over the entries of key and value.

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
    at_slot = first + slot if chunk is None else (first + slot) // chunk
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


def _each_head(
    q_PKMH: Array,
    cache: KVCache,
    at_P1M: Array,
    slope_1KM: Array | None,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
    block: int,
) -> tuple[Array, Array]:
    """One block of queries of one head at a time, so that its scores stay in cache."""
    P, K, M, _ = q_PKMH.shape
    n_blocks = M // block

    def one_block(index: Array) -> tuple[Array, Array]:
        p, k, b = index // (K * n_blocks), index // n_blocks % K, index % n_blocks

        def of_block(rows: Array) -> Array:
            return lax.dynamic_slice_in_dim(rows, b * block, block)

        return _mixed(
            of_block(q_PKMH[p, k]),
            from_storage(cache.key[p, k]).astype(q_PKMH.dtype),
            from_storage(cache.value[p, k]).astype(q_PKMH.dtype),
            of_block(at_P1M[p, 0]),
            None if slope_1KM is None else of_block(slope_1KM[0, k]),
            jnp.broadcast_to(cache.first, (P,))[p],
            cache.length[p, None],
            window,
            chunk,
            rule,
        )

    return lax.map(one_block, jnp.arange(P * K * n_blocks))


def _all_heads(
    q_PKMH: Array,
    cache: KVCache,
    at_P1M: Array,
    slope_1KM: Array | None,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
    block: int,
) -> tuple[Array, Array]:
    """A block of queries of all caches and heads at a time, so that each cache is read once."""
    key, value = from_storage((cache.key, cache.value))
    first = jnp.reshape(cache.first, (-1, 1, 1, 1))

    def one_block(b: Array) -> tuple[Array, Array]:
        def of_block(rows: Array) -> Array:
            return lax.dynamic_slice_in_dim(rows, b * block, block, axis=2)

        return _mixed(
            of_block(q_PKMH),
            key,
            value,
            of_block(at_P1M),
            None if slope_1KM is None else of_block(slope_1KM),
            first,
            cache.length[:, None, None],
            window,
            chunk,
            rule,
        )

    n_blocks = q_PKMH.shape[2] // block
    if n_blocks == 1:
        return one_block(jnp.int32(0))
    out, lse = lax.map(one_block, jnp.arange(n_blocks))  # [blocks, P, K, block, (H)]
    return jnp.moveaxis(out, 0, 2), jnp.moveaxis(lse, 0, 2)


def merge_parts(
    parts: list[tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]],
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Merges softmax attention over several parts into that over all, with its log-sum-exp."""
    top = parts[0][1]
    for _, lse in parts[1:]:
        top = jnp.maximum(top, lse)
    weights = [jnp.exp(lse - top) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    mixed = [out * w[..., None] for (out, _), w in zip(parts, weights, strict=True)]
    return sum(mixed[1:], mixed[0]) / total[..., None], top + jnp.log(total)
