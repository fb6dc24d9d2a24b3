"""The LM head at a batch's scored positions, and at no others.

The number of positions is data, not shape: a batch with few of them costs little, and nothing
recompiles. Edges, the tokens whose log-probability is requested, take a row of the unembedding
each beside the pass over all columns.
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

EDGE_BLOCK = 512  # edges whose rows of the unembedding are in memory at a time
BUCKETS = 4  # each half as large as the one before

Tree = TypeVar("Tree")  # arrays whose first axis counts positions
Select = Callable[[jax.Array], jax.Array]  # an array of all positions -> its part for some of them
Sizes = tuple[int, int]


def lm_head_terms(hidden_QD: Float[Array, "Q D"], head: Unembedding) -> Terms:
    """Entropy, self-certainty (nats) and argmax at every position."""
    return terms(sum_columns(hidden_QD, head), head)


def score_positions(
    hidden_ND: Float[Array, "N D"],
    scored: ScoredPositions,
    head: Unembedding,
    top: int = 0,
    measures: tuple[str, ...] = (),
) -> Scores:
    """Scores of a batch's edges and positions.

    Args:
        hidden_ND: final hidden states of all N = R * L tokens.
        scored: positions and edges.
        head: the model's LM head; its backend names the implementation.
        top: number of most probable tokens per position, at most V.
        measures: names in `sums.MEASURES`. With "rank" each edge is a position of its own.

    Returns:
        float32, nats; see `Scores`.
    """
    name = head.backend.lm_head
    if name == KERNEL and (top > 1 or measures):  # the kernel computes the usual sums only
        name = "position_blocks"
    if "rank" in measures:
        every = jnp.arange(scored.slot.shape[0], dtype=jnp.int32)
        scored = scored._replace(
            token=scored.token[scored.slot], n_positions=scored.n_edges, slot=every
        )
    sums = IMPLEMENTATIONS[name](hidden_ND, scored, head, top, measures)
    by_position = terms(sums, head)
    scores = score_edges(hidden_ND, scored, by_position, head)
    scores = scores._replace(measures={name: by_position.measures[name] for name in measures})
    if not top:
        return scores
    id, logprob = top_k_logprobs(sums.ranked, by_position, head, top)
    return scores._replace(top_id=id, top_logprob=logprob)


def score_edges(
    hidden_ND: Float[Array, "N D"], scored: ScoredPositions, by_position: Terms, head: Unembedding
) -> Scores:
    """Scores of every edge, from the terms of its position.

    Edges go in blocks, so that few rows of the unembedding are in memory at a time.

    Args:
        hidden_ND, scored, head: see `score_positions`.
        by_position: terms of the scored positions.
    """
    E = scored.target.shape[0]
    block = next(n for n in range(min(E, EDGE_BLOCK), 0, -1) if E % n == 0)

    def step(b: Array, out: tuple[Array, Array]) -> tuple[Array, ...]:
        def of_block(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, b * block, block)

        slot = of_block(scored.slot)
        own = jax.tree.map(lambda x: x[slot], by_position)
        part = _target_logprobs(hidden_ND[scored.token[slot]], of_block(scored.target), own, head)
        return tuple(
            lax.dynamic_update_slice_in_dim(o, p, b * block, 0)
            for o, p in zip(out, part, strict=True)
        )

    def run(n_blocks: Any) -> tuple[Array, Array]:
        return lax.fori_loop(0, n_blocks, step, (jnp.zeros(E, jnp.float32), jnp.zeros(E, bool)))

    n_blocks = -(-scored.n_edges // block)
    if head.backend.lm_head == "buckets":
        # XLA compiles a loop of one step differently, and its sums round otherwise.
        logprob, greedy = _smallest_bucket(E // block, n_blocks, run, least=2)
    else:
        logprob, greedy = run(n_blocks)
    entropy, self_certainty = by_position.entropy, by_position.self_certainty
    return Scores(logprob, greedy, entropy, self_certainty, by_position.greedy_id)


def _target_logprobs(
    hidden_ED: Array, target_E: Array, own: Terms, head: Unembedding
) -> tuple[Float[Array, " E"], Bool[Array, " E"]]:
    """Log-probability of each target, and whether it is the argmax.

    Args:
        hidden_ED, own: hidden state and terms of each target's position.
    """
    z = target_logits(hidden_ED, target_E, head)
    if head.split is not None:
        z = lax.psum(z, head.split)
    return logprob_of_logits(hidden_ED, z, own, head), target_E == own.greedy_id


def logprob_of_logits(
    hidden_ED: Array, z_E: Array, own: Terms, head: Unembedding
) -> Float[Array, " E"]:
    """Log-probability of each target from its logit.

    Args:
        hidden_ED, own: hidden state and terms of each target's position.
        z_E: `target_logits`, of all shards.
    """
    # The pass over all columns may sum a product in another order. A token whose own product is
    # that of the argmax has the largest logit to the last bit, and no token has a larger one.
    largest = target_logits(hidden_ED, own.greedy_id, head)
    if head.split is not None:
        largest = lax.psum(largest, head.split)
    return (_at_most(z_E, largest, own.top) - own.top) - own.log_total


@jax.custom_jvp
def _at_most(z: Array, largest: Array, top: Array) -> Array:
    """`z`, but `top` if it equals `largest` or is above `top`; with `z`'s derivative."""
    return jnp.where(z == largest, top, jnp.minimum(z, top))


_at_most.defjvps(lambda dz, *_: dz, None, None)


def target_logits(hidden_ED: Array, target_E: Array, head: Unembedding) -> Float[Array, " E"]:
    """Logit of each target, 0 where another shard has its column.

    Inputs are rounded as in the pass over all columns.
    """
    V, row = head.weight.shape[0], target_E
    if head.split is not None:
        row = target_E - lax.axis_index(head.split) * V
        here = (row >= 0) & (row < V)
        row = jnp.where(here, row, 0)
    dtype = compute_dtype(head.weight)
    rows = from_storage(head.weight[row]).astype(jnp.float32)
    products = hidden_ED.astype(dtype).astype(jnp.float32) * rows
    bias = None if head.bias is None else head.bias[row]
    z = transform(products.sum(axis=-1), bias, head.scale, head.softcap)
    return z if head.split is None else jnp.where(here, z, 0.0)


def map_position_blocks(
    Q: int, n_positions: Int[Array, ""] | int, sizes: Sizes, run: Callable[[Select], Tree]
) -> Tree:
    """Runs a function block by block over the first `n_positions` of Q positions.

    Large blocks read the vocabulary seldom, small ones at the end leave few entries empty.

    Args:
        sizes: positions per block: the first number while that many are left, then the second.
        run: returns arrays for the positions that its argument selects.

    Returns:
        The arrays for all Q positions, 0 or undefined behind the first `n_positions`.
    """

    def step(first: Any, block: int, b: Array, out: Any) -> Any:
        start = jnp.minimum(first + b * block, Q - block)
        part = run(lambda x: lax.dynamic_slice_in_dim(x, start, block))
        return jax.tree.map(lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, part)

    large, small = sizes
    small = min(Q, small)
    block_shapes = jax.eval_shape(lambda: run(lambda x: x[:small]))
    out = jax.tree.map(lambda x: jnp.zeros((Q, *x.shape[1:]), x.dtype), block_shapes)
    out = vary_like(out, block_shapes)
    done: Any = 0
    # A block of all Q positions would be the same in each step, and XLA moves loop invariants out
    # of the loop: it would run once even if no step does.
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
    """All positions at once, in the smallest of a few sizes that holds them."""
    Q = scored.token.shape[0]

    sums: Callable[[Select], Sums] = functools.partial(_sum_selected, hidden_ND, scored, *args)

    def run(size: int) -> Sums:
        part = sums(lambda x: x[:size])
        return jax.tree.map(lambda x: jnp.pad(x, [(0, Q - size), *[(0, 0)] * (x.ndim - 1)]), part)

    return _smallest_bucket(Q, scored.n_positions, run)


def _smallest_bucket(
    most: int, count: Array | int, run: Callable[[int], Any], least: int = 1
) -> Any:
    """Calls `run` with the smallest of a few numbers, up to `most`, that is at least `count`.

    On a GPU the host waits in each step of a loop whose length is data, but once for a choice.
    """
    sizes = sorted({min(most, max(least, most >> k)) for k in range(BUCKETS)})
    nth = jnp.searchsorted(jnp.array(sizes), count)
    return lax.switch(nth, [functools.partial(run, size) for size in sizes])


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
