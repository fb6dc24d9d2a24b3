"""KV caches of a prefix that all rows share (prefix cache) or of each slot's generated text.

Attention over several parts, such as the caches and the row itself, is the mean of the attention
outputs of the parts, weighted by their log-sum-exp as in flash attention (arXiv 2205.14135):

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
QUERY_BLOCK = 1024  # maximum query rows of a product on the CPU; fastest of 64..4096 at S = 1536
MAX_SCORES = 2**25  # maximum scores of a product on other platforms, 128 MB


class KVCache(NamedTuple):
    """Keys and values of tokens that precede the rows' tokens on their paths.

    P is 1 if all rows share the cache, or R if each row has its own. Entry s holds the token at
    position `first + s`. The entries of a head are contiguous, so products read the cache in order.

    Attributes:
        key, value: stored keys and values, see `dots.as_integers`; with a leading layer axis they
            hold all attention layers.
        first: position of entry 0, one for all caches or one per cache.
        length: number of entries in use, per cache.
        states: states of recurrent layers after the last token, see `recurrence.mixers`: a tree of
            float32 arrays [layers, P, ...]. Only the last of several caches holds them.
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
    """Compute softmax attention of every token over one layer's cache.

    The products' inputs have the cache's dtype; scores, softmax and sums are float32.

    Args:
        q_RLNH: queries.
        cache: keys and values of one layer.
        position_RL: depths in the trie, counting the cache's tokens; already divided by `chunk` if
            it is given.
        window, rule, backend: see `interval.attention`.
        chunk: positions per chunk, by which the cache's positions are divided; None means 1.

    Returns:
        Attention output and log-sum-exp. The log-sum-exp over an empty cache is so low that
        `merge_parts` gives it no weight.
    """
    R, L, N, H = q_RLNH.shape
    P, K, S, _ = cache.key.shape
    G = N // K
    dtype = compute_dtype(cache.key)
    # One product per cache and key head. Its rows are all tokens and query heads.
    M = (R // P) * L * G
    q = q_RLNH.reshape(P, R // P, L, K, G, H).transpose(0, 3, 1, 2, 4, 5).reshape(P, K, M, H)
    position = jnp.broadcast_to(position_RL[:, :, None], (R, L, G)).reshape(P, 1, M)
    slopes = rule.slopes()  # in the order of the rows of q: the G heads of a key head are adjacent
    slope = None if slopes is None else jnp.tile(slopes.reshape(1, K, G), (1, 1, M // G))
    max_block = QUERY_BLOCK if backend.cache_by_head else max(1, MAX_SCORES // (P * K * S))
    block = next(n for n in range(min(M, max_block), 0, -1) if M % n == 0)
    if backend.cache_by_head:
        out, lse = _attend_by_head(
            q.astype(dtype), cache, position, slope, window, chunk, rule, block
        )
    else:
        out, lse = _attend_all_heads(
            q.astype(dtype), cache, position, slope, window, chunk, rule, block
        )
    out = out.reshape(P, K, R // P, L, G, H).transpose(0, 2, 3, 1, 4, 5).reshape(R, L, N, H)
    return out, lse.reshape(P, K, R // P, L, G).transpose(0, 2, 3, 1, 4).reshape(R, L, N)


def _attend(
    q: Array,
    key: Array,
    value: Array,
    position: Array,
    slope: Array | None,
    first: Array,
    length: Array,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
) -> tuple[Array, Array]:
    """Compute softmax attention over the entries of `key` and `value`.

    Args:
        q: queries [..., m, H].
        key, value: keys and values [..., S, H].
        position, slope: position and ALiBi slope of each query [..., m].
        first: position of entry 0.
        length: number of entries in use [..., 1].
        window, chunk, rule: see `attend_cache`.

    Returns:
        Attention output [..., m, H] and log-sum-exp [..., m].
    """
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = jnp.einsum(
        "...mh,...sh->...ms", q, key, precision=precision, preferred_element_type=jnp.float32
    )
    slot = jnp.arange(key.shape[-2])
    position, slope = position[..., None], None if slope is None else slope[..., None]
    slot_position = first + slot if chunk is None else (first + slot) // chunk
    scores = rule.scores(scores, slope, position, slot_position)
    mask = (slot < length)[..., None, :]
    if window is not None:
        mask &= (window == 0) | (position - slot_position < window)
    scores = jnp.where(mask, scores, MASKED)
    max_score = scores.max(axis=-1, keepdims=True)
    weights = jnp.exp(scores - max_score)
    total = weights.sum(axis=-1, keepdims=True)
    out = jnp.einsum(
        "...ms,...sh->...mh",
        weights.astype(q.dtype),
        value,
        precision=precision,
        preferred_element_type=jnp.float32,
    )
    return out / total, (max_score + jnp.log(total))[..., 0]


def _attend_by_head(
    q_PKMH: Array,
    cache: KVCache,
    position_P1M: Array,
    slope_1KM: Array | None,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
    block: int,
) -> tuple[Array, Array]:
    """Attend with one block of queries of one head at a time, so that scores stay in CPU caches."""
    P, K, M, _ = q_PKMH.shape
    n_blocks = M // block

    def attend_block(index: Array) -> tuple[Array, Array]:
        p, k, b = index // (K * n_blocks), index // n_blocks % K, index % n_blocks

        def take_block(rows: Array) -> Array:
            return lax.dynamic_slice_in_dim(rows, b * block, block)

        return _attend(
            take_block(q_PKMH[p, k]),
            from_storage(cache.key[p, k]).astype(q_PKMH.dtype),
            from_storage(cache.value[p, k]).astype(q_PKMH.dtype),
            take_block(position_P1M[p, 0]),
            None if slope_1KM is None else take_block(slope_1KM[0, k]),
            jnp.broadcast_to(cache.first, (P,))[p],
            cache.length[p, None],
            window,
            chunk,
            rule,
        )

    return lax.map(attend_block, jnp.arange(P * K * n_blocks))


def _attend_all_heads(
    q_PKMH: Array,
    cache: KVCache,
    position_P1M: Array,
    slope_1KM: Array | None,
    window: Array | None,
    chunk: Array | None,
    rule: ScoreRule,
    block: int,
) -> tuple[Array, Array]:
    """Attend with one block of queries of all caches and heads at a time."""
    # A block reads each cache once.
    key, value = from_storage((cache.key, cache.value))
    first = jnp.reshape(cache.first, (-1, 1, 1, 1))

    def attend_block(b: Array) -> tuple[Array, Array]:
        def take_block(rows: Array) -> Array:
            return lax.dynamic_slice_in_dim(rows, b * block, block, axis=2)

        return _attend(
            take_block(q_PKMH),
            key,
            value,
            take_block(position_P1M),
            None if slope_1KM is None else take_block(slope_1KM),
            first,
            cache.length[:, None, None],
            window,
            chunk,
            rule,
        )

    n_blocks = q_PKMH.shape[2] // block
    if n_blocks == 1:
        return attend_block(jnp.int32(0))
    out, lse = lax.map(attend_block, jnp.arange(n_blocks))  # [blocks, P, K, block, (H)]
    return jnp.moveaxis(out, 0, 2), jnp.moveaxis(lse, 0, 2)


def merge_parts(
    parts: list[tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]],
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Merge softmax attention over several parts into attention over all of them.

    Args:
        parts: attention output and log-sum-exp of each part.

    Returns:
        Attention output and log-sum-exp.
    """
    max_lse = parts[0][1]
    for _, lse in parts[1:]:
        max_lse = jnp.maximum(max_lse, lse)
    weights = [jnp.exp(lse - max_lse) for _, lse in parts]
    total = sum(weights[1:], weights[0])
    weighted = [out * w[..., None] for (out, _), w in zip(parts, weights, strict=True)]
    return sum(weighted[1:], weighted[0]) / total[..., None], max_lse + jnp.log(total)
