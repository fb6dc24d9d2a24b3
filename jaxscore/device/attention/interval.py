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

from jaxscore.device.attention.blocked import blocked, blocked_cpu
from jaxscore.device.attention.kv_cache import KVCache, attend_cache, merge_parts
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import AttentionName, Backend, lazy


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


ATTENTION: dict[AttentionName, Callable[..., Any]] = {
    "blocked": blocked,
    "blocked_cpu": blocked_cpu,
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "kernel_gpu"),
    "kernel_tpu": lazy("jaxscore.device.attention.kernel_tpu", "kernel_tpu"),
}
