"""The state-space layer of Mamba-2 over chunks of packed tries (arXiv 2405.21060, section 6).

    S_t = e^(Δ A) S_p + B (Δ x)'        y_t = C' S_t + D x        p is t's parent

With the notation of `delta_rule`, y = d C S + (C B' ∘ decay) Δ x + D x.
"""

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


def state_space(
    x: Float[Array, "N C H P"],
    step_size: Float[Array, "N C H"],
    log_decay: Float[Array, "N C H"],
    b: Float[Array, "N C G S"],
    c: Float[Array, "N C G S"],
    index: ChunkIndex,
    start: Float[Array, "n H S P"] | None = None,
) -> tuple[Float[Array, "N C H P"], Float[Array, "E H S P"] | None]:
    """Outputs without D x, and states at the kept slots, float32.

    Args:
        x: inputs.
        step_size, log_decay: Δ, and Δ A, which is at most 0.
        b, c: of G groups, each of which serves H / G neighbouring heads.
        index: chunks; values in empty slots are finite and have no effect.
        start: initial states, see `paths.exit_states`.
    """
    n_heads, group = x.shape[2], x.shape[2] // b.shape[2]
    u = x * step_size[..., None]
    u, log_decay, b, c = (jnp.moveaxis(y, 1, 2) for y in (u, log_decay, b, c))

    def products(log_decay: Array, b: Array, c: Array, seen: Array) -> tuple[Array, Array]:
        """C B' ∘ decay, and d C."""
        decay, from_start = path_decay(log_decay, seen)
        cb = jnp.repeat(dot("ngis,ngjs->ngij", c, b), group, 1) * decay
        return cb, jnp.repeat(c, group, 1) * from_start[..., None]

    cb, c = map_chunks(products, (log_decay, b, c, index.seen), index.at_once)

    def step(chunk: Array, slot: Array, start: Array) -> Array:
        decay, from_start = decay_to(log_decay[chunk], index.seen[chunk], slot)
        inputs = jnp.repeat(b[chunk], group, 1) * decay[..., None]
        return from_start[..., None, None] * start + dot("whis,whip->whsp", inputs, u[chunk])

    shape = n_heads, b.shape[-1], u.shape[-1]
    states, kept = exit_states(index, start, shape, step)

    def local(c: Array, cb: Array, u: Array) -> Array:
        return dot("nhij,nhjp->nhip", cb, u)

    def further(start: Array, c: Array, cb: Array, u: Array) -> Array:
        return dot("nhis,nhsp->nhip", c, start) + dot("nhij,nhjp->nhip", cb, u)

    out = with_states(index, start, states, local, further, (c, cb, u))
    return jnp.moveaxis(out, 2, 1), kept
