"""A batch's tokens as recurrent layers take them: ancestors along paths, and chunks.

All tokens of a chunk start from one state (`rows.Chunks`). Inside a chunk, the ancestor mask takes
the place of the triangular mask of a single text, and decay is summed along paths. Between chunks,
only the states at exits are computed, level by level.

Rows may continue what precedes them: a prefix that all rows share, or one text per row. Its states
are then those that roots start from, and its last tokens are their ancestors. Ancestors are indices
of the S tokens (or slots), and behind these of n start states with k - 1 convolution inputs each,
the latest first; S + n (k - 1) and more is none.
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

LEAST_DECAY = -128.0  # log decay of one token whose factor float32 rounds to 0


def dot(spec: str, a: Array, b: Array) -> Array:
    """float32 product at the highest precision: similar keys amplify rounding of the delta rule."""
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
        ancestors: [N * C] each, slot of each slot's parent, its parent, …; see above.
        n_starts: initial states: 1 for all rows, or one per row.
        kept: [E] slots whose states leave the layer; None if none do.
        most: see `backends.Backend.chunks_at_once`.
        by_products: see `backends.Backend.convolves_by_products`.
    """

    chunks: Chunks
    slot: Int[Array, " T"]
    seen: Bool[Array, "N C C"]
    ancestors: tuple[Int[Array, " NC"], ...]
    n_starts: int = 1
    kept: Int[Array, " E"] | None = None
    most: int | None = None
    by_products: bool = False

    @property
    def at_once(self) -> int:
        """Chunks that are computed side by side: in steps of one token all of them."""
        n_chunks, size = self.chunks.token.shape
        return n_chunks if self.most is None or size == 1 else self.most

    def gather(self, x: Shaped[Array, "T *D"]) -> Shaped[Array, "N C *D"]:
        """Values of each slot's token; zero in empty slots."""
        return jnp.take(x, self.chunks.token, axis=0, mode="fill", fill_value=0)

    def scatter(self, y: Array) -> Array:
        """Values [T, ...] of each token from all slots [N, C, ...]; zero for padding."""
        flat = y.reshape(-1, *y.shape[2:])
        return jnp.take(flat, self.slot, axis=0, mode="fill", fill_value=0)


@dataclasses.dataclass(frozen=True)
class PathIndex:
    """Ancestors and chunks of a batch.

    Attributes:
        ancestors: [T] each, parent of each token, its parent, …; see above.
        subtree_end: [R, L], see `rows.Rows`.
        chunks: None if no layer carries a state.
        kept: [E] tokens whose states leave the layer; None if none do.
    """

    ancestors: tuple[Int[Array, " T"], ...]
    subtree_end: Int[Array, "R L"]
    chunks: ChunkIndex | None
    kept: Int[Array, " E"] | None = None

    def reached(self, broken: Bool[Array, " T"]) -> Bool[Array, " T"]:
        """Tokens whose path holds a broken token."""
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
    most: int | None = None,
    by_products: bool = False,
) -> PathIndex:
    """Index of a batch.

    Args:
        subtree_end: see `rows.Rows`.
        n_ancestors: taps of the layers' convolutions less one.
        n_starts, kept, most, by_products: see `ChunkIndex` and `PathIndex`.
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
    above = jnp.append(parent, T + n_starts * n_ancestors)[token.reshape(-1)]
    above = jnp.where(above < T, slot_of[above], above - T + n_slots)
    end = (subtree_end + L * jnp.arange(R, dtype=jnp.int32)[:, None]).reshape(-1)
    end = jnp.append(end, 0)[token]  # nothing sees an empty slot, and it sees nothing
    i, j = token[:, :, None], token[:, None, :]
    seen = (j <= i) & (i < end[:, None, :])
    index = ChunkIndex(
        paths.chunks,
        slot_of[:T],
        seen,
        _ancestors(above, n_ancestors, n_starts),
        n_starts,
        None if kept is None else slot_of[kept],
        most,
        by_products,
    )
    return PathIndex(ancestors, subtree_end, index, kept)


def _ancestors(parent: Int[Array, " S"], count: int, n_starts: int) -> tuple[Array, ...]:
    if not count:
        return ()
    before = parent.shape[0] + jnp.arange(n_starts * count, dtype=jnp.int32)
    none = parent.shape[0] + n_starts * count
    next_before = jnp.where(jnp.arange(n_starts * count) % count < count - 1, before + 1, none)
    above = jnp.concatenate([parent, next_before, jnp.full(1, none)]).astype(jnp.int32)
    out = [parent]
    for _ in range(count - 1):
        out.append(above[out[-1]])
    return tuple(out)


def convolve(
    x: Float[Array, "S D"],
    taps: Float[Array, "D k"],
    bias: Float[Array, " D"] | None,
    ancestors: tuple[Int[Array, " S"], ...],
    before: Float[Array, "n D k1"] | None = None,
    dilation: int = 1,
) -> Float[Array, "S D"]:
    """Causal depthwise convolution along each path.

    y[s] = bias + Σ_d taps[:, k-1-d] x[(d dilation)-th ancestor of s], over existing ancestors.

    Args:
        ancestors: at least (k - 1) dilation, see `PathIndex` and `ChunkIndex`.
        before: inputs before the rows, as `last_inputs` returns them; None is zeros.
    """
    k, given = taps.shape[1], with_inputs_before(x, before)
    y = x * taps[:, k - 1]
    for back in range(1, k):
        at = ancestors[back * dilation - 1]
        above = jnp.take(given, at, axis=0, mode="fill", fill_value=0)
        y += above * taps[:, k - 1 - back]
    return y if bias is None else y + bias


def convolve_chunks(
    x: Float[Array, "N C D"],
    taps: Float[Array, "D k"],
    bias: Float[Array, " D"] | None,
    index: ChunkIndex,
    before: Float[Array, "n D k1"] | None = None,
) -> Float[Array, "N C D"]:
    """`convolve` of all slots by products, for devices on which gathers of many rows are slow.

    A matrix of zeros and ones selects ancestors among a chunk's slots and its entry's path. It
    would carry a NaN to other texts, as 0 * NaN. So an input that is not finite makes only its own
    output NaN, and the recurrence carries that to what continues it.

    Args:
        taps: k of at least 2.
        before: see `convolve`.
    """
    (N, C, D), k = x.shape, taps.shape[1]
    ancestors = jnp.stack(index.ancestors[: k - 1]).reshape(k - 1, N, C)
    outside = ancestors[:, :, 0].T  # a chunk's first slot continues its entry, as all roots do
    given = with_inputs_before(x.reshape(-1, D), before)
    above = jnp.take(given, outside, axis=0, mode="fill", fill_value=0)
    slots = jnp.arange(N * C, dtype=jnp.int32).reshape(N, C)
    is_ancestor = ancestors[..., None] == jnp.concatenate([slots, outside], 1)[:, None]
    inputs = jnp.concatenate([x, above], 1)
    inputs = jnp.where(jnp.isfinite(inputs), inputs, 0.0)
    y = jnp.where(jnp.isfinite(x), x * taps[:, k - 1], jnp.nan)
    for back in range(1, k):
        selected = dot("nij,njd->nid", is_ancestor[back - 1].astype(x.dtype), inputs)
        y += selected * taps[:, k - 1 - back]
    return y if bias is None else y + bias


def with_inputs_before(x: Float[Array, "S D"], before: Array | None) -> Float[Array, "S2 D"]:
    """Inputs of a convolution, and those before the rows behind them."""
    if before is None:
        return x
    return jnp.concatenate([x, before.swapaxes(1, 2).reshape(-1, x.shape[-1])])


def last_inputs(
    x: Float[Array, "S D"],
    ancestors: tuple[Int[Array, " S"], ...],
    kept: Int[Array, " E"],
    before: Float[Array, "n D k1"] | None = None,
) -> Float[Array, "E D k1"]:
    """Inputs of a convolution at some tokens and their next k - 2 ancestors, the latest first.

    Args:
        ancestors: k - 1, with k at least 2.
        kept: tokens or slots.
        before: see `convolve`.
    """
    given = with_inputs_before(x, before)
    at = [kept, *(above[kept] for above in ancestors[:-1])]
    return jnp.stack([jnp.take(given, n, axis=0, mode="fill", fill_value=0) for n in at], axis=2)


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


def channel_sums(
    log_decay: Float[Array, "N H C K"], seen: Bool[Array, "N C C"]
) -> tuple[Float[Array, "N H C K"], Float[Array, "N H C K"]]:
    """Log decay of each channel from a chunk's start to each slot, in two parts.

    Sums of the first parts are exact in float32, so that differences of sums keep the digits of
    small decays behind large ones. Below `LEAST_DECAY` nothing is left of a state.

    Args:
        log_decay: per token, at most 0.
    """
    own = seen.astype(jnp.float32)
    log_decay = jnp.maximum(log_decay, LEAST_DECAY)
    step = 2.0 ** math.ceil(math.log2(-LEAST_DECAY * seen.shape[-1]) - 24)
    coarse = jnp.round(log_decay / step) * step
    parts = coarse, log_decay - coarse
    first, second = (dot("nij,nhjk->nhik", own, part) for part in parts)
    return first, second


def channel_decay(
    start: tuple[Array, Array], stop: tuple[Array, Array], seen: Bool[Array, "..."]
) -> Array:
    """Decay of each channel between two slots, by their `channel_sums`; 0 if not `seen`."""
    between = (stop[0] - start[0]) + (stop[1] - start[1])
    return jnp.exp(jnp.where(seen[..., None], between, -jnp.inf))


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
    start: Float[Array, "n ..."] | None,
    shape: tuple[int, ...],
    step: Callable[[Array, Array, Array], Array],
) -> tuple[Array, Array | None]:
    """States that chunks start from [n + N + W, *shape], float32: the initial ones and those of
    the exits; and states at the kept slots [E, *shape], or None.

    Args:
        start: initial states, `index.n_starts` of them; None is zeros.
        step: (chunk [W], slot within it [W], states at the chunks' starts [W, *shape]) -> states
            at those slots.
    """
    chunks, n_starts = index.chunks, index.n_starts
    n_chunks, size = chunks.token.shape
    width = chunks.exit.shape[0] - n_chunks
    states = jnp.zeros((n_starts, *shape)) if start is None else start

    def at(slots: Array, states: Array) -> Array:
        chunk, slot = slots // size, slots % size
        return step(chunk, slot, states[chunks.entry[chunk]])

    def one(k: Array, states: Array) -> Array:
        first = chunks.step[k]
        new = at(lax.dynamic_slice_in_dim(chunks.exit, first, width), states)
        return lax.dynamic_update_slice_in_dim(states, new, n_starts + first, 0)

    if width:
        states = jnp.concatenate([states, jnp.zeros((n_chunks + width, *shape))])
        states = lax.fori_loop(0, chunks.n_steps, one, states)
    if index.kept is None:
        return states, None
    return states, map_chunks(lambda slots: at(slots, states), (index.kept,), index.at_once)


def map_chunks(function: Callable[..., Any], arrays: Any, at_once: int) -> Any:
    """`function` of blocks of at most `at_once` chunks: the arrays' first axes are all N."""
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
    local: Callable[..., Array],
    further: Callable[..., Array],
    arrays: tuple[Array, ...],
) -> Array:
    """Outputs of all chunks; blocks of chunks that start from zero skip the products with states.

    Args:
        start, states: see `exit_states`.
        local: of a block's arrays: outputs [n, ...] of chunks that start from zero.
        further: (start states [n, ...], *arrays) -> outputs of any chunks.
    """

    def block(entry: Array, *arrays: Array) -> Array:
        if start is not None:
            return further(states[entry], *arrays)
        return lax.cond(
            jnp.any(entry > 0),
            lambda: further(states[entry], *arrays),
            lambda: local(*arrays),
        )

    out: Array = map_chunks(block, (index.chunks.entry, *arrays), index.at_once)
    return out
