"""The LM head, computed only at a batch's scored positions.

The number of positions is data and not part of a shape, so a batch with few positions costs little
and needs no compilation. In addition to the pass over all columns, each edge (a token whose
log-probability is requested) reads one row of the unembedding.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.backends import LMHeadName, lazy
from jaxscore.device.dots import compute_dtype, from_storage
from jaxscore.device.lm_head.column_blocks import sum_columns, sums_with_rank, vary_like
from jaxscore.device.lm_head.sums import Sums, Terms, terms, top_k_logprobs, transform
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding

EDGE_BLOCK = 512  # number of edges whose rows of the unembedding are in memory at a time
BUCKETS = 4  # number of bucket sizes, each half as large as the previous one

Tree = TypeVar("Tree")  # arrays whose first axis counts positions
# Function that selects the entries of some positions from an array of all positions
Select = Callable[[jax.Array], jax.Array]
Sizes = tuple[int, int]


def lm_head_terms(hidden_QD: Float[Array, "Q D"], head: Unembedding) -> Terms:
    """Compute entropy, self-certainty (nats) and argmax of every position."""
    return terms(sum_columns(hidden_QD, head), head)


def score_positions(
    hidden_ND: Float[Array, "N D"],
    scored: ScoredPositions,
    head: Unembedding,
    top: int = 0,
    measures: tuple[str, ...] = (),
) -> Scores:
    """Compute the scores of a batch's edges and positions.

    Args:
        hidden_ND: final hidden states of all N = R * L tokens.
        scored: scored positions and edges.
        head: the model's LM head; its backend selects the implementation.
        top: number of most probable tokens per position, at most V.
        measures: names in `sums.MEASURES`. With "rank" each edge has a separate position.

    Returns:
        Scores in float32 nats.
    """
    name = head.backend.lm_head
    # The kernel computes only the basic sums.
    if name == KERNEL and (top > 1 or measures or head.classes is not None):
        name = "position_blocks"
    if "rank" in measures:
        edges = jnp.arange(scored.slot.shape[0], dtype=jnp.int32)
        scored = scored._replace(
            token=scored.token[scored.slot], n_positions=scored.n_edges, slot=edges
        )
    sums = IMPLEMENTATIONS[name](hidden_ND, scored, head, top, measures)
    by_position = terms(sums, head)
    scores = score_edges(hidden_ND, scored, by_position, head)
    scores = scores._replace(
        measures={name: by_position.measures[name] for name in measures}, mass=by_position.mass
    )
    if not top:
        return scores
    id, logprob = top_k_logprobs(sums.ranked, by_position, head, top)
    return scores._replace(top_id=id, top_logprob=logprob)


def score_edges(
    hidden_ND: Float[Array, "N D"], scored: ScoredPositions, by_position: Terms, head: Unembedding
) -> Scores:
    """Compute the scores of every edge from the terms of its position.

    Edges are computed in blocks, so that few rows of the unembedding are in memory at a time.

    Args:
        hidden_ND, scored, head: see `score_positions`.
        by_position: terms of each scored position.
    """
    E = scored.target.shape[0]
    block = next(n for n in range(min(E, EDGE_BLOCK), 0, -1) if E % n == 0)

    def step(b: Array, out: tuple[Array, Array]) -> tuple[Array, ...]:
        def take_block(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, b * block, block)

        slot = take_block(scored.slot)
        by_edge = jax.tree.map(lambda x: x[slot], by_position)
        hidden_ED, target_E = hidden_ND[scored.token[slot]], take_block(scored.target)
        scores = _target_logprobs(hidden_ED, target_E, by_edge, head)
        return tuple(
            lax.dynamic_update_slice_in_dim(o, p, b * block, 0)
            for o, p in zip(out, scores, strict=True)
        )

    def run(n_blocks: Any) -> tuple[Array, Array]:
        return lax.fori_loop(0, n_blocks, step, (jnp.zeros(E, jnp.float32), jnp.zeros(E, bool)))

    n_blocks = -(-scored.n_edges // block)
    if head.backend.lm_head == "buckets":
        # XLA compiles a loop of one step differently, so its sums would be rounded differently.
        logprob, greedy = _smallest_bucket(E // block, n_blocks, run, minimum=2)
    else:
        logprob, greedy = run(n_blocks)
    entropy, self_certainty = by_position.entropy, by_position.self_certainty
    return Scores(logprob, greedy, entropy, self_certainty, by_position.greedy_id)


def _target_logprobs(
    hidden_ED: Array, target_E: Array, by_edge: Terms, head: Unembedding
) -> tuple[Float[Array, " E"], Bool[Array, " E"]]:
    """Return the log-probability of each target, and a mask of targets that are the argmax.

    Args:
        hidden_ED, by_edge: hidden state and terms of each target's position.
        target_E: id of each target.
        head: the LM head.
    """
    z = target_logits(hidden_ED, target_E, head)
    if head.split is not None:
        z = lax.psum(z, head.split)
    return logprob_of_logits(hidden_ED, z, by_edge, head), target_E == by_edge.greedy_id


def logprob_of_logits(
    hidden_ED: Array, z_E: Array, by_edge: Terms, head: Unembedding
) -> Float[Array, " E"]:
    """Compute the log-probability of each target from its logit.

    Args:
        hidden_ED, by_edge: hidden state and terms of each target's position.
        z_E: logits from `target_logits`, summed over all shards.
        head: the LM head.
    """
    # The pass over all columns may sum a product in another order than `target_logits`. A target
    # with the product of the argmax gets exactly the largest logit, and no target a larger one.
    largest = target_logits(hidden_ED, by_edge.greedy_id, head)
    if head.split is not None:
        largest = lax.psum(largest, head.split)
    return (_clamp_logit(z_E, largest, by_edge.top) - by_edge.top) - by_edge.log_total


@jax.custom_jvp
def _clamp_logit(z: Array, largest: Array, top: Array) -> Array:
    """Return `z`, or `top` where `z` is `largest` or above `top`; with the derivative of `z`."""
    return jnp.where(z == largest, top, jnp.minimum(z, top))


_clamp_logit.defjvps(lambda dz, *_: dz, None, None)


def target_logits(hidden_ED: Array, target_E: Array, head: Unembedding) -> Float[Array, " E"]:
    """Compute the logit of each target, or 0 if another shard has its column.

    Inputs are rounded as in the pass over all columns.
    """
    V, row = head.weight.shape[0], target_E
    if head.split is not None:
        row = target_E - lax.axis_index(head.split) * V
        on_shard = (row >= 0) & (row < V)
        row = jnp.where(on_shard, row, 0)
    dtype = compute_dtype(head.weight)
    rows = from_storage(head.weight[row]).astype(jnp.float32)
    products = hidden_ED.astype(dtype).astype(jnp.float32) * rows
    bias = None if head.bias is None else head.bias[row]
    z = transform(products.sum(axis=-1), bias, head.scale, head.softcap)
    return z if head.split is None else jnp.where(on_shard, z, 0.0)


def map_position_blocks(
    Q: int, n_positions: Int[Array, ""] | int, sizes: Sizes, run: Callable[[Select], Tree]
) -> Tree:
    """Run a function block by block over the first `n_positions` of Q positions.

    Large blocks reduce the number of passes over the vocabulary. Small blocks at the end leave few
    entries unused.

    Args:
        Q: length of the arrays of positions.
        n_positions: number of positions to compute.
        sizes: positions per large block, used while that many are left, and per small block.
        run: function that returns arrays for the positions that its argument selects.

    Returns:
        The arrays for all Q positions; entries after the first `n_positions` are 0 or undefined.
    """

    def step(first: Any, block: int, b: Array, out: Any) -> Any:
        start = jnp.minimum(first + b * block, Q - block)
        values = run(lambda x: lax.dynamic_slice_in_dim(x, start, block))
        return jax.tree.map(
            lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, values
        )

    large, small = sizes
    small = min(Q, small)
    block_shapes = jax.eval_shape(lambda: run(lambda x: x[:small]))
    out = jax.tree.map(lambda x: jnp.zeros((Q, *x.shape[1:]), x.dtype), block_shapes)
    out = vary_like(out, block_shapes)
    done: Any = 0
    # A block of all Q positions would be loop-invariant. XLA would move it out of the loop, so that
    # it would run even if the loop runs zero steps.
    if large < Q:
        n_large = n_positions // large
        out = lax.fori_loop(0, n_large, functools.partial(step, 0, large), out)
        done = n_large * large
    n_small = (n_positions - done + small - 1) // small
    return lax.fori_loop(0, n_small, functools.partial(step, done, small), out)


def _sum_selected(
    hidden_ND: Array,
    scored: ScoredPositions,
    head: Unembedding,
    top: int,
    measures: tuple[str, ...],
    select: Select,
) -> Sums:
    hidden_QD = hidden_ND[select(scored.token)]
    if "rank" not in measures:
        return sum_columns(hidden_QD, head, top, measures)
    return sums_with_rank(hidden_QD, select(scored.target), head, top, measures)


def _by_position_blocks(hidden_ND: Array, scored: ScoredPositions, *args: Any) -> Sums:
    head: Unembedding = args[0]
    run = functools.partial(_sum_selected, hidden_ND, scored, *args)
    return map_position_blocks(
        scored.token.shape[0], scored.n_positions, head.backend.position_blocks, run
    )


def _by_buckets(hidden_ND: Array, scored: ScoredPositions, *args: Any) -> Sums:
    """Compute all positions at once, in the smallest bucket that holds them."""
    Q = scored.token.shape[0]
    compute: Callable[[Select], Sums] = functools.partial(_sum_selected, hidden_ND, scored, *args)

    def run(size: int) -> Sums:
        sums = compute(lambda x: x[:size])
        return jax.tree.map(lambda x: jnp.pad(x, [(0, Q - size), *[(0, 0)] * (x.ndim - 1)]), sums)

    return _smallest_bucket(Q, scored.n_positions, run)


def _smallest_bucket(
    maximum: int, count: Array | int, run: Callable[[int], Any], minimum: int = 1
) -> Any:
    """Call `run` with the smallest of `BUCKETS` sizes up to `maximum` that fits `count`.

    On a GPU the host waits at each step of a loop whose length is data, but only once for a switch.
    """
    sizes = sorted({min(maximum, max(minimum, maximum >> k)) for k in range(BUCKETS)})
    index = jnp.searchsorted(jnp.array(sizes), count)
    return lax.switch(index, [functools.partial(run, size) for size in sizes])


def _by_kernel(hidden_ND: Array, scored: ScoredPositions, head: Unembedding, *_: Any) -> Sums:
    run = lazy("jaxscore.device.lm_head.kernel_tpu", "kernel_tpu")
    interpret = head.backend.interpreted
    return run(hidden_ND[scored.token], scored.n_positions, head, interpret=interpret)


KERNEL: LMHeadName = "kernel_tpu"
IMPLEMENTATIONS: dict[LMHeadName, Callable[..., Sums]] = {
    "buckets": _by_buckets,
    KERNEL: _by_kernel,
    "position_blocks": _by_position_blocks,
}
