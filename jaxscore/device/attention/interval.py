"""Attention under the interval mask, in several forms that are the same function.

`backend.FORMS` names the form of each platform; `reference.attention` is the slow twin that says
what it computes.

        j  0 1 2 3 4      The cat sat down ran, subtree_end 5 5 4 4 5
    i 0    x
      1    x x            `ran` (4) sees 0 and 1, whose subtrees end at 5,
      2    x x x          and neither 2 nor 3, whose subtrees end at 4.
      3    x x x x
      4    x x . . x

A token may also see a `KVCache`: keys and values that were computed before. Each part of what it
sees gives its own softmax and that softmax's log-sum-exp, by which the parts are weighed.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.blocked import blocked, blocked_cpu
from jaxscore.device.attention.kernel_gpu import kernel_gpu
from jaxscore.device.attention.kernel_tpu import kernel_tpu
from jaxscore.device.attention.kv_cache import KVCache, attend_cache, merge_parts
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import AttentionName, Backend


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
    dtype,
    backend: Backend,
    sinks_N: Float[Array, " N"] | None = None,
    chunked: bool = False,
) -> Float[Array, "R L N H"]:
    """Softmax attention of every token over the tokens it sees.

    Args:
        k_RLKH, v_RLKH: as `isolate_nonfinite` gives them.
        caches: one layer's keys and values before the rows, seen by all their tokens.
        window: how far along the path a token sees (its own position counts), or 0, which is
            everything; None is everything in every layer.
        rule: what the products become before the softmax.
        dtype: of the two products' inputs; scores, softmax and sums are float32.
        backend: which function of `ATTENTION` runs.
        sinks_N: for each query head a score beside those of what it sees, without a value.
        chunked: a window is a stretch of positions instead, see `DecoderConfig`.

    Raises:
        ValueError: `chunked` with ALiBi, which needs the positions themselves.
    """
    stretch = None
    if chunked and window is not None:
        if rule.alibi is not None:
            raise ValueError("chunked windows and ALiBi: not handled together")
        # Two positions lie in one stretch if and only if their quotients differ by less than 1.
        stretch = jnp.maximum(window, 1)
        position_RL, window = position_RL // stretch, jnp.minimum(window, 1)
    run: Callable[..., Any] = ATTENTION[backend.attention]
    if q_RLNH.shape[1] == 1:
        run = itself
    elif backend.interpreted and run in (kernel_gpu, kernel_tpu):
        run = functools.partial(run, interpret=True)
    own = run(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, rule=rule, dtype=dtype)
    parts = [
        attend_cache(q_RLNH, one, position_RL, window, rule=rule, backend=backend, stretch=stretch)
        for one in caches
    ]
    out, lse = merge_parts([own, *parts]) if caches else own
    if sinks_N is None:
        return out
    # exp(lse) of the total exp(lse) + exp(sink)
    return out * jax.nn.sigmoid(lse - sinks_N)[..., None]


def isolate_nonfinite(
    k_RLKH: Float[Array, "R L K H"], v_RLKH: Float[Array, "R L K H"]
) -> tuple[Float[Array, "R L K H"], Float[Array, "R L K H"]]:
    """Keys and values of which one that is not finite reaches those who see it, and no others.

    Such a value would reach every token of the row as 0 * NaN; it is moved into the key.
    """
    broken = ~jnp.isfinite(v_RLKH).all(axis=-1, keepdims=True)
    return jnp.where(broken, jnp.nan, k_RLKH), jnp.where(broken, 0.0, v_RLKH)


def itself(q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window, *, rule, dtype):
    """Rows of one token, as in a generation step: it sees itself, by a weight of 1."""
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
    # A key that is not a number reaches the token that sees it, here through its score.
    v = v_RLKH.astype(dtype).astype(jnp.float32)[:, :, :, None]
    out = jnp.where(jnp.isnan(scores)[..., None], jnp.nan, v)
    return out.reshape(R, 1, N, H), scores.reshape(R, 1, N)


ATTENTION: dict[AttentionName, Callable[..., Any]] = {
    "blocked": blocked,
    "blocked_cpu": blocked_cpu,
    "kernel_gpu": kernel_gpu,
    "kernel_tpu": kernel_tpu,
}
