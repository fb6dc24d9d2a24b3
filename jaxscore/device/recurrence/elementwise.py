"""Recurrences of single channels over chunks of packed tries: the selective scan of Mamba-1 (arXiv
2312.00752) and the RG-LRU of Griffin (arXiv 2402.19427).

    h_t = a_t h_p + b_t        p is t's parent

Every entry of a state decays on its own, so no product of matrices gives the outputs of a chunk.
The slots of a chunk are walked in order instead, many chunks side by side, and each slot starts
from its parent's state in a table of the chunk's states: one update per token, where pointer
doubling takes log2(C) over arrays of the same size. A table of all tokens would be large (Mamba-1
with 8,192 channels and 4,096 tokens: 2 GB), so chunks are walked in blocks whose table is at most
`MOST_BYTES`. Nothing is masked by products, so a token that is not finite spoils only what
continues it.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.recurrence.paths import ChunkIndex, exit_states, map_chunks

MOST_BYTES = 2**27  # of the states of the chunks that are walked side by side


def selective_scan(
    x: Float[Array, "N C D"],
    step_size: Float[Array, "N C D"],
    rate: Float[Array, "S D"],
    b: Float[Array, "N C S"],
    c: Float[Array, "N C S"],
    index: ChunkIndex,
    start: Float[Array, "n S D"] | None = None,
) -> tuple[Float[Array, "N C D"], Float[Array, "E S D"] | None]:
    """Outputs of Mamba-1 without the skip, and states at the kept slots, float32.

        h_t = e^(Δ A) h_p + B (Δ x)'        y_t = C' h_t

    Args:
        x: inputs.
        step_size: Δ.
        rate: A, at most 0.
        b, c: B and C, shared by all channels.
        index: chunks.
        start: initial states, see `paths.exit_states`.
    """

    def update(state: Array, x: Array, step_size: Array, b: Array, c: Array) -> Array:
        decay = jnp.exp(step_size[:, None] * rate)
        return decay * state + b[:, :, None] * (step_size * x)[:, None]

    def read(state: Array, x: Array, step_size: Array, b: Array, c: Array) -> Array:
        return (c[:, :, None] * state).sum(1)

    return _walk(index, start, rate.shape, update, read, (x, step_size, b, c))


def gated_unit(
    x: Float[Array, "N C D"],
    decay: Float[Array, "N C D"],
    index: ChunkIndex,
    start: Float[Array, "n D"] | None = None,
) -> tuple[Float[Array, "N C D"], Float[Array, "E D"] | None]:
    """States h_t = decay_t h_p + x_t at all slots, and those at the kept ones, float32."""

    def update(state: Array, x: Array, decay: Array) -> Array:
        return decay * state + x

    def read(state: Array, x: Array, decay: Array) -> Array:
        return state

    return _walk(index, start, x.shape[2:], update, read, (x, decay))


def _walk(
    index: ChunkIndex,
    start: Array | None,
    shape: tuple[int, ...],
    update: Callable[..., Array],
    read: Callable[..., Array],
    arrays: tuple[Array, ...],
) -> tuple[Array, Array | None]:
    """Outputs [N, C, ...], and states [E, *shape] at the kept slots.

    Args:
        shape: of a state.
        update: (states [n, *shape], *slots of `arrays` [n, ...]) -> the states at those slots.
        read: the same arguments, with the states at those slots -> their outputs [n, ...].
        arrays: [N, C, ...] each.
    """
    n_chunks, size = index.chunks.token.shape

    def exits(chunk: Array, slot: Array, states: Array) -> Array:
        """States at one slot of each chunk: updates of the slots on the way to it."""
        inputs = [x[chunk] for x in arrays]
        on_path = index.seen[chunk, slot].reshape(-1, size, *[1] * len(shape))

        def one(k: Array, states: Array) -> Array:
            return jnp.where(on_path[:, k], update(states, *(x[:, k] for x in inputs)), states)

        return lax.fori_loop(0, slot.max() + 1, one, states)

    states, kept = exit_states(index, start, shape, exits)
    earlier = jnp.tril(index.seen, -1)  # the latest of these is a slot's parent
    parent = jnp.where(earlier, jnp.arange(1, size + 1), 0).max(-1)

    def block(entry: Array, parent: Array, *arrays: Array) -> Array:
        """Outputs of some chunks; the first entry of their table is the state they start from."""
        at = jnp.arange(len(entry))
        first = states[entry]
        table = jnp.zeros((size + 1, *first.shape)).at[0].set(first)

        def one(table: Array, slot: tuple[Array, ...]) -> tuple[Array, Array]:
            k, parent, *inputs = slot
            new = update(table[parent, at], *inputs)
            return lax.dynamic_update_index_in_dim(table, new, k + 1, 0), read(new, *inputs)

        slots = [jnp.moveaxis(x, 1, 0) for x in (parent, *arrays)]
        return jnp.moveaxis(lax.scan(one, table, (jnp.arange(size), *slots))[1], 0, 1)

    most = MOST_BYTES // (4 * (size + 1) * math.prod(shape)) if size > 1 else n_chunks
    out: Array = map_chunks(block, (index.chunks.entry, parent, *arrays), max(1, most))
    return out, kept
