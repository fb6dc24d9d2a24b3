"""Ancestors along paths and chunks of a batch, for recurrent layers.

All tokens of a chunk start from one state (`rows.Chunks`). Inside a chunk, the ancestor mask
replaces the triangular mask of a single text, and decay is summed along paths. Between chunks, only
the states at exits are computed, level by level.

Rows may continue earlier tokens: a prefix that all rows share, or one text per row. Roots then
start from the state after these tokens, the last of which are their ancestors. An ancestor below S
is an index of the S tokens (or slots). From S on, it is an index of the k - 1 latest convolution
inputs of each of n start states, the latest first. S + n (k - 1) marks no ancestor.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxscore.device.rows import Chunks, Paths

LEAST_DECAY = -128.0  # lower bound of a token's log decay; exp is 0 in float32


def dot(spec: str, a: Array, b: Array) -> Array:
    """Compute a float32 einsum at the highest precision, since similar keys amplify the rounding
    errors of the delta rule."""
    return jnp.einsum(
        spec, a, b, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


@dataclasses.dataclass(frozen=True)
class ChunkIndex:
    """N chunks of C slots of a batch, and derived indices that all layers share.

    Attributes:
        chunks: the chunks from the host.
        slot: [T], the slot of each token among all N * C; N * C for padding.
        seen: [N, C, C], True if j is i or an ancestor of i. False in empty slots.
        ancestors: the slots [N * C] of each slot's parent, grandparent, …; see above.
        n_starts: the number of start states: 1 for all rows, or one per row.
        kept: [E], the slots whose states the layer returns; None if it returns none.
        chunks_at_once: see `backends.Backend`.
        by_products: see `backends.Backend.convolves_by_products`.
    """

    chunks: Chunks
    slot: Int[Array, " T"]
    seen: Bool[Array, "N C C"]
    ancestors: tuple[Int[Array, " NC"], ...]
    n_starts: int = 1
    kept: Int[Array, " E"] | None = None
    chunks_at_once: int | None = None
    by_products: bool = False

    @property
    def at_once(self) -> int:
        """The number of chunks computed in parallel: all of them in steps of one token."""
        n_chunks, size = self.chunks.token.shape
        return n_chunks if self.chunks_at_once is None or size == 1 else self.chunks_at_once

    def gather(self, x: Shaped[Array, "T *D"]) -> Shaped[Array, "N C *D"]:
        """Return the values of each slot's token; zero in empty slots."""
        return jnp.take(x, self.chunks.token, axis=0, mode="fill", fill_value=0)

    def scatter(self, y: Array) -> Array:
        """Return the values [T, ...] of tokens, given those of slots [N, C, ...]; 0 for padding."""
        flat = y.reshape(-1, *y.shape[2:])
        return jnp.take(flat, self.slot, axis=0, mode="fill", fill_value=0)


@dataclasses.dataclass(frozen=True)
class PathIndex:
    """Ancestors and chunks of a batch.

    Attributes:
        ancestors: the tokens [T] of each token's parent, grandparent, …; see above.
        subtree_end: [R, L], see `rows.Rows`.
        chunks: None if no layer carries a state.
        kept: [E], the tokens whose states layers return; None if they return none.
    """

    ancestors: tuple[Int[Array, " T"], ...]
    subtree_end: Int[Array, "R L"]
    chunks: ChunkIndex | None
    kept: Int[Array, " E"] | None = None

    def reached(self, broken: Bool[Array, " T"]) -> Bool[Array, " T"]:
        """Return True for broken tokens and their descendants."""
        R, L = self.subtree_end.shape
        broken_RL = broken.reshape(R, L).astype(jnp.int32)
        change = jnp.pad(broken_RL, ((0, 0), (0, 1)))
        change = change.at[jnp.arange(R)[:, None], self.subtree_end].add(-broken_RL)
        return (jnp.cumsum(change, axis=1)[:, :L] > 0).reshape(-1)


def path_index(
    paths: Paths,
    subtree_end: Int[Array, "R L"],
    n_ancestors: int,
    n_starts: int = 1,
    kept: Int[Array, " E"] | None = None,
    chunks_at_once: int | None = None,
    by_products: bool = False,
) -> PathIndex:
    """Return the path index of a batch.

    Args:
        paths: the paths of the batch.
        subtree_end: see `rows.Rows`.
        n_ancestors: the kernel size of the layers' convolutions minus one.
        n_starts, kept, chunks_at_once, by_products: see `ChunkIndex` and `PathIndex`.
    """
    T, (R, L) = paths.parent.shape[0], subtree_end.shape
    row = jnp.arange(T, dtype=jnp.int32) // L if n_starts > 1 else 0
    parent = jnp.where(paths.parent == T, T + row * n_ancestors, paths.parent)
    ancestors = _ancestors(parent, n_ancestors, n_starts)
    if paths.chunks is None:
        return PathIndex(ancestors, subtree_end, None, kept)
    token = paths.chunks.token
    n_slots = token.size
    slot_of = jnp.full(T + 1, n_slots, jnp.int32)
    slot_of = slot_of.at[token.reshape(-1)].set(jnp.arange(n_slots, dtype=jnp.int32))
    slot_of = slot_of.at[T].set(n_slots)
    slot_parent = jnp.append(parent, T + n_starts * n_ancestors)[token.reshape(-1)]
    slot_parent = jnp.where(slot_parent < T, slot_of[slot_parent], slot_parent - T + n_slots)
    subtree_end_of_slot = (subtree_end + L * jnp.arange(R, dtype=jnp.int32)[:, None]).reshape(-1)
    # Empty slots see no slots and are not seen.
    subtree_end_of_slot = jnp.append(subtree_end_of_slot, 0)[token]
    i, j = token[:, :, None], token[:, None, :]
    seen = (j <= i) & (i < subtree_end_of_slot[:, None, :])
    index = ChunkIndex(
        paths.chunks,
        slot_of[:T],
        seen,
        _ancestors(slot_parent, n_ancestors, n_starts),
        n_starts,
        None if kept is None else slot_of[kept],
        chunks_at_once,
        by_products,
    )
    return PathIndex(ancestors, subtree_end, index, kept)


def _ancestors(parent: Int[Array, " S"], count: int, n_starts: int) -> tuple[Array, ...]:
    if not count:
        return ()
    start_inputs = parent.shape[0] + jnp.arange(n_starts * count, dtype=jnp.int32)
    none = parent.shape[0] + n_starts * count
    next_start_inputs = jnp.where(
        jnp.arange(n_starts * count) % count < count - 1, start_inputs + 1, none
    )
    parent_of = jnp.concatenate([parent, next_start_inputs, jnp.full(1, none)]).astype(jnp.int32)
    out = [parent]
    for _ in range(count - 1):
        out.append(parent_of[out[-1]])
    return tuple(out)


def convolve(
    x: Float[Array, "S D"],
    taps: Float[Array, "D k"],
    bias: Float[Array, " D"] | None,
    ancestors: tuple[Int[Array, " S"], ...],
    before: Float[Array, "n D k1"] | None = None,
    dilation: int = 1,
) -> Float[Array, "S D"]:
    """Compute a causal depthwise convolution along each path.

    y[s] = bias + Σ_d taps[:, k-1-d] x[(d dilation)-th ancestor of s], over existing ancestors.

    Args:
        x: the inputs of tokens or slots.
        taps: the kernel; the last tap multiplies the current token.
        bias: the bias, or None.
        ancestors: at least (k - 1) dilation, see `PathIndex` and `ChunkIndex`.
        before: inputs before the rows, from `last_inputs`; None is zeros.
        dilation: the distance between taps.
    """
    k, inputs = taps.shape[1], with_inputs_before(x, before)
    y = x * taps[:, k - 1]
    for distance in range(1, k):
        ancestor = ancestors[distance * dilation - 1]
        shifted = jnp.take(inputs, ancestor, axis=0, mode="fill", fill_value=0)
        y += shifted * taps[:, k - 1 - distance]
    return y if bias is None else y + bias


def convolve_chunks(
    x: Float[Array, "N C D"],
    taps: Float[Array, "D k"],
    bias: Float[Array, " D"] | None,
    index: ChunkIndex,
    before: Float[Array, "n D k1"] | None = None,
) -> Float[Array, "N C D"]:
    """Compute `convolve` of all slots by matrix products, for devices with slow gathers.

    A 0/1 matrix selects ancestors among a chunk's slots and the path of its entry. Since 0 * NaN
    would spread a NaN to other texts, a non-finite input makes only its own output NaN, and the
    recurrence spreads it to descendants.

    Args:
        taps: the kernel, of size k at least 2.
        before: see `convolve`.
    """
    (N, C, D), k = x.shape, taps.shape[1]
    ancestors = jnp.stack(index.ancestors[: k - 1]).reshape(k - 1, N, C)
    outside = ancestors[
        :, :, 0
    ].T  # the first slot of a chunk continues its entry, as all its roots do
    all_inputs = with_inputs_before(x.reshape(-1, D), before)
    outside_inputs = jnp.take(all_inputs, outside, axis=0, mode="fill", fill_value=0)
    slots = jnp.arange(N * C, dtype=jnp.int32).reshape(N, C)
    is_ancestor = ancestors[..., None] == jnp.concatenate([slots, outside], 1)[:, None]
    inputs = jnp.concatenate([x, outside_inputs], 1)
    inputs = jnp.where(jnp.isfinite(inputs), inputs, 0.0)
    y = jnp.where(jnp.isfinite(x), x * taps[:, k - 1], jnp.nan)
    for distance in range(1, k):
        selected = dot("nij,njd->nid", is_ancestor[distance - 1].astype(x.dtype), inputs)
        y += selected * taps[:, k - 1 - distance]
    return y if bias is None else y + bias


def with_inputs_before(x: Float[Array, "S D"], before: Array | None) -> Float[Array, "S2 D"]:
    """Append the inputs before the rows to the inputs of a convolution."""
    if before is None:
        return x
    return jnp.concatenate([x, before.swapaxes(1, 2).reshape(-1, x.shape[-1])])


def last_inputs(
    x: Float[Array, "S D"],
    ancestors: tuple[Int[Array, " S"], ...],
    kept: Int[Array, " E"],
    before: Float[Array, "n D k1"] | None = None,
) -> Float[Array, "E D k1"]:
    """Return the inputs of a convolution at kept tokens and their next k - 2 ancestors, the latest
    first.

    Args:
        x: the inputs of tokens or slots.
        ancestors: k - 1 arrays of ancestors, with k at least 2.
        kept: the kept tokens or slots.
        before: see `convolve`.
    """
    inputs = with_inputs_before(x, before)
    indices = [kept, *(ancestor[kept] for ancestor in ancestors[:-1])]
    return jnp.stack(
        [jnp.take(inputs, n, axis=0, mode="fill", fill_value=0) for n in indices], axis=2
    )


def path_decay(
    log_decay: Float[Array, "N H C"], seen: Bool[Array, "N C C"]
) -> tuple[Float[Array, "N H C C"], Float[Array, "N H C"]]:
    """Return the decay between slots of a chunk, and from its start to each slot.

    Logarithms are summed over the path between two slots. Differences of sums from the start would
    lose small decays after large ones.

    Args:
        log_decay: log decay per token, at most 0.
        seen: see `ChunkIndex`.

    Returns:
        The decay from slot j to slot i, 0 if i does not see j; and the decay from the chunk's start
        to each slot, inclusive.
    """
    seen_f32, strictly_seen = seen.astype(jnp.float32), _without_diagonal(seen).astype(jnp.float32)
    between = dot("nhik,nkj->nhij", seen_f32[:, None] * log_decay[:, :, None, :], strictly_seen)
    decay = jnp.where(seen[:, None], jnp.exp(between), 0.0)
    return decay, jnp.exp(dot("nij,nhj->nhi", seen_f32, log_decay))


def channel_sums(
    log_decay: Float[Array, "N H C K"], seen: Bool[Array, "N C C"]
) -> tuple[Float[Array, "N H C K"], Float[Array, "N H C K"]]:
    """Return the log decay of each channel from a chunk's start to each slot, as two terms.

    Sums of the coarse terms are exact in float32, so differences of sums keep the digits of small
    decays after large ones. Below `LEAST_DECAY` a state decays to 0.

    Args:
        log_decay: log decay per token, at most 0.
        seen: see `ChunkIndex`.
    """
    seen_f32 = seen.astype(jnp.float32)
    log_decay = jnp.maximum(log_decay, LEAST_DECAY)
    step = 2.0 ** math.ceil(math.log2(-LEAST_DECAY * seen.shape[-1]) - 24)
    coarse = jnp.round(log_decay / step) * step
    terms = coarse, log_decay - coarse
    first, second = (dot("nij,nhjk->nhik", seen_f32, term) for term in terms)
    return first, second


def channel_decay(
    start: tuple[Array, Array], stop: tuple[Array, Array], seen: Bool[Array, "..."]
) -> Array:
    """Return the decay of each channel between two slots, given `channel_sums`; 0 if not `seen`."""
    between = (stop[0] - start[0]) + (stop[1] - start[1])
    return jnp.exp(jnp.where(seen[..., None], between, -jnp.inf))


def _without_diagonal(seen: Bool[Array, "N C C"]) -> Bool[Array, "N C C"]:
    return seen & ~jnp.eye(seen.shape[-1], dtype=bool)


def decay_to(
    log_decay: Float[Array, "W H C"], seen: Bool[Array, "W C C"], slot: Int[Array, " W"]
) -> tuple[Float[Array, "W H C"], Float[Array, "W H"]]:
    """Return `path_decay` to one slot of each chunk."""
    seen_by_slot = seen[jnp.arange(len(slot)), slot]
    on_path = seen_by_slot.astype(jnp.float32)[:, None] * log_decay
    between = dot("whk,wkj->whj", on_path, _without_diagonal(seen).astype(jnp.float32))
    return jnp.where(seen_by_slot[:, None], jnp.exp(between), 0.0), jnp.exp(on_path.sum(-1))


def exit_states(
    index: ChunkIndex,
    start: Float[Array, "n ..."] | None,
    shape: tuple[int, ...],
    step: Callable[[Array, Array, Array], Array],
) -> tuple[Array, Array | None]:
    """Compute the states that chunks start from, and the states at the kept slots.

    Args:
        index: the chunks.
        start: `index.n_starts` start states; None is zeros.
        shape: the shape of a state.
        step: (chunk [W], slot within it [W], states at the chunks' starts [W, *shape]) -> states
            at those slots.

    Returns:
        The start states, then the states at exits, [n + N + W, *shape], float32; and the states at
        the kept slots [E, *shape], or None.
    """
    chunks, n_starts = index.chunks, index.n_starts
    n_chunks, size = chunks.token.shape
    width = chunks.exit.shape[0] - n_chunks
    states = jnp.zeros((n_starts, *shape)) if start is None else start

    def states_at(slots: Array, states: Array) -> Array:
        chunk, slot = slots // size, slots % size
        return step(chunk, slot, states[chunks.entry[chunk]])

    def add_step(k: Array, states: Array) -> Array:
        first = chunks.step[k]
        new = states_at(lax.dynamic_slice_in_dim(chunks.exit, first, width), states)
        return lax.dynamic_update_slice_in_dim(states, new, n_starts + first, 0)

    if width:
        states = jnp.concatenate([states, jnp.zeros((n_chunks + width, *shape))])
        states = lax.fori_loop(0, chunks.n_steps, add_step, states)
    if index.kept is None:
        return states, None
    return states, map_chunks(lambda slots: states_at(slots, states), (index.kept,), index.at_once)


def map_chunks(function: Callable[..., Any], arrays: Any, at_once: int) -> Any:
    """Map a function over blocks of at most `at_once` chunks, along the arrays' first axis N."""
    n_chunks = jax.tree.leaves(arrays)[0].shape[0]
    block = next(n for n in range(min(at_once, n_chunks), 0, -1) if n_chunks % n == 0)
    if block == n_chunks:
        return function(*arrays)
    blocks = jax.tree.map(lambda x: x.reshape(-1, block, *x.shape[1:]), arrays)
    out = lax.map(lambda block: function(*block), blocks)
    return jax.tree.map(lambda x: x.reshape(n_chunks, *x.shape[2:]), out)


def with_states(
    index: ChunkIndex,
    start: Array | None,
    states: Array,
    from_zero: Callable[..., Array],
    from_states: Callable[..., Array],
    arrays: tuple[Array, ...],
) -> Array:
    """Compute the outputs of all chunks; chunks that start from zero skip products with states.

    Args:
        start, states: see `exit_states`.
        from_zero: (*arrays) -> outputs [n, ...] of chunks that start from zero.
        from_states: (start states [n, ...], *arrays) -> outputs of any chunks.
        arrays: inputs of the chunks, [N, ...] each.
    """

    def block(entry: Array, *arrays: Array) -> Array:
        if start is not None:
            return from_states(states[entry], *arrays)
        return lax.cond(
            jnp.any(entry > 0),
            lambda: from_states(states[entry], *arrays),
            lambda: from_zero(*arrays),
        )

    out: Array = map_chunks(block, (index.chunks.entry, *arrays), index.at_once)
    return out
