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
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import MASKED, KVCache, attend_cache, merge_parts
from jaxscore.device.attention.score_rule import ScoreRule, visible
from jaxscore.device.backends import AttentionName, Backend, lazy
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
    run = ATTENTION[backend.attention]
    if q_RLNH.shape[1] == 1:
        run = attend_self
    elif backend.interpreted and backend.attention.startswith("kernel"):
        run = functools.partial(run, interpret=True)
    elif backend.attention == "kernel_gpu" and dtype == jnp.float32:
        # Triton multiplies float32 without tensor cores, in more code than `ptxas` can optimise.
        run = blocked
    own = run(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, rule=rule, dtype=dtype)
    q = q_RLNH if cache_q is None else cache_q
    parts = [
        attend_cache(q, cache, position_RL, window, rule=rule, backend=backend, chunk=chunk)
        for cache in caches
    ]
    if parts and from_cache is not None:
        out, lse = merge_parts(parts)
        parts = [(from_cache(out), lse)]
    out, lse = merge_parts([own, *parts]) if caches else own
    if sinks_N is None:
        return out
    # exp(lse) of the total exp(lse) + exp(sink)
    return out * jax.nn.sigmoid(lse - sinks_N)[..., None]


def isolate_nonfinite(
    k_RLKH: Float[Array, "R L K H"], v_RLKH: Float[Array, "R L K H"]
) -> tuple[Float[Array, "R L K H"], Float[Array, "R L K H"]]:
    """Moves values that are not finite into their keys.

    A NaN then reaches the tokens that attend to it, and no others; as a value it would reach every
    token of the row as 0 * NaN.
    """
    broken = ~jnp.isfinite(v_RLKH).all(axis=-1, keepdims=True)
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


ATTENTION: dict[AttentionName, Callable[..., Any]] = {
    "blocked": blocked,
    "blocked_cpu": blocked_cpu,
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "kernel_gpu"),
    "kernel_tpu": lazy("jaxscore.device.attention.kernel_tpu", "kernel_tpu"),
}
