"""The gated delta rule over chunks of packed tries (arXiv 2412.06464; chunked: 2406.06484).

    S_t = e^g S_p + k β (v - e^g k' S_p)'        o_t = q' S_t        p is t's parent

With D the decay between slots, S the state at a chunk's start, d the decay from there, and ∘
elementwise products under the ancestor mask (' of it without its diagonal),

    X = (I + (β k k' ∘ D)')^-1    u = X β v - X (β d k) S    o = d q S + (q k' ∘ D) u

and the state at slot m is d_m S + Σ_j D_mj k_j u_j'.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscore.device.recurrence.paths import (
    ChunkIndex,
    decay_to,
    dot,
    exit_states,
    map_chunks,
    path_decay,
    with_states,
)


def unit_lower_inverse(a: Float[Array, "*n C C"]) -> Float[Array, "*n C C"]:
    """(I + a)^-1 of strictly lower triangular a; C is a power of two.

    Blocks of 2, 4, … are inverted from those of half the size. The power series
    (I - a)(I + a^2)(I + a^4)… takes as many products, and its terms overflow if keys are alike.
    """
    C = a.shape[-1]
    at = jnp.arange(C)

    def within(size: int) -> Array:
        return at[:, None] // size == at // size

    inverse, size = jnp.eye(C) - jnp.where(within(2), a, 0.0), 2
    while size < C:
        low = jnp.where(within(2 * size) & ~within(size), a, 0.0)
        inverse -= dot("...ij,...jk->...ik", dot("...ij,...jk->...ik", inverse, low), inverse)
        size *= 2
    return inverse


def gated_delta(
    q: Float[Array, "N C J K"],
    k: Float[Array, "N C J K"],
    v: Float[Array, "N C H V"],
    log_decay: Float[Array, "N C H"],
    rate: Float[Array, "N C H"],
    index: ChunkIndex,
    start: Float[Array, "n H K V"] | None = None,
) -> tuple[Float[Array, "N C H V"], Float[Array, "E H K V"] | None]:
    """Outputs of the gated delta rule and states at the kept slots, float32.

    Args:
        q, k: queries and keys of J key heads, each of which serves H / J neighbouring value heads.
        v: values.
        log_decay: g, at most 0.
        rate: β.
        index: chunks; values in empty slots are finite and have no effect.
        start: initial states, see `paths.exit_states`.
    """
    n_heads, group = v.shape[2], v.shape[2] // k.shape[2]
    q, k, v, log_decay, rate = (jnp.moveaxis(x, 1, 2) for x in (q, k, v, log_decay, rate))

    def products(q: Array, k: Array, v: Array, log_decay: Array, rate: Array, seen: Array) -> Any:
        """Within chunks: X β v, X β d k, q k' ∘ D and d q."""
        decay, from_start = path_decay(log_decay, seen)
        kk = jnp.repeat(dot("njik,njlk->njil", k, k), group, 1) * decay
        qk = jnp.repeat(dot("njik,njlk->njil", q, k), group, 1) * decay
        q, k = (jnp.repeat(x, group, 1) for x in (q, k))
        kk = jnp.where(jnp.eye(kk.shape[-1], dtype=bool), 0.0, kk)
        solved = unit_lower_inverse(rate[..., None] * kk)
        own = dot("nhij,nhjv->nhiv", solved, rate[..., None] * v)
        read = dot("nhij,nhjk->nhik", solved, (rate * from_start)[..., None] * k)
        return own, read, qk, from_start[..., None] * q

    arrays = q, k, v, log_decay, rate, index.seen
    own, read, qk, q = map_chunks(products, arrays, index.at_once)

    def step(chunk: Array, slot: Array, start: Array) -> Array:
        update = own[chunk] - dot("whik,whkv->whiv", read[chunk], start)
        decay, from_start = decay_to(log_decay[chunk], index.seen[chunk], slot)
        keys = jnp.repeat(k[chunk], group, 1) * decay[..., None]
        return from_start[..., None, None] * start + dot("whik,whiv->whkv", keys, update)

    shape = n_heads, k.shape[-1], v.shape[-1]
    states, kept = exit_states(index, start, shape, step)

    def local(q: Array, own: Array, read: Array, qk: Array) -> Array:
        return dot("nhij,nhjv->nhiv", qk, own)

    def further(start: Array, q: Array, own: Array, read: Array, qk: Array) -> Array:
        update = own - dot("nhik,nhkv->nhiv", read, start)
        return dot("nhik,nhkv->nhiv", q, start) + dot("nhij,nhjv->nhiv", qk, update)

    out = with_states(index, start, states, local, further, (q, own, read, qk))
    return jnp.moveaxis(out, 2, 1), kept
