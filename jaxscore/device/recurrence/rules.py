"""Recurrences over chunks of packed tries; p is the parent of token t.

The gated delta rule (arXiv 2412.06464; chunked: 2406.06484) and Mamba-2 (`state_space`) have
matrices as states:

    S_t = e^g S_p + k β (v - e^g k' S_p)'        o_t = q' S_t

Let D be the decay between slots, S the state at a chunk's start, d the decay from the start, and ∘
the elementwise product under the ancestor mask (with ' the mask without its diagonal). Then

    X = (I + (β k k' ∘ D)')^-1    u = X β v - X (β d k) S    o = d q S + (q k' ∘ D) u

and the state at slot m is d_m S + Σ_j D_mj k_j u_j'. With a decay per channel of a key (Kimi delta
attention, arXiv 2510.26692), D moves inside the sums over channels. It is not factored into decays
to one slot and from another, since these overflow.

The selective scan of Mamba-1 (arXiv 2312.00752) and the RG-LRU of Griffin (arXiv 2402.19427) have
a state per channel:

    h_t = a_t h_p + b_t

Every entry of a state has its own decay, so the outputs of a chunk are not a matrix product. The
slots of a chunk are processed in order instead, many chunks in parallel, and each slot reads its
parent's state from a table of the chunk's states. This takes one update per token; pointer doubling
would take log2(C). A table of all tokens would be large (2 GB for Mamba-1 with 8,192 channels and
4,096 tokens), so chunks are processed in blocks whose table has at most `MOST_BYTES`. Since no
products are masked, a non-finite token affects only its descendants.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.recurrence.paths import (
    ChunkIndex,
    channel_decay,
    channel_sums,
    decay_to,
    dot,
    exit_states,
    map_chunks,
    path_decay,
    with_states,
)

SUBSTITUTED = 8  # rows of a block inverted row by row; on a CPU, 16 takes 1.3 times as long


def unit_lower_inverse(a: Float[Array, "*n C C"]) -> Float[Array, "*n C C"]:
    """Return (I + a)^-1 for a strictly lower triangular a; C must be a power of two.

    Blocks of SUBSTITUTED rows are inverted row by row, all matrices in parallel; larger blocks from
    their halves:

        (I + a)^-1 = [X, 0; -Y low X, Y]        X, Y: inverses of the halves

    The power series (I - a)(I + a^2)(I + a^4)… needs as many products, and its terms overflow if
    keys are similar.
    """
    C = a.shape[-1]
    size = min(C, SUBSTITUTED)

    def blocks(size: int, first_row: int, step: int) -> Array:
        """Return blocks on or below the diagonal, [*n, C / step, size, size]."""
        starts = range(0, C, step)
        rows = [a[..., k + first_row : k + first_row + size, k : k + size] for k in starts]
        return jnp.stack(rows, axis=-3)

    inverse = _by_substitution(blocks(size, 0, size))
    while size < C:
        low, first, second = (
            blocks(size, size, 2 * size),
            inverse[..., ::2, :, :],
            inverse[..., 1::2, :, :],
        )
        corner = -dot("...ij,...jk->...ik", dot("...ij,...jk->...ik", second, low), first)
        top_rows = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
        inverse = jnp.concatenate([top_rows, jnp.concatenate([corner, second], axis=-1)], axis=-2)
        size *= 2
    return inverse[..., 0, :, :]


def _by_substitution(a: Float[Array, "*n B B"]) -> Float[Array, "*n B B"]:
    """Return (I + a)^-1 row by row: row i of I minus the sum of a[i, j] times row j < i."""
    size = a.shape[-1]
    last = jnp.moveaxis(a.reshape(-1, size, size), 0, -1)  # matrices along vector lanes
    rows: list[Array] = []
    for i in range(size):
        row = jnp.broadcast_to(jnp.eye(size)[i][:, None], last.shape[1:])
        for j in range(i):
            row -= last[i, j] * rows[j]
        rows.append(row)
    return jnp.moveaxis(jnp.stack(rows), -1, 0).reshape(a.shape)


def gated_delta(
    q: Float[Array, "N C J K"],
    k: Float[Array, "N C J K"],
    v: Float[Array, "N C H V"],
    log_decay: Float[Array, "N C H *K"],
    rate: Float[Array, "N C H"],
    index: ChunkIndex,
    start: Float[Array, "n H K V"] | None = None,
) -> tuple[Float[Array, "N C H V"], Float[Array, "E H K V"] | None]:
    """Compute the outputs of the gated delta rule, and the states at the kept slots, float32.

    Args:
        q, k: queries and keys of J key heads, each shared by H / J consecutive value heads.
        v: values.
        log_decay: g, at most 0. With a last axis K, each channel has its own decay, and J = H.
        rate: β.
        index: the chunks; values in empty slots must be finite and have no effect.
        start: start states, see `paths.exit_states`.
    """
    n_heads, group = v.shape[2], v.shape[2] // k.shape[2]
    q, k, v, log_decay, rate = (jnp.moveaxis(x, 1, 2) for x in (q, k, v, log_decay, rate))
    arrays = q, k, v, log_decay, rate, index.seen
    u0, w, qk, q = map_chunks(_products_within, arrays, index.at_once)

    def step(chunk: Array, slot: Array, start: Array) -> Array:
        update = u0[chunk] - dot("whik,whkv->whiv", w[chunk], start)
        if log_decay.ndim == 4:
            decay, from_start = _channel_decay_to(log_decay[chunk], index.seen[chunk], slot)
        else:
            by_head = decay_to(log_decay[chunk], index.seen[chunk], slot)
            decay, from_start = (x[..., None] for x in by_head)
        keys = jnp.repeat(k[chunk], group, 1) * decay
        return from_start[..., None] * start + dot("whik,whiv->whkv", keys, update)

    shape = n_heads, k.shape[-1], v.shape[-1]
    states, kept = exit_states(index, start, shape, step)

    def from_zero(q: Array, u0: Array, w: Array, qk: Array) -> Array:
        return dot("nhij,nhjv->nhiv", qk, u0)

    def from_states(start: Array, q: Array, u0: Array, w: Array, qk: Array) -> Array:
        update = u0 - dot("nhik,nhkv->nhiv", w, start)
        return dot("nhik,nhkv->nhiv", q, start) + dot("nhij,nhjv->nhiv", qk, update)

    out = with_states(index, start, states, from_zero, from_states, (q, u0, w, qk))
    return jnp.moveaxis(out, 2, 1), kept


def _products_within(
    q: Array, k: Array, v: Array, log_decay: Array, rate: Array, seen: Array
) -> tuple[Array, Array, Array, Array]:
    """Return X β v, X β d k, q k' ∘ D and d q of chunks."""
    group = v.shape[1] // k.shape[1]
    if log_decay.ndim == 4:
        kk, qk, from_start = _channel_products(q, k, log_decay, seen)
    else:
        decay, by_head = path_decay(log_decay, seen)
        kk = jnp.repeat(dot("njik,njlk->njil", k, k), group, 1) * decay
        qk = jnp.repeat(dot("njik,njlk->njil", q, k), group, 1) * decay
        from_start = by_head[..., None]
    q, k = (jnp.repeat(x, group, 1) for x in (q, k))
    kk = jnp.where(jnp.eye(kk.shape[-1], dtype=bool), 0.0, kk)
    solved = unit_lower_inverse(rate[..., None] * kk)
    u0 = dot("nhij,nhjv->nhiv", solved, rate[..., None] * v)
    w = dot("nhij,nhjk->nhik", solved, rate[..., None] * from_start * k)
    return u0, w, qk, from_start * q


def _channel_products(
    q: Float[Array, "N H C K"],
    k: Float[Array, "N H C K"],
    log_decay: Float[Array, "N H C K"],
    seen: Array,
) -> tuple[Array, Array, Array]:
    """Return k k' ∘ D and q k' ∘ D, with D inside the sums, and the decay from the start,
    [N, H, C, K]."""
    sums = channel_sums(log_decay, seen)

    def head_products(head: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        q, k, first, second = head
        start, stop = (first[:, None], second[:, None]), (first[:, :, None], second[:, :, None])
        keys = k[:, None] * channel_decay(start, stop, seen)
        return (k[:, :, None] * keys).sum(-1), (q[:, :, None] * keys).sum(-1)

    # One head at a time, since the product of all heads has a key for each pair of slots.
    kk, qk = lax.map(head_products, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, *sums)))
    return jnp.moveaxis(kk, 0, 1), jnp.moveaxis(qk, 0, 1), jnp.exp(sums[0] + sums[1])


def _channel_decay_to(
    log_decay: Float[Array, "W H C K"], seen: Array, slot: Array
) -> tuple[Float[Array, "W H C K"], Float[Array, "W H K"]]:
    """Return the decay from every slot, and from the start, to one slot of each chunk."""
    chunk = jnp.arange(len(slot))
    sums = channel_sums(log_decay, seen)
    first, second = (x[chunk, :, slot] for x in sums)
    stop = first[:, :, None], second[:, :, None]
    return channel_decay(sums, stop, seen[chunk, slot][:, None]), jnp.exp(first + second)


def state_space(
    x: Float[Array, "N C H P"],
    step_size: Float[Array, "N C H"],
    log_decay: Float[Array, "N C H"],
    b: Float[Array, "N C G S"],
    c: Float[Array, "N C G S"],
    index: ChunkIndex,
    start: Float[Array, "n H S P"] | None = None,
) -> tuple[Float[Array, "N C H P"], Float[Array, "E H S P"] | None]:
    """Compute Mamba-2's outputs without D x, and the states at the kept slots, float32
    (arXiv 2405.21060).

        S_t = e^(Δ A) S_p + B (Δ x)'        y_t = C' S_t + D x        p is t's parent

    With the notation above, y = d C S + (C B' ∘ decay) Δ x + D x.

    Args:
        x: inputs.
        step_size, log_decay: Δ, and Δ A, which is at most 0.
        b, c: B and C of G groups, each shared by H / G consecutive heads.
        index: the chunks; values in empty slots must be finite and have no effect.
        start: start states, see `paths.exit_states`.
    """
    n_heads, group = x.shape[2], x.shape[2] // b.shape[2]
    u = x * step_size[..., None]
    u, log_decay, b, c = (jnp.moveaxis(y, 1, 2) for y in (u, log_decay, b, c))

    def products(log_decay: Array, b: Array, c: Array, seen: Array) -> tuple[Array, Array]:
        """Return C B' ∘ decay, and d C."""
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

    def from_zero(c: Array, cb: Array, u: Array) -> Array:
        return dot("nhij,nhjp->nhip", cb, u)

    def from_states(start: Array, c: Array, cb: Array, u: Array) -> Array:
        return dot("nhis,nhsp->nhip", c, start) + dot("nhij,nhjp->nhip", cb, u)

    out = with_states(index, start, states, from_zero, from_states, (c, cb, u))
    return jnp.moveaxis(out, 2, 1), kept


MOST_BYTES = 2**27  # maximum size of the state tables of chunks processed in parallel


def selective_scan(
    x: Float[Array, "N C D"],
    step_size: Float[Array, "N C D"],
    rate: Float[Array, "S D"],
    b: Float[Array, "N C G S"],
    c: Float[Array, "N C G S"],
    index: ChunkIndex,
    start: Float[Array, "n S D"] | None = None,
) -> tuple[Float[Array, "N C D"], Float[Array, "E S D"] | None]:
    """Compute Mamba-1's outputs without the skip, and the states at the kept slots, float32.

        h_t = e^(Δ A) h_p + B (Δ x)'        y_t = C' h_t

    Args:
        x: inputs.
        step_size: Δ.
        rate: A, at most 0.
        b, c: B and C of G groups, each shared by D / G consecutive channels.
        index: the chunks.
        start: start states, see `paths.exit_states`.
    """

    n_groups = b.shape[2]

    def to_channels(y: Array) -> Array:
        """Map [n, G, S] to [n, S, D], or to [n, S, 1] if there is one group."""
        y = y.swapaxes(1, 2)
        return y if n_groups == 1 else jnp.repeat(y, rate.shape[1] // n_groups, axis=2)

    def update(state: Array, x: Array, step_size: Array, b: Array, c: Array) -> Array:
        decay = jnp.exp(step_size[:, None] * rate)
        return decay * state + to_channels(b) * (step_size * x)[:, None]

    def read(state: Array, x: Array, step_size: Array, b: Array, c: Array) -> Array:
        return (to_channels(c) * state).sum(1)

    return _scan_slots(index, start, rate.shape, update, read, (x, step_size, b, c))


def gated_unit(
    x: Float[Array, "N C D"],
    decay: Float[Array, "N C D"],
    index: ChunkIndex,
    start: Float[Array, "n D"] | None = None,
) -> tuple[Float[Array, "N C D"], Float[Array, "E D"] | None]:
    """Return the states h_t = decay_t h_p + x_t at all slots, and at the kept slots, float32."""

    def update(state: Array, x: Array, decay: Array) -> Array:
        return decay * state + x

    def read(state: Array, x: Array, decay: Array) -> Array:
        return state

    return _scan_slots(index, start, x.shape[2:], update, read, (x, decay))


def _scan_slots(
    index: ChunkIndex,
    start: Array | None,
    shape: tuple[int, ...],
    update: Callable[..., Array],
    read: Callable[..., Array],
    arrays: tuple[Array, ...],
) -> tuple[Array, Array | None]:
    """Process slots in order; return outputs [N, C, ...] and states [E, *shape] at the kept slots.

    Args:
        index: the chunks.
        start: start states, see `paths.exit_states`.
        shape: the shape of a state.
        update: (parents' states [n, *shape], *slots of `arrays` [n, ...]) -> the slots' states.
        read: (the slots' states, *slots of `arrays`) -> their outputs [n, ...].
        arrays: inputs, [N, C, ...] each.
    """
    n_chunks, size = index.chunks.token.shape

    def states_at(chunk: Array, slot: Array, states: Array) -> Array:
        """Return the states at one slot of each chunk, by updates along the path to it."""
        inputs = [x[chunk] for x in arrays]
        on_path = index.seen[chunk, slot].reshape(-1, size, *[1] * len(shape))

        def update_slot(k: Array, states: Array) -> Array:
            return jnp.where(on_path[:, k], update(states, *(x[:, k] for x in inputs)), states)

        return lax.fori_loop(0, slot.max() + 1, update_slot, states)

    states, kept = exit_states(index, start, shape, states_at)
    earlier = jnp.tril(index.seen, -1)  # the last ancestor is the parent
    parent = jnp.where(earlier, jnp.arange(1, size + 1), 0).max(-1)

    def block(entry: Array, parent: Array, *arrays: Array) -> Array:
        """Return the outputs of a block of chunks; entry 0 of the table is their start state."""
        chunk_index = jnp.arange(len(entry))
        first = states[entry]
        table = jnp.zeros((size + 1, *first.shape)).at[0].set(first)

        def update_slot(table: Array, slot: tuple[Array, ...]) -> tuple[Array, Array]:
            k, parent, *inputs = slot
            state = update(table[parent, chunk_index], *inputs)
            return lax.dynamic_update_index_in_dim(table, state, k + 1, 0), read(state, *inputs)

        slots = [jnp.moveaxis(x, 1, 0) for x in (parent, *arrays)]
        return jnp.moveaxis(lax.scan(update_slot, table, (jnp.arange(size), *slots))[1], 0, 1)

    max_chunks = MOST_BYTES // (4 * (size + 1) * math.prod(shape)) if size > 1 else n_chunks
    out: Array = map_chunks(block, (index.chunks.entry, parent, *arrays), max(1, max_chunks))
    return out, kept
