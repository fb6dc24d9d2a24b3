"""The LM head in blocks of vocabulary columns, as XLA operations.

The measure "rank" compares the target's logit with all others, so a pass over the columns needs
that logit in advance, with the very bits that the pass computes. Columns with equal weights then
have equal logits. The target's logit is first guessed from a product of the same shape. The pass
returns the logit that it computed for the target and is repeated with it if the two differ.
"""

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.lm_head.sums import (
    LOWEST,
    SMALLEST,
    SQUARE_MEASURES,
    VARIANCE_MEASURES,
    ClassSums,
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
    """Targets of the measure "rank".

    Attributes:
        column: column of each position's target, outside 0..V-1 if another shard has it.
        z: the target's logit.
    """

    column: Int[Array, " Q"]
    z: Float[Array, " Q"]


def vary_like(tree: Any, like: Any) -> Any:
    """Mark arrays as varying over all mesh axes over which an array of `like` varies.

    `shard_map` checks that the state of a loop varies over the same axes in each step, and treats
    constants as equal on all shards. This is a no-op outside `shard_map` or without that check.
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
    """Compute the sums at each position over this shard's columns.

    Args:
        hidden_QD: final hidden states.
        head: the model's LM head.
        top: number of tokens to rank.
        measures: names in `sums.MEASURES`.
        target: targets for the measure "rank".
    """
    sums = _visit_columns(hidden_QD, head, top, measures, target, keep_logits=False)[0]
    if head.classes is None or sums.classes is None:
        return sums
    total = sums.classes.total
    computed = ClassSums(jnp.broadcast_to(sums.top[:, None], total.shape), total)
    is_small = (total < SMALLEST) & head.classes.any(axis=1)
    sum_again = functools.partial(_sum_classes, hidden_QD, head)
    return sums._replace(classes=lax.cond(is_small.any(), sum_again, lambda: computed))


def _sum_classes(hidden_QD: Float[Array, "Q D"], head: Unembedding) -> ClassSums:
    """Compute the sums of the classes relative to their own maxima, in another pass."""
    assert head.classes is not None
    V = head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)

    def step(classes: ClassSums, first: Array) -> tuple[ClassSums, None]:
        columns, fresh = block_columns(head, first)
        z = block_logits(hidden_QD, head, columns[0], block)

        def add(class_sums: Any) -> ClassSums:
            is_member, m, total = class_sums
            members = jnp.where(is_member & fresh, z, -jnp.inf)
            new_m = jnp.maximum(m, members.max(axis=1))
            added = jnp.exp(members - new_m[:, None]).sum(axis=1)
            return ClassSums(new_m, total * jnp.exp(m - new_m) + added)

        return lax.map(add, (_block_classes(head, columns[0], block), *classes)), None

    n, Q = head.classes.shape[0], hidden_QD.shape[0]
    start = ClassSums(jnp.full((n, Q), LOWEST, jnp.float32), jnp.zeros((n, Q), jnp.float32))
    start = vary_like(start, (hidden_QD, head.weight))
    return jax.tree.map(jnp.transpose, lax.scan(step, start, block_starts(head))[0])


def _block_classes(head: Unembedding, start: Array, block: int) -> Bool[Array, "n_classes C"]:
    assert head.classes is not None
    return lax.dynamic_slice_in_dim(head.classes, start, block, axis=1)


def sums_and_logits(
    hidden_QD: Float[Array, "Q D"], head: Unembedding
) -> tuple[Sums, Float[Array, "B Q C"]]:
    """Return the result of `sum_columns`, and the logits of its B blocks: 4 Q V bytes."""
    return _visit_columns(hidden_QD, head, 0, (), None, keep_logits=True)


def block_starts(head: Unembedding) -> Int[Array, " B"]:
    """Return the first column of each block of columns."""
    V = head.weight.shape[0]
    return jnp.arange(0, V, min(V, head.backend.lm_head_columns), dtype=jnp.int32)


def block_columns(
    head: Unembedding, first: Int[Array, ""]
) -> tuple[Int[Array, " C"], Bool[Array, "1 C"]]:
    """Return the columns of a block, and a mask of those that are in no earlier block.

    The last block is shifted back to end at the last column, since padding would copy the weight.

    Args:
        head: the LM head.
        first: one of `block_starts`.
    """
    V = head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)
    columns = jnp.minimum(first, V - block) + jnp.arange(block, dtype=jnp.int32)
    return columns, (columns >= first)[None, :]


def _visit_columns(
    hidden_QD: Array,
    head: Unembedding,
    top: int,
    measures: Collection[str],
    target: Target | None,
    *,
    keep_logits: bool,
) -> tuple[Sums, Any]:
    """Return the sums, and the logits of each block if `keep_logits`."""
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)

    def step(carry: Sums, first: Array) -> tuple[Sums, Any]:
        m, s0, s1, s2, best, ranked, s3, s4, target_rank, classes = carry
        columns, fresh = block_columns(head, first)
        start = columns[0]
        computed = block_logits(hidden_QD, head, start, block)

        def only_fresh(x: Array, other: float) -> Array:
            # If V is a multiple of the block, all columns are fresh.
            return jnp.where(fresh, x, other) if V % block else x

        z = only_fresh(computed, -jnp.inf)  # other columns get a probability of 0
        if ranked is None:
            block_max = z.max(axis=1)
        else:  # take the maximum from the ranked logits, so that both have the same bits
            ranked = merge_top_k(ranked, computed, start, fresh)
            block_max = ranked.z[:, 0]
        new_m = jnp.maximum(m, block_max)
        below = z - new_m[:, None]
        p = jnp.exp(below)
        rise, alpha = m - new_m, jnp.exp(m - new_m)
        # A column of probability 0 adds 0, even if its logit is minus infinity.
        s1_terms = jnp.where(p > 0, p * below, 0.0)
        if classes is not None:
            is_member = _block_classes(head, start, block).astype(jnp.float32)
            block_total = lax.dot_general(
                p, is_member, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
            )
            classes = classes._replace(total=alpha[:, None] * classes.total + block_total)
        if s4 is not None:
            s4 = alpha * alpha * s4 + (p * p).sum(axis=1)
        if target_rank is not None:
            assert target is not None
            target_rank = _update_rank(target_rank, target, z, start, fresh)
        previous = s0, s1
        s1 = alpha * (s1 + rise * s0) + s1_terms.sum(axis=1)
        s0 = alpha * s0 + p.sum(axis=1)
        if s3 is not None:
            mean = mean_below(s0, s1)
            square_terms = squares(below, mean[:, None]).sum(axis=1)
            s3 = rescale_squares(s3, previous[1], previous[0], rise, mean) + square_terms
        s2 = s2 + first.astype(jnp.float32) * rise + only_fresh(below, 0.0).sum(axis=1)
        if ranked is None:
            block_best = _lowest_column(z == block_max[:, None], columns, V)
            best = jnp.where(block_max > m, block_best, best)
        else:
            best = ranked.id[:, 0]
        sums = Sums(new_m, s0, s1, s2, best, ranked, s3, s4, target_rank, classes)
        return sums, computed if keep_logits else None

    start = vary_like(empty_sums(Q, head, top, measures), (hidden_QD, head.weight))
    return lax.scan(step, start, block_starts(head))


def _lowest_column(
    is_largest: Bool[Array, "Q C"], columns: Int[Array, " C"], n_columns: int
) -> Int[Array, " Q"]:
    """Return the lowest column with the maximum, like torch.argmax.

    jnp.argmax is a variadic reduction and costs as much as all other elementwise work. On the CPU a
    minimum of integers costs more than one of floats, which are exact up to 2^24.
    """
    column_numbers = columns.astype(jnp.float32) if n_columns <= 1 << 24 else columns
    return jnp.where(is_largest, column_numbers[None, :], n_columns).min(axis=1).astype(jnp.int32)


def empty_sums(n_positions: int, head: Unembedding, top: int, measures: Collection[str]) -> Sums:
    """Return the sums before the first column."""
    zero, none = jnp.zeros(n_positions, jnp.float32), jnp.zeros(n_positions, jnp.int32)
    lowest = jnp.full(n_positions, LOWEST, jnp.float32)
    classes = None
    if head.classes is not None:
        shape = n_positions, head.classes.shape[0]
        classes = ClassSums(jnp.full(shape, LOWEST, jnp.float32), jnp.zeros(shape, jnp.float32))
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
        classes,
    )


def _update_rank(
    rank: TargetRank, target: Target, z: Array, start: Array, fresh: Array
) -> TargetRank:
    """Add a block of columns to the rank; z is minus infinity in columns that are not fresh."""
    block = z.shape[1]
    index = target.column - start
    in_block = (index >= 0) & (index < block)
    index = jnp.where(in_block, index, 0)
    # Columns that the shifted last block shares with an earlier one count once.
    in_block &= jnp.broadcast_to(fresh, (1, block))[0, index]
    block_logit = jnp.take_along_axis(z, index[:, None], axis=1)[:, 0]
    target_logit = jnp.where(in_block, block_logit, rank.target_logit)
    above = (z > target.z[:, None]).sum(axis=1, dtype=jnp.int32)
    return TargetRank(rank.above + above, target_logit)


def all_logits(hidden_BD: Float[Array, "B D"], head: Unembedding) -> Float[Array, "B V"]:
    """Compute all logits [B, V] of a few hidden states."""
    B, V = hidden_BD.shape[0], head.weight.shape[0]
    block = min(V, head.backend.lm_head_columns)

    def step(out: Array, first: Array) -> tuple[Array, None]:
        start = jnp.minimum(first, V - block)
        z = block_logits(hidden_BD, head, start, block)
        return lax.dynamic_update_slice_in_dim(out, z, start, 1), None

    shard_logits = lax.scan(step, jnp.zeros((B, V), jnp.float32), block_starts(head))[0]
    return (
        shard_logits
        if head.split is None
        else lax.all_gather(shard_logits, head.split, axis=1, tiled=True)
    )


def block_logits(
    hidden_QD: Float[Array, "Q D"], head: Unembedding, start: Int[Array, ""], block: int
) -> Float[Array, "Q C"]:
    """Compute the logits of `block` columns, beginning with column `start`."""
    weight = from_storage(lax.dynamic_slice_in_dim(head.weight, start, block))
    bias = None if head.bias is None else lax.dynamic_slice_in_dim(head.bias, start, block)
    return transform(dot_last(hidden_QD, weight), bias, head.scale, head.softcap)


# Maximum passes of the measure "rank". The second pass compares with the logits of the first, which
# are the same if products are deterministic. On the CPU the guess agrees, and there is one pass.
MAX_PASSES = 4
GUESS_BLOCK = 512  # positions per product that guesses the logits of their targets


def sums_with_rank(
    hidden_QD: Float[Array, "Q D"],
    token_Q: Int[Array, " Q"],
    head: Unembedding,
    top: int,
    measures: tuple[str, ...],
) -> Sums:
    """Compute `sum_columns` with the measure "rank".

    Args:
        hidden_QD, head, top, measures: see `sum_columns`.
        token_Q: target of each position, an id of the full vocabulary.
    """
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    column = token_Q if head.split is None else token_Q - lax.axis_index(head.split) * V

    def step(state: Any) -> Any:
        n, _, z, _ = state
        sums = sum_columns(hidden_QD, head, top, measures, Target(column, z))
        assert sums.target_rank is not None
        computed = sums.target_rank.target_logit
        computed = computed if head.split is None else lax.psum(computed, head.split)
        settled = jnp.all((computed == z) | jnp.isnan(computed))
        return n + 1, settled, computed, sums

    def unsettled(state: Any) -> Array:
        n, settled, _, _ = state
        return (n < MAX_PASSES) & ~settled

    first = _guess_target_logits(hidden_QD, column, head)
    state = jnp.int32(0), jnp.zeros((), bool), first, empty_sums(Q, head, top, measures)
    return lax.while_loop(unsettled, step, state)[3]


def _guess_target_logits(hidden_QD: Array, column_Q: Array, head: Unembedding) -> Array:
    """Guess the logit of each position's target from the diagonals of block products."""
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    on_shard = (column_Q >= 0) & (column_Q < V)
    row_Q = jnp.where(on_shard, column_Q, 0)
    block = next(n for n in range(min(Q, GUESS_BLOCK), 0, -1) if Q % n == 0)

    def products(block: tuple[Array, Array]) -> Array:
        hidden_BD, row_B = block
        return jnp.diagonal(dot_last(hidden_BD, from_storage(head.weight[row_B])))

    blocks = hidden_QD.reshape(-1, block, hidden_QD.shape[1]), row_Q.reshape(-1, block)
    bias = None if head.bias is None else head.bias[row_Q]
    z = transform(lax.map(products, blocks).reshape(-1), bias, head.scale, head.softcap)
    return z if head.split is None else lax.psum(jnp.where(on_shard, z, 0.0), head.split)
