"""The decoder's products and attention, for training on a CPU in bfloat16.

The decoder of `jaxscore.device` is made for scoring: its attention on the CPU runs a loop over
heads, whose gradient is slow, and its float32 products use a fifth of what a CPU with bfloat16
matrix units gives. Training swaps them for the functions below and leaves all else as it is;
parameters, activations, sums and the optimizer stay float32. Together, and without the
loop over layers, they train two and a half times as many tokens a second.
"""

import contextlib
import functools
import types
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device import decoder, layers, self_attention
from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import ScoreRule, visible
from jaxscore.device.backends import Backend


@jax.custom_vjp
def dot_last(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x[..., D] @ weight[M, D].T` of bfloat16 inputs, summed and returned in float32."""
    return _dot(x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16), x.ndim - 1, 1)


def _dot(a: jax.Array, b: jax.Array, axis_a: int, axis_b: int) -> jax.Array:
    axes = (((axis_a,), (axis_b,)), ((), ()))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return _dot(x, weight, x.ndim - 1, 1), (x, weight)


def _backward(kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both products in bfloat16 again; JAX's own rule would mix it with float32 and be slow."""
    x, weight = kept
    g = g.astype(jnp.bfloat16)
    of_weight = _dot(g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1]), 0, 0)
    return _dot(g, weight, g.ndim - 1, 0), of_weight


dot_last.defvjp(_forward, _backward)


def attention(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    caches: tuple[()],
    rule: ScoreRule,
    dtype,
    backend: Backend,
    sinks_N: None,
    chunked: bool,
) -> Float[Array, "R L N H"]:
    """`jaxscore.device.attention.interval.attention` with rows and key heads in one batch axis.

    One batch axis makes each product a plain matrix product, in both directions. The platform's
    forms have no effect; the demo model has neither sinks nor chunked windows.
    """
    R, L, N, H = q_RLNH.shape
    K = k_RLKH.shape[2]
    G = N // K
    q = q_RLNH.reshape(R, L, K, G, H).transpose(0, 2, 3, 1, 4).reshape(R * K, G * L, H)
    k = k_RLKH.transpose(0, 2, 1, 3).reshape(R * K, L, H)
    v = v_RLKH.transpose(0, 2, 1, 3).reshape(R * K, L, H)
    i = jnp.arange(L)
    mask_RLL = visible(
        i[None, :, None],
        i[None, None, :],
        subtree_end_RL[:, None, :],
        position_RL[:, :, None],
        position_RL[:, None, :],
        window,
    )
    scores = lax.dot_general(q.astype(dtype), k.astype(dtype), (((2,), (2,)), ((0,), (0,))))
    scores = jnp.where(mask_RLL[:, None, None], scores.reshape(R, K, G, L, L) * rule.scale, MASKED)
    weights = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = weights.sum(-1)
    mixed = lax.dot_general(
        weights.astype(dtype).reshape(R * K, G * L, L),
        v.astype(dtype),
        (((2,), (1,)), ((0,), (0,))),
    )
    mixed = mixed.reshape(R, K, G, L, H) / total[..., None]
    return mixed.transpose(0, 3, 1, 2, 4).reshape(R, L, N, H)


def hidden_states(
    params: decoder.Params,
    config: decoder.DecoderConfig,
    ids: Int[Array, "R L"],
    position: Int[Array, "R L"],
    subtree_end: Int[Array, "R L"],
) -> Float[Array, "R L D"]:
    """`decoder.hidden_states`, traced with the functions of this module."""
    with _swapped():
        return decoder.hidden_states(params, config, ids, position, subtree_end)


@contextlib.contextmanager
def _swapped() -> Iterator[None]:
    """The decoder traced inside has this module's product and attention, and no loop.

    A loop over the layers would copy what the gradient needs of each layer into stacks and out
    again, a third of the whole time; five layers compile fast enough without one.
    """
    unrolled = types.SimpleNamespace(**vars(lax))
    unrolled.scan = functools.partial(lax.scan, unroll=True)
    swapped = {
        (layers, "dot_last"): dot_last,
        (self_attention, "attention"): attention,
        (decoder, "lax"): unrolled,
    }
    kept = {(module, name): getattr(module, name) for module, name in swapped}
    for (module, name), value in swapped.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in kept.items():
            setattr(module, name, value)
