"""The LM head in blocks of vocabulary columns, in XLA's operations.

The measure "rank" compares the target's logit with all others, so it needs that logit before the
pass, in the bits that the pass itself computes: columns with equal weights then have equal logits.
The target's logit is first guessed, from a product of the same shape, and the pass returns the
logit that it computed for the target. If the two differ, the pass is repeated with the latter.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.lm_head.sums import (
    LOWEST,
    SQUARE_MEASURES,
    VARIANCE_MEASURES,
    Sums,
    TargetRank,
    empty_top_k,
    mean_below,
    merge_top_k,
    rescale_squares,
    squares,
    transform,
)
from jaxscore.device.rows import Unembedding


class Target(NamedTuple):
    """Column of each position's target and its logit; another shard's column is outside 0..V-1."""

    column: Int[Array, " Q"]
    z: Float[Array, " Q"]


def vary_like(tree: Any, like: Any) -> Any:
    """The arrays as varying over each mesh axis over which an array of `like` varies.

    `shard_map` checks that the state of a loop varies over the same axes in each step, and counts
    constants as equal on all shards. A no-op outside it, and inside it without that check.
    """

    def varying(leaf: Any) -> frozenset[str]:
        return jax.typeof(leaf).manual_axis_type.varying

    axes = frozenset[str]().union(*(varying(leaf) for leaf in jax.tree.leaves(like)))

    def vary(leaf: Any) -> Any:
        missing = tuple(sorted(axes - varying(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(vary, tree)


def sum_columns(
    hidden_QD: Float[Array, "Q D"],
    head: Unembedding,
    top: int = 0,
    measures: Collection[str] = (),
    target: Target | None = None,
) -> Sums:
    """Sums at each position over this shard's columns.

    Args:
        hidden_QD: final hidden states.
        head: the model's LM head.
        top: tokens to rank.
        measures: names in `sums.MEASURES`.
        target: of the measure "rank".
    """
    return _pass(hidden_QD, head, top, measures, target, keep_logits=False)[0]


def with_logits(
    hidden_QD: Float[Array, "Q D"], head: Unembedding
) -> tuple[Sums, Float[Array, "B Q C"]]:
    """`sum_columns`, and the logits of each of its B blocks of columns: 4 Q V bytes."""
    return _pass(hidden_QD, head, 0, (), None, keep_logits=True)


def block_starts(head: Unembedding) -> Int[Array, " B"]:
    """First column of each block of columns."""
    V = head.weight.shape[0]
    return jnp.arange(0, V, min(V, head.backend.lm_head_columns), dtype=jnp.int32)


def block_columns(
    head: Unembedding, first: Int[Array, ""]
) -> tuple[Int[Array, " C"], Bool[Array, "1 C"]]:
    """Columns of a block, and a mask of those that no earlier block has.

    The last block is moved back inside the table: padding the table would copy it.

    Args:
        first: one of `block_starts`.
    """
    V = head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)
    columns = jnp.minimum(first, V - block) + jnp.arange(block, dtype=jnp.int32)
    return columns, (columns >= first)[None, :]


def _pass(
    hidden_QD: Array,
    head: Unembedding,
    top: int,
    measures: Collection[str],
    target: Target | None,
    *,
    keep_logits: bool,
) -> tuple[Sums, Any]:
    """The sums, and the logits of each block if they are to be kept."""
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)

    def step(carry: Sums, first: Array) -> tuple[Sums, Any]:
        m, s0, s1, s2, best, ranked, s3, s4, place = carry
        columns, fresh = block_columns(head, first)
        start = columns[0]
        computed = block_logits(hidden_QD, head, start, block)

        def only_fresh(x: Array, other: float) -> Array:
            return jnp.where(fresh, x, other) if V % block else x  # each block is fresh as a whole

        z = only_fresh(computed, -jnp.inf)  # the others then have a probability of 0
        if ranked is None:
            block_max = z.max(axis=1)
        else:  # its first one is the maximum, so that both are the same bits
            ranked = merge_top_k(ranked, computed, start, fresh)
            block_max = ranked.z[:, 0]
        new_m = jnp.maximum(m, block_max)
        below = z - new_m[:, None]
        weights = jnp.exp(below)
        rise, shrink = m - new_m, jnp.exp(m - new_m)
        # A column of probability 0 adds nothing, even if its logit is minus infinity.
        added = jnp.where(weights > 0, weights * below, 0.0)
        if s4 is not None:
            s4 = shrink * shrink * s4 + (weights * weights).sum(axis=1)
        if place is not None:
            assert target is not None
            place = _update_rank(place, target, z, start, fresh)
        before = s0, s1
        s1 = shrink * (s1 + rise * s0) + added.sum(axis=1)
        s0 = shrink * s0 + weights.sum(axis=1)
        if s3 is not None:
            mean = mean_below(s0, s1)
            more = squares(below, mean[:, None]).sum(axis=1)
            s3 = rescale_squares(s3, before[1], before[0], rise, mean) + more
        s2 = s2 + first.astype(jnp.float32) * rise + only_fresh(below, 0.0).sum(axis=1)
        if ranked is None:
            block_best = _lowest_column(z == block_max[:, None], columns, V)
            best = jnp.where(block_max > m, block_best, best)
        else:
            best = ranked.id[:, 0]
        sums = Sums(new_m, s0, s1, s2, best, ranked, s3, s4, place)
        return sums, computed if keep_logits else None

    start = vary_like(empty_sums(Q, head, top, measures), (hidden_QD, head.weight))
    return lax.scan(step, start, block_starts(head))


def _lowest_column(
    is_largest: Bool[Array, "Q C"], columns: Int[Array, " C"], n_columns: int
) -> Int[Array, " Q"]:
    """The lowest column with the maximum, as torch.argmax.

    jnp.argmax, a variadic reduction, costs as much as all the other elementwise work, and on the
    CPU a minimum of integers more than one of floats, which are exact up to 2^24.
    """
    numbers = columns.astype(jnp.float32) if n_columns <= 1 << 24 else columns
    return jnp.where(is_largest, numbers[None, :], n_columns).min(axis=1).astype(jnp.int32)


def empty_sums(n_positions: int, head: Unembedding, top: int, measures: Collection[str]) -> Sums:
    """Sums before the first column."""
    zero, none = jnp.zeros(n_positions, jnp.float32), jnp.zeros(n_positions, jnp.int32)
    lowest = jnp.full(n_positions, LOWEST, jnp.float32)
    return Sums(
        lowest,
        zero,
        zero,
        zero,
        none,
        empty_top_k(n_positions, head, top),
        zero if VARIANCE_MEASURES & {*measures} else None,
        zero if SQUARE_MEASURES & {*measures} else None,
        TargetRank(none, zero) if "rank" in measures else None,
    )


def _update_rank(
    place: TargetRank, target: Target, z: Array, start: Array, fresh: Array
) -> TargetRank:
    """The rank after a block of columns, whose z is minus infinity where they are not fresh."""
    block = z.shape[1]
    at = target.column - start
    here = (at >= 0) & (at < block)
    at = jnp.where(here, at, 0)
    # Columns that a moved-back block shares with an earlier one count once.
    here &= jnp.broadcast_to(fresh, (1, block))[0, at]
    found = jnp.where(here, jnp.take_along_axis(z, at[:, None], axis=1)[:, 0], place.found)
    above = (z > target.z[:, None]).sum(axis=1, dtype=jnp.int32)
    return TargetRank(place.above + above, found)


def all_logits(hidden_BD: Float[Array, "B D"], head: Unembedding) -> Float[Array, "B V"]:
    """All logits [B, V] of a few hidden states."""
    B, V = hidden_BD.shape[0], head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)

    def step(out: Array, first: Array) -> tuple[Array, None]:
        start = jnp.minimum(first, V - block)
        z = block_logits(hidden_BD, head, start, block)
        return lax.dynamic_update_slice_in_dim(out, z, start, 1), None

    own = lax.scan(step, jnp.zeros((B, V), jnp.float32), block_starts(head))[0]
    return own if head.split is None else lax.all_gather(own, head.split, axis=1, tiled=True)


def block_logits(
    hidden_QD: Float[Array, "Q D"], head: Unembedding, start: Int[Array, ""], block: int
) -> Float[Array, "Q C"]:
    """Logits of `block` columns from `start` on."""
    part = from_storage(lax.dynamic_slice_in_dim(head.weight, start, block))
    bias = None if head.bias is None else lax.dynamic_slice_in_dim(head.bias, start, block)
    return transform(dot_last(hidden_QD, part), bias, head.scale, head.softcap)


# The second pass compares with the logits of the first, which agree wherever a product gives the
# same bits each time. On the CPU the guess already agrees, and there is one pass.
PASSES = 4
GUESSED = 512  # positions whose targets' logits are guessed at a time, each by as many products


def sums_with_rank(
    hidden_QD: Float[Array, "Q D"],
    token_Q: Int[Array, " Q"],
    head: Unembedding,
    top: int,
    measures: tuple[str, ...],
) -> Sums:
    """`sum_columns` with the measure "rank".

    Args:
        token_Q: target of each position, an id of the whole vocabulary.
        hidden_QD, head, top, measures: see `sum_columns`.
    """
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    column = token_Q if head.split is None else token_Q - lax.axis_index(head.split) * V

    def step(state: Any) -> Any:
        n, _, z, _ = state
        sums = sum_columns(hidden_QD, head, top, measures, Target(column, z))
        assert sums.place is not None
        found = sums.place.found if head.split is None else lax.psum(sums.place.found, head.split)
        settled = jnp.all((found == z) | jnp.isnan(found))
        return n + 1, settled, found, sums

    def unsettled(state: Any) -> Array:
        n, settled, _, _ = state
        return (n < PASSES) & ~settled

    first = _guess(hidden_QD, column, head)
    state = jnp.int32(0), jnp.zeros((), bool), first, empty_sums(Q, head, top, measures)
    return lax.while_loop(unsettled, step, state)[3]


def _guess(hidden_QD: Array, column_Q: Array, head: Unembedding) -> Array:
    """Logit of each position's target: the diagonal of products of some targets and positions."""
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    here = (column_Q >= 0) & (column_Q < V)
    row_Q = jnp.where(here, column_Q, 0)
    block = next(n for n in range(min(Q, GUESSED), 0, -1) if Q % n == 0)

    def products(block: tuple[Array, Array]) -> Array:
        hidden_BD, row_B = block
        return jnp.diagonal(dot_last(hidden_BD, from_storage(head.weight[row_B])))

    blocks = hidden_QD.reshape(-1, block, hidden_QD.shape[1]), row_Q.reshape(-1, block)
    bias = None if head.bias is None else head.bias[row_Q]
    z = transform(lax.map(products, blocks).reshape(-1), bias, head.scale, head.softcap)
    return z if head.split is None else lax.psum(jnp.where(here, z, 0.0), head.split)
