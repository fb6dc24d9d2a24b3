"""A batch's tokens as recurrent layers take them: ancestors along paths, and chunks.

All tokens of a chunk start from one state (`rows.Chunks`). Inside a chunk, the ancestor mask takes
the place of the triangular mask of a single text, and decay is summed along paths. Between chunks,
only the states at exits are computed, level by level.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.rows import Chunks, Paths

CHUNKS_AT_ONCE = 16  # start states copied side by side


def dot(spec: str, a: Array, b: Array) -> Array:
    """float32 product at the highest precision: alike keys amplify rounding of the delta rule."""
    return jnp.einsum(
        spec, a, b, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


@dataclasses.dataclass(frozen=True)
class ChunkIndex:
    """Chunks of a batch, and what follows from them for all layers; N chunks of C slots.

    Attributes:
        chunks: from the host.
        slot: [T], slot of each token among all N * C; N * C for padding.
        seen: [N, C, C], slot i sees slot j: j is i or an ancestor of i. False in empty slots.
        ancestors: [N * C] each, slot of each slot's parent, its parent, …; N * C if none.
    """

    chunks: Chunks
    slot: Int[Array, " T"]
    seen: Bool[Array, "N C C"]
    ancestors: tuple[Int[Array, " NC"], ...]

    def gather(self, x: Float[Array, "T D"]) -> Float[Array, "N C D"]:
        """Values of each slot's token; zero in empty slots."""
        return jnp.take(x, self.chunks.token, axis=0, mode="fill", fill_value=0)

    def scatter(self, y: Array) -> Array:
        """Values [T, ...] of each token from those of all slots [N, C, ...]; zero for padding."""
        flat = y.reshape(-1, *y.shape[2:])
        return jnp.take(flat, self.slot, axis=0, mode="fill", fill_value=0)


@dataclasses.dataclass(frozen=True)
class PathIndex:
    """Ancestors and chunks of a batch.

    Attributes:
        ancestors: [T] each, parent of each token, its parent, …; T if none.
        subtree_end: [R, L], see `rows.Rows`.
        chunks: None if no layer carries a state.
    """

    ancestors: tuple[Int[Array, " T"], ...]
    subtree_end: Int[Array, "R L"]
    chunks: ChunkIndex | None

    def reached(self, broken: Bool[Array, " T"]) -> Bool[Array, " T"]:
        """Tokens whose path holds a broken token."""
        R, L = self.subtree_end.shape
        broken_RL = broken.reshape(R, L).astype(jnp.int32)
        change = jnp.pad(broken_RL, ((0, 0), (0, 1)))
        change = change.at[jnp.arange(R)[:, None], self.subtree_end].add(-broken_RL)
        return (jnp.cumsum(change, axis=1)[:, :L] > 0).reshape(-1)


def path_index(paths: Paths, subtree_end: Int[Array, "R L"], n_ancestors: int) -> PathIndex:
    """Index of a batch.

    Args:
        subtree_end: see `rows.Rows`.
        n_ancestors: taps of the layers' convolutions less one.
    """
    ancestors = _ancestors(paths.parent, n_ancestors)
    if paths.chunks is None:
        return PathIndex(ancestors, subtree_end, None)
    T, token = paths.parent.shape[0], paths.chunks.token
    R, L = subtree_end.shape
    n_slots = token.size
    slot_of = jnp.full(T + 1, n_slots, jnp.int32)
    slot_of = slot_of.at[token.reshape(-1)].set(jnp.arange(n_slots, dtype=jnp.int32))
    slot_of = slot_of.at[T].set(n_slots)
    parent = slot_of[jnp.append(paths.parent, T)[token.reshape(-1)]]
    end = (subtree_end + L * jnp.arange(R, dtype=jnp.int32)[:, None]).reshape(-1)
    end = jnp.append(end, 0)[token]  # nothing sees an empty slot, and it sees nothing
    i, j = token[:, :, None], token[:, None, :]
    seen = (j <= i) & (i < end[:, None, :])
    index = ChunkIndex(paths.chunks, slot_of[:T], seen, _ancestors(parent, n_ancestors))
    return PathIndex(ancestors, subtree_end, index)


def _ancestors(parent: Array, count: int) -> tuple[Array, ...]:
    above = jnp.append(parent, jnp.int32(parent.shape[0]))
    out = [parent]
    for _ in range(count - 1):
        out.append(above[out[-1]])
    return tuple(out[:count])


def convolve(
    x: Float[Array, "S D"],
    taps: Float[Array, "D k"],
    bias: Float[Array, " D"] | None,
    ancestors: tuple[Int[Array, " S"], ...],
) -> Float[Array, "S D"]:
    """Causal depthwise convolution along each path.

    y[s] = bias + Σ_d taps[:, k-1-d] x[d-th ancestor of s], over the ancestors that s has.

    Args:
        ancestors: at least k - 1, see `PathIndex` and `ChunkIndex`.
    """
    k = taps.shape[1]
    y = x * taps[:, k - 1]
    for back in range(1, k):
        above = jnp.take(x, ancestors[back - 1], axis=0, mode="fill", fill_value=0)
        y += above * taps[:, k - 1 - back]
    return y if bias is None else y + bias


def path_decay(
    log_decay: Float[Array, "N H C"], seen: Bool[Array, "N C C"]
) -> tuple[Float[Array, "N H C C"], Float[Array, "N H C"]]:
    """Decay between two slots of a chunk, and from its start to each slot.

    Logarithms are summed over the path between two slots: the difference of their sums from the
    start would lose small decays behind large ones.

    Args:
        log_decay: per token, at most 0.

    Returns:
        Decay from slot j to slot i, 0 if i does not see j; and the decay from the chunk's start,
        that of the slot included.
    """
    own, below = seen.astype(jnp.float32), _strict(seen).astype(jnp.float32)
    between = dot("nhik,nkj->nhij", own[:, None] * log_decay[:, :, None, :], below)
    decay = jnp.where(seen[:, None], jnp.exp(between), 0.0)
    return decay, jnp.exp(dot("nij,nhj->nhi", own, log_decay))


def _strict(seen: Bool[Array, "N C C"]) -> Bool[Array, "N C C"]:
    return seen & ~jnp.eye(seen.shape[-1], dtype=bool)


def decay_to(
    log_decay: Float[Array, "W H C"], seen: Bool[Array, "W C C"], slot: Int[Array, " W"]
) -> tuple[Float[Array, "W H C"], Float[Array, "W H"]]:
    """`path_decay` to one slot of each chunk."""
    row = seen[jnp.arange(len(slot)), slot]
    on_path = row.astype(jnp.float32)[:, None] * log_decay
    between = dot("whk,wkj->whj", on_path, _strict(seen).astype(jnp.float32))
    return jnp.where(row[:, None], jnp.exp(between), 0.0), jnp.exp(on_path.sum(-1))


def exit_states(
    index: ChunkIndex,
    shape: tuple[int, ...],
    step: Callable[[Array, Array, Array], Array],
) -> Array:
    """States [1 + N + W, *shape], float32: the initial one, zero, and those of the exits.

    Args:
        step: (chunk [W], slot within it [W], states at the chunks' starts [W, *shape]) -> states
            at those slots.
    """
    chunks = index.chunks
    n_chunks, size = chunks.token.shape
    width = chunks.exit.shape[0] - n_chunks
    states = jnp.zeros((1 + n_chunks + width, *shape))

    def one(k: Array, states: Array) -> Array:
        first = chunks.step[k]
        exits = lax.dynamic_slice_in_dim(chunks.exit, first, width)
        chunk, slot = exits // size, exits % size
        new = step(chunk, slot, states[chunks.entry[chunk]])
        return lax.dynamic_update_slice_in_dim(states, new, 1 + first, 0)

    return lax.fori_loop(0, chunks.n_steps, one, states)


def map_chunks(function: Callable[..., Any], arrays: Any) -> Any:
    """`function` of blocks of chunks: the arrays' first axes are all N."""
    n_chunks = jax.tree.leaves(arrays)[0].shape[0]
    block = next(n for n in range(min(CHUNKS_AT_ONCE, n_chunks), 0, -1) if n_chunks % n == 0)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), arrays)
    out = lax.map(lambda block: function(*block), blocks)
    return jax.tree.map(lambda x: x.reshape(n_chunks, *x.shape[2:]), out)


def with_states(
    index: ChunkIndex,
    states: Array,
    local: Callable[..., Array],
    further: Callable[..., Array],
    arrays: tuple[Array, ...],
) -> Array:
    """Outputs of all chunks; blocks of chunks that start from zero skip the products with states.

    Args:
        local: of a block's arrays: outputs [n, ...] of chunks that start from zero.
        further: (start states [n, ...], *arrays) -> outputs of any chunks.
    """

    def block(entry: Array, *arrays: Array) -> Array:
        return lax.cond(
            jnp.any(entry > 0),
            lambda: further(states[entry], *arrays),
            lambda: local(*arrays),
        )

    out: Array = map_chunks(block, (index.chunks.entry, *arrays))
    return out
