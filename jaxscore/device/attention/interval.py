"""Attention under the interval mask; the platform chooses one of several implementations.

A row holds a trie in depth-first order, and `subtree_end` says where each token's subtree ends:

        j  0 1 2 3 4      The cat sat down ran, subtree_end 5 5 4 4 5
    i 0    x
      1    x x            `ran` (4) attends to 0 and 1, whose subtrees end at 5,
      2    x x x          and not to 2 or 3, whose subtrees end at 4.
      3    x x x x
      4    x x . . x

A token may also attend to `KVCache`s, keys and values that were computed before. Each part has its
own softmax, and the parts are weighed by their log-sum-exp. `backends.BACKENDS` names the
implementation of each platform; `reference.attention` is the reference implementation.
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
    flat_ends,
    padded,
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
    """Softmax attention of every token over the tokens visible to it.

    Args:
        q_RLNH: queries.
        k_RLKH, v_RLKH: keys and values from `isolate_nonfinite`.
        position_RL, subtree_end_RL: see `rows.Rows`.
        window: number of positions along the path that a token attends to, its own included; 0 is
            unlimited. None if no layer has a window.
        caches: one layer's keys and values before the rows, visible to all their tokens.
        rule: scores from products.
        dtype: of the inputs of the two products; scores, softmax and sums are float32.
        backend: names the function in `ATTENTION`.
        sinks_N: for each query head the score of a sink, which has no value (arXiv 2309.17453).
        chunked: attend within chunks of `window` positions, see `DecoderConfig`.
        cache_q: queries for the caches, whose keys and values have other channels than the rows'.
        from_cache: maps values mixed from the caches [R, L, N, C] to the rows' channels H; linear.

    Returns:
        float32 mixed values [R, L, N, H].

    Raises:
        ValueError: `chunked` with ALiBi, which needs the positions themselves.
    """
    chunk = None
    if chunked and window is not None:
        if rule.alibi is not None:
            raise ValueError("chunked windows and ALiBi: not handled together")
        # Two positions are in one chunk if and only if their quotients are equal.
        chunk = jnp.maximum(window, 1)
        position_RL, window = position_RL // chunk, jnp.minimum(window, 1)
    run = _implementation(backend, dtype, *q_RLNH.shape[1:])
    own = run(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, rule=rule, dtype=dtype)
    q = q_RLNH if cache_q is None else cache_q
    attend = functools.partial(attend_cache, rule=rule, backend=backend, chunk=chunk)
    parts = [attend(q, cache, position_RL, window) for cache in caches]
    if parts and from_cache is not None:
        out, lse = merge_parts(parts)
        parts = [(from_cache(out), lse)]
    out, lse = merge_parts([own, *parts]) if caches else own
    if sinks_N is None:
        return out
    # exp(lse) of the total exp(lse) + exp(sink)
    return out * jax.nn.sigmoid(lse - sinks_N)[..., None]


WIDEST_MOSAIC = 256  # heads of the kernels of `MOSAIC_KERNELS`


def _implementation(
    backend: Backend, dtype: Any, n_tokens: int, _: int, width: int
) -> Callable[..., Any]:
    """The backend's function in `ATTENTION`, or the one that suits a type or rows of one token."""
    if n_tokens == 1:
        return attend_self
    if backend.interpreted and backend.attention.startswith("kernel"):
        return functools.partial(ATTENTION[backend.attention], interpret=True)
    mosaic = backend.attention in MOSAIC_KERNELS.values()
    if (mosaic or backend.attention == "kernel_gpu") and dtype == jnp.float32:
        # Triton multiplies float32 without tensor cores, in more code than `ptxas` can optimise;
        # Mosaic's instructions round it to TF32.
        return blocked
    if mosaic and width > WIDEST_MOSAIC:
        return blocked
    return ATTENTION[backend.attention]


def isolate_nonfinite(
    k_RLKH: Float[Array, "R L K H"], v_RLKH: Float[Array, "R L K H"]
) -> tuple[Float[Array, "R L K H"], Float[Array, "R L K H"]]:
    """Makes the keys NaN of tokens whose keys or values are not finite, and their values 0.

    A NaN then reaches the tokens that attend to it, and no others; as a value it would reach every
    token of the row as 0 * NaN. An infinite key could give every visible token the score of masked
    ones, which would then have weights.
    """
    finite = [jnp.isfinite(x).all(axis=-1, keepdims=True) for x in (k_RLKH, v_RLKH)]
    broken = ~(finite[0] & finite[1])
    return jnp.where(broken, jnp.nan, k_RLKH), jnp.where(broken, 0.0, v_RLKH)


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
    """Attention in rows of one token, as in a generation step: the weight of itself is 1."""
    R, _, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    at = position_RL[:, :, None, None]
    products = jnp.einsum(
        "rlkgh,rlkh->rlkg",
        q_RLNH.reshape(R, 1, K, N // K, H).astype(dtype),
        k_RLKH.astype(dtype),
        precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    slopes = rule.slopes()
    scores = rule.scores(products, None if slopes is None else slopes.reshape(K, N // K), at, at)
    # A NaN key reaches its token through the score, see `isolate_nonfinite`.
    v = v_RLKH.astype(dtype).astype(jnp.float32)[:, :, :, None]
    out = jnp.where(jnp.isnan(scores)[..., None], jnp.nan, v)
    return out.reshape(R, 1, N, H), scores.reshape(R, 1, N)


BLOCK = 512  # most queries, and most keys, in one block


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


CPU_BLOCK = 128  # queries in a block; measured best of 64..512 at L 128..1024
CPU_MOST_BLOCKS = 8  # which limits the widths of slices, each compiled by itself ...
CPU_LARGEST_BLOCK = 1024  # ... and this the scores of a block, [block, L] float32
CPU_QUERIES = 512  # most queries of heads with the same keys in one product


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
    """`blocked` for the CPU: one block of queries and few heads at a time, which stay in cache.

    The rows are computed as one row of T tokens, see `score_rule`. A block of queries takes the
    slice of keys that begins with the first block visible to it and ends with its own. Slices have
    the widths of `slice_widths`, so that the program has few of them.
    """
    # Over 60 lines: as `blocked`.
    R, L, N, H = q_RLNH.shape
    n_blocks = -(-L // max(CPU_BLOCK, min(L // CPU_MOST_BLOCKS, CPU_LARGEST_BLOCK)))
    block = -(-L // n_blocks)
    G = N // k_RLKH.shape[2]
    together = next(
        n for n in range(G, 0, -1) if G % n == 0 and (n == 1 or n * block <= CPU_QUERIES)
    )
    arrays = q_RLNH.astype(dtype), k_RLKH.astype(dtype), v_RLKH.astype(dtype)
    q, k, v, position_RL, end_RL = (
        padded(x, block, 1) for x in (*arrays, position_RL, subtree_end_RL)
    )
    end, position = flat_ends(end_RL), position_RL.reshape(-1)
    widths = slice_widths(n_blocks)
    width_of_block = jnp.searchsorted(
        jnp.array(widths), _blocks_visible(block_pairs(end, position, window, block, block).some)
    )
    # [block of queries, heads of one step, ...]; a step's heads have the same keys
    q = q.reshape(-1, block, N // together, together, H).transpose(0, 2, 3, 1, 4)
    k, v = (as_integers(x.reshape(-1, *x.shape[2:]).swapaxes(0, 1)) for x in (k, v))  # [K, T, H]
    slopes = rule.slopes()
    slope = None if slopes is None else slopes.reshape(-1, together, 1, 1)

    def query_block(nth: Array, q_block: Array, nth_width: Array) -> tuple[Array, Array]:
        def of_width(width: int) -> tuple[Array, Array]:
            first = jnp.maximum((nth + 1) * block - width, 0)

            def keys(x: Array) -> Array:
                return lax.dynamic_slice_in_dim(x, first, width)

            i, j = nth * block + jnp.arange(block)[:, None], first + jnp.arange(width)
            at_i, at_j = position[i], keys(position)
            seen = visible(i, j, keys(end), at_i, at_j, window)

            def heads(step: Array) -> tuple[Array, Array]:
                of_k = step // (G // together)
                products = jnp.einsum(
                    "gqh,sh->gqs",
                    from_storage(q_block[step]),
                    from_storage(keys(k[of_k])),
                    preferred_element_type=jnp.float32,
                )
                scores = rule.scores(products, None if slope is None else slope[step], at_i, at_j)
                scores = jnp.where(seen, scores, MASKED)
                top = scores.max(axis=-1, keepdims=True)
                weights = jnp.exp(scores - top)
                total = weights.sum(axis=-1, keepdims=True)
                mixed = jnp.einsum(
                    "gqs,sh->gqh",
                    weights.astype(dtype),
                    from_storage(keys(v[of_k])),
                    preferred_element_type=jnp.float32,
                )
                return mixed / total, (top + jnp.log(total))[..., 0]

            return lax.map(heads, jnp.arange(N // together, dtype=jnp.int32))

        branches = [functools.partial(of_width, n * block) for n in widths]
        return lax.switch(nth_width, branches)

    every = jnp.arange(q.shape[0], dtype=jnp.int32)
    out, lse = lax.map(lambda x: query_block(*x), (every, as_integers(q), width_of_block))
    out = out.reshape(R, n_blocks, N, block, H)
    lse = lse.reshape(R, n_blocks, N, block)
    out = out.transpose(0, 1, 3, 2, 4).reshape(R, -1, N, H)[:, :L]
    return out, lse.transpose(0, 1, 3, 2).reshape(R, -1, N)[:, :L]


def slice_widths(n_blocks: int) -> list[int]:
    """Powers of two and the numbers half-way between, below n_blocks, and n_blocks: in blocks."""
    powers = [1 << n for n in range(n_blocks.bit_length())]
    return sorted({n for n in (*powers, *(3 * n for n in powers)) if n < n_blocks} | {n_blocks})


def _blocks_visible(some: Bool[Array, "n n"]) -> Int[Array, " n"]:
    """For each block of queries the number of key blocks from the first visible one to its own."""
    own = jnp.arange(some.shape[0], dtype=jnp.int32)
    first = jnp.where(some.any(axis=1), jnp.argmax(some, axis=1), own)  # padding sees none
    return own - first + 1


ATTENTION: dict[AttentionName, Callable[..., Any]] = {
    "blocked": blocked,
    "blocked_cpu": blocked_cpu,
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "kernel_gpu"),
    "kernel_sm90": lazy("jaxscore.device.attention.kernel_mosaic", "kernel_sm90"),
    "kernel_sm100": lazy("jaxscore.device.attention.kernel_mosaic", "kernel_sm100"),
    "kernel_tpu": lazy("jaxscore.device.attention.kernel_tpu", "kernel_tpu"),
}
