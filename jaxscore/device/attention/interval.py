"""Attention under the interval mask, with an implementation for each platform.

A row holds a trie in depth-first order, and `subtree_end` is the index after each token's subtree:

        j  0 1 2 3 4      The cat sat down ran, subtree_end 5 5 4 4 5
    i 0    x
      1    x x            `ran` (4) attends to 0 and 1, whose subtrees end at 5,
      2    x x x          but not to 2 or 3, whose subtrees end at 4.
      3    x x x x
      4    x x . . x

Tokens can also attend to `KVCache`s: keys and values that were computed before. The row and each
cache have separate softmaxes, which are merged by their log-sum-exp. `backends.BACKENDS` selects
the implementation for each platform; `reference.attention` is the reference implementation.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.attention.kv_cache import MASKED, KVCache, attend_cache, merge_parts
from jaxscore.device.attention.score_rule import (
    ScoreRule,
    block_pairs,
    flatten_ends,
    pad_to_multiple,
    visible,
)
from jaxscore.device.backends import MOSAIC_KERNELS, AttentionName, Backend, lazy
from jaxscore.device.dots import as_integers, from_storage


def attention(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    caches: tuple[KVCache, ...] = (),
    rule: ScoreRule,
    dtype: Any,
    backend: Backend,
    sinks_N: Float[Array, " N"] | None = None,
    chunked: bool = False,
    cache_q: Float[Array, "R L N C"] | None = None,
    from_cache: Callable[[Array], Array] | None = None,
) -> Float[Array, "R L N H"]:
    """Compute softmax attention of every token over the tokens visible to it.

    Args:
        q_RLNH: queries.
        k_RLKH, v_RLKH: keys and values from `isolate_nonfinite`.
        position_RL, subtree_end_RL: see `rows.Rows`.
        window: number of positions along the path that a token attends to, including its own; 0
            for no limit. None if no layer has a window.
        caches: one layer's keys and values of tokens before the rows, visible to all of the rows'
            tokens.
        rule: rule that computes scores from products.
        dtype: dtype of the inputs of the two products; scores, softmax and sums are float32.
        backend: backend that selects the function in `ATTENTION`.
        sinks_N: score of each query head's attention sink, which takes weight but contributes
            nothing to the output (arXiv 2309.17453).
        chunked: if True, attend within chunks of `window` positions, see `DecoderConfig`.
        cache_q: queries for the caches, if the caches have other channels than the rows' keys and
            values.
        from_cache: linear map from the attention output of the caches [R, L, N, C] to the rows'
            channels H.

    Returns:
        float32 attention output [R, L, N, H].

    Raises:
        ValueError: `chunked` with ALiBi, which needs positions that are not divided by the chunk.
    """
    chunk = None
    if chunked and window is not None:
        if rule.alibi is not None:
            raise ValueError("chunked windows with ALiBi are not supported")
        # Two positions are in one chunk if and only if their quotients are equal.
        chunk = jnp.maximum(window, 1)
        position_RL, window = position_RL // chunk, jnp.minimum(window, 1)
    attend_row = _select_implementation(backend, dtype, *q_RLNH.shape[1:])
    row_part = attend_row(
        q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, rule=rule, dtype=dtype
    )
    q = q_RLNH if cache_q is None else cache_q
    attend = functools.partial(attend_cache, rule=rule, backend=backend, chunk=chunk)
    cache_parts = [attend(q, cache, position_RL, window) for cache in caches]
    if cache_parts and from_cache is not None:
        out, lse = merge_parts(cache_parts)
        cache_parts = [(from_cache(out), lse)]
    out, lse = merge_parts([row_part, *cache_parts]) if caches else row_part
    if sinks_N is None:
        return out
    # The tokens' share of the total weight, exp(lse) of exp(lse) + exp(sink)
    return out * jax.nn.sigmoid(lse - sinks_N)[..., None]


MAX_MOSAIC_WIDTH = 256  # maximum head width of the kernels in `MOSAIC_KERNELS`


def _select_implementation(
    backend: Backend, dtype: Any, n_tokens: int, _: int, width: int
) -> Callable[..., Any]:
    """Return the backend's function, or another one for one-token rows and unsupported inputs."""
    if n_tokens == 1:
        return attend_self
    if backend.interpreted and backend.attention.startswith("kernel"):
        return functools.partial(ATTENTION[backend.attention], interpret=True)
    is_mosaic = backend.attention in MOSAIC_KERNELS.values()
    if (is_mosaic or backend.attention == "kernel_gpu") and dtype == jnp.float32:
        # Triton multiplies float32 without tensor cores, in more code than `ptxas` can optimise.
        # Mosaic's instructions round float32 to TF32.
        return blocked
    if is_mosaic and width > MAX_MOSAIC_WIDTH:
        return blocked
    return ATTENTION[backend.attention]


def isolate_nonfinite(
    k_RLKH: Float[Array, "R L K H"], v_RLKH: Float[Array, "R L K H"]
) -> tuple[Float[Array, "R L K H"], Float[Array, "R L K H"]]:
    """Set keys to NaN and values to 0 for tokens whose keys or values are not finite.

    Only tokens that attend to such a token then get a NaN. A NaN among the values would reach every
    token of the row as 0 * NaN. With an infinite key the scores of all visible tokens could be no
    higher than those of masked tokens, which would then get weight.
    """
    finite = [jnp.isfinite(x).all(axis=-1, keepdims=True) for x in (k_RLKH, v_RLKH)]
    nonfinite = ~(finite[0] & finite[1])
    return jnp.where(nonfinite, jnp.nan, k_RLKH), jnp.where(nonfinite, 0.0, v_RLKH)


def attend_self(
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
    """Compute attention in rows of one token, as in a generation step: its weight is 1.

    Args:
        window, rule, dtype: see `attention`.

    Returns:
        Attention output [R, 1, N, H] and log-sum-exp [R, 1, N], float32.
    """
    R, _, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    position = position_RL[:, :, None, None]
    products = jnp.einsum(
        "rlkgh,rlkh->rlkg",
        q_RLNH.reshape(R, 1, K, N // K, H).astype(dtype),
        k_RLKH.astype(dtype),
        precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    slopes = rule.slopes()
    scores = rule.scores(
        products, None if slopes is None else slopes.reshape(K, N // K), position, position
    )
    # A NaN key reaches its token through the score, see `isolate_nonfinite`.
    v = v_RLKH.astype(dtype).astype(jnp.float32)[:, :, :, None]
    out = jnp.where(jnp.isnan(scores)[..., None], jnp.nan, v)
    return out.reshape(R, 1, N, H), scores.reshape(R, 1, N)


BLOCK = 512  # maximum queries, and maximum keys, in a block


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
    """Compute attention within rows, in blocks of queries and keys.

    Args:
        window, rule, dtype: see `attention`.

    Returns:
        Attention output [R, L, N, H] and log-sum-exp of the scores [R, L, N], float32.
    """
    # Over 60 lines: one loop over blocks, whose steps share the block sizes.
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    block = next(n for n in range(min(L, BLOCK), 0, -1) if L % n == 0)
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    q = q_RLNH.reshape(R, L, K, G, H).astype(dtype)
    k, v = k_RLKH.astype(dtype), v_RLKH.astype(dtype)
    slopes = rule.slopes()
    slope_KG11 = None if slopes is None else slopes.reshape(K, G, 1, 1)

    def attend_query_block(q_index: jax.Array) -> tuple[jax.Array, jax.Array]:
        i = q_index * block + jnp.arange(block)

        def take_block(x: jax.Array, index: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(x, index * block, block, axis=1)

        q_block = take_block(q, q_index)
        position_i = take_block(position_RL, q_index)[:, None, None, :, None]

        def add_key_block(
            k_index: jax.Array, carry: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, ...]:
            acc, m_i, l_i = carry
            j = k_index * block + jnp.arange(block)
            position_j = take_block(position_RL, k_index)[:, None, None, None]
            end_j = take_block(subtree_end_RL, k_index)[:, None, None, None]
            scores = jnp.einsum(
                "rqkgh,rskh->rkgqs",
                q_block,
                take_block(k, k_index),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            scores = rule.scores(scores, slope_KG11, position_i, position_j)
            mask = visible(i[:, None], j[None, :], end_j, position_i, position_j, window)
            scores = jnp.where(mask, scores, MASKED)
            m_new = jnp.maximum(m_i, scores.max(axis=-1))
            # Without `where` masked scores would get weight before the first visible key.
            p = jnp.where(mask, jnp.exp(scores - m_new[..., None]), 0.0)
            alpha = jnp.exp(m_i - m_new)
            pv = jnp.einsum(
                "rkgqs,rskh->rkgqh",
                p.astype(dtype),
                take_block(v, k_index),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            acc = acc * alpha[..., None] + pv
            return acc, m_new, l_i * alpha + p.sum(axis=-1)

        shape = R, K, G, block
        start = jnp.zeros((*shape, H)), jnp.full(shape, MASKED), jnp.zeros(shape)
        acc, m_i, l_i = lax.fori_loop(0, q_index + 1, add_key_block, start)
        return acc / l_i[..., None], m_i + jnp.log(l_i)

    out, lse = lax.map(attend_query_block, jnp.arange(L // block))  # [blocks, R, K, G, block, (H)]
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(R, L, N, H)
    return out, lse.transpose(1, 0, 4, 2, 3).reshape(R, L, N)


CPU_BLOCK = 128  # queries in a block; fastest of 64..512 at L = 128..1024
CPU_MAX_BLOCKS = 8  # limits the number of slice widths, each of which is compiled separately
CPU_MAX_BLOCK = 1024  # limits the size of a block's scores, [block, L] float32; takes precedence
CPU_QUERIES = 512  # maximum queries in one product, over heads with the same keys


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
    """`blocked` for the CPU: one block of queries and few heads at a time, to stay in CPU caches.

    The rows are computed as one row of T tokens, see `score_rule`. A block of queries attends to a
    slice of keys, from the first key block visible to it to its own block. The width of a slice is
    rounded up to one of `slice_widths`, since each width is compiled separately.
    """
    # Over 60 lines: one loop over blocks, whose steps share the block sizes.
    R, L, N, H = q_RLNH.shape
    n_blocks = -(-L // max(CPU_BLOCK, min(L // CPU_MAX_BLOCKS, CPU_MAX_BLOCK)))
    block = -(-L // n_blocks)
    G = N // k_RLKH.shape[2]
    heads_per_step = next(
        n for n in range(G, 0, -1) if G % n == 0 and (n == 1 or n * block <= CPU_QUERIES)
    )
    arrays = q_RLNH.astype(dtype), k_RLKH.astype(dtype), v_RLKH.astype(dtype)
    q, k, v, position_RL, end_RL = (
        pad_to_multiple(x, block, 1) for x in (*arrays, position_RL, subtree_end_RL)
    )
    end, position = flatten_ends(end_RL), position_RL.reshape(-1)
    widths = slice_widths(n_blocks)
    width_index = jnp.searchsorted(
        jnp.array(widths),
        _count_visible_blocks(block_pairs(end, position, window, block, block).any_visible),
    )
    # q: [query blocks, steps, heads of a step, block, H]; the heads of a step share a key head
    q = q.reshape(-1, block, N // heads_per_step, heads_per_step, H).transpose(0, 2, 3, 1, 4)
    k, v = (as_integers(x.reshape(-1, *x.shape[2:]).swapaxes(0, 1)) for x in (k, v))  # [K, T, H]
    slopes = rule.slopes()
    slope = None if slopes is None else slopes.reshape(-1, heads_per_step, 1, 1)

    def attend_query_block(index: Array, q_block: Array, width_index: Array) -> tuple[Array, Array]:
        def attend_slice(width: int) -> tuple[Array, Array]:
            first = jnp.maximum((index + 1) * block - width, 0)

            def take_keys(x: Array) -> Array:
                return lax.dynamic_slice_in_dim(x, first, width)

            i, j = index * block + jnp.arange(block)[:, None], first + jnp.arange(width)
            position_i, position_j = position[i], take_keys(position)
            mask = visible(i, j, take_keys(end), position_i, position_j, window)

            def attend_heads(step: Array) -> tuple[Array, Array]:
                kv_head = step // (G // heads_per_step)
                products = jnp.einsum(
                    "gqh,sh->gqs",
                    from_storage(q_block[step]),
                    from_storage(take_keys(k[kv_head])),
                    preferred_element_type=jnp.float32,
                )
                scores = rule.scores(
                    products, None if slope is None else slope[step], position_i, position_j
                )
                scores = jnp.where(mask, scores, MASKED)
                max_score = scores.max(axis=-1, keepdims=True)
                weights = jnp.exp(scores - max_score)
                total = weights.sum(axis=-1, keepdims=True)
                out = jnp.einsum(
                    "gqs,sh->gqh",
                    weights.astype(dtype),
                    from_storage(take_keys(v[kv_head])),
                    preferred_element_type=jnp.float32,
                )
                return out / total, (max_score + jnp.log(total))[..., 0]

            return lax.map(attend_heads, jnp.arange(N // heads_per_step, dtype=jnp.int32))

        branches = [functools.partial(attend_slice, n * block) for n in widths]
        return lax.switch(width_index, branches)

    indices = jnp.arange(q.shape[0], dtype=jnp.int32)
    out, lse = lax.map(lambda x: attend_query_block(*x), (indices, as_integers(q), width_index))
    out = out.reshape(R, n_blocks, N, block, H)
    lse = lse.reshape(R, n_blocks, N, block)
    out = out.transpose(0, 1, 3, 2, 4).reshape(R, -1, N, H)[:, :L]
    return out, lse.transpose(0, 1, 3, 2).reshape(R, -1, N)[:, :L]


def slice_widths(n_blocks: int) -> list[int]:
    """Return the allowed widths of slices, in blocks.

    These are the powers of two and their midpoints below `n_blocks`, and `n_blocks` itself.
    """
    powers = [1 << n for n in range(n_blocks.bit_length())]
    return sorted({n for n in (*powers, *(3 * n for n in powers)) if n < n_blocks} | {n_blocks})


def _count_visible_blocks(any_visible: Bool[Array, "n n"]) -> Int[Array, " n"]:
    """Return the number of key blocks from the first visible one to the query block's own."""
    diagonal = jnp.arange(any_visible.shape[0], dtype=jnp.int32)
    # Padding sees no key block.
    first = jnp.where(any_visible.any(axis=1), jnp.argmax(any_visible, axis=1), diagonal)
    return diagonal - first + 1


ATTENTION: dict[AttentionName, Callable[..., Any]] = {
    "blocked": blocked,
    "blocked_cpu": blocked_cpu,
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "kernel_gpu"),
    "kernel_sm90": lazy("jaxscore.device.attention.kernel_mosaic", "kernel_sm90"),
    "kernel_sm100": lazy("jaxscore.device.attention.kernel_mosaic", "kernel_sm100"),
    "kernel_tpu": lazy("jaxscore.device.attention.kernel_tpu", "kernel_tpu"),
}
