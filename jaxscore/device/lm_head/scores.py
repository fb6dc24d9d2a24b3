"""The LM head at a batch's scored positions, and at no others."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.backends import LMHeadName
from jaxscore.device.dots import compute_dtype, from_storage
from jaxscore.device.lm_head.column_blocks import sum_columns, sums_with_rank
from jaxscore.device.lm_head.kernel_tpu import kernel_tpu
from jaxscore.device.lm_head.sums import Sums, Terms, terms, top_k_logprobs, transform
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding

Numbers = TypeVar("Numbers")  # a tree of arrays whose first axis counts queries
Slots = Callable[[jax.Array], jax.Array]  # an array of all queries -> its part for some of them


def map_position_blocks(
    Q: int,
    n_queries: Int[Array, ""],
    sizes: tuple[int, int],
    run: Callable[[Slots], Numbers],
) -> Numbers:
    """What `run` gives for the first `n_queries` of Q queries; for the others 0, or anything.

    Large blocks read the vocabulary seldom, small ones at the end leave few slots empty. How many
    queries there are is data, not shape.

    Args:
        sizes: queries in each block: the first number while so many are left, then the second.
        run: the numbers of the queries that the function picks.
    """

    def step(first, block, b, out):
        start = jnp.minimum(first + b * block, Q - block)
        part = run(lambda x: lax.dynamic_slice_in_dim(x, start, block))
        return jax.tree.map(lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, part)

    large, small = sizes
    small = min(Q, small)
    one = jax.eval_shape(lambda: run(lambda x: x[:small]))
    out = jax.tree.map(lambda x: jnp.zeros((Q, *x.shape[1:]), x.dtype), one)
    done = jnp.int32(0)
    # A block of all Q slots would be the same in each step, and XLA moves what is the same out
    # of the loop: it would run once also where no step does.
    if large < Q:
        n_large = n_queries // large
        out = lax.fori_loop(0, n_large, functools.partial(step, 0, large), out)
        done = n_large * large
    n_small = (n_queries - done + small - 1) // small
    return lax.fori_loop(0, n_small, functools.partial(step, done, small), out)


def answers(
    hidden_AD: Float[Array, "A D"],
    token_A: Int[Array, " A"],
    of_query: Terms,
    head: Unembedding,
) -> tuple[Float[Array, " A"], Bool[Array, " A"]]:
    """Log-probability of each token after its query, and whether it is the most probable one.

    Args:
        hidden_AD, of_query: those of each answer's query.
    """
    top, best = of_query.top, of_query.greedy_id
    # The pass over all may sum a product in another order. A token whose own product is that of
    # the most probable one has the largest logit to the last bit, and no token has a larger one.
    z, largest = (_logit(hidden_AD, token, head) for token in (token_A, best))
    z = jnp.where(z == largest, top, jnp.minimum(z, top))
    return (z - top) - of_query.log_total, token_A == best


def _logit(hidden_AD, token_A, head):
    """Logit of each token; the product's inputs are rounded as those of the pass over all."""
    axis, V, row = head.split, head.weight.shape[0], token_A
    if axis is not None:
        row = token_A - lax.axis_index(axis) * V
        here = (row >= 0) & (row < V)
        row = jnp.where(here, row, 0)
    dtype = compute_dtype(head.weight)
    rows = from_storage(head.weight[row]).astype(jnp.float32)
    products = hidden_AD.astype(dtype).astype(jnp.float32) * rows
    bias = None if head.bias is None else head.bias[row]
    z = transform(products.sum(axis=-1), bias, head.scale, head.softcap)
    return z if axis is None else lax.psum(jnp.where(here, z, 0.0), axis)


EDGE_BLOCK = 512  # answers whose rows of the unembedding are held at a time
BUCKETS = 4  # each half as large as the one before


def lm_head_terms(hidden_QD: Float[Array, "Q D"], head: Unembedding) -> Terms:
    """Entropy, self-certainty and the most probable token of each query, all of them wanted."""
    return terms(sum_columns(hidden_QD, head), head)


def score_positions(
    hidden_ND: Float[Array, "N D"],
    scored: ScoredPositions,
    head: Unembedding,
    top: int = 0,
    measures: tuple[str, ...] = (),
) -> Scores:
    """Scores of the tokens that are scored for, by the platform's form.

    How many there are is data, not shape: a batch with few queries costs few, and nothing
    recompiles.

    Args:
        top: how many of the most probable tokens to return for each query, at most V.
        measures: names of `sums.MEASURES`. With "rank" each answer is a query of its own.
    """
    form = head.backend.lm_head
    if form == KERNEL and (top > 1 or measures):  # it has the sums of the usual terms alone
        form = "position_blocks"
    if "rank" in measures:
        every = jnp.arange(scored.slot.shape[0], dtype=jnp.int32)
        scored = scored._replace(
            token=scored.token[scored.slot], n_positions=scored.n_edges, slot=every
        )
    sums = IMPLEMENTATIONS[form](hidden_ND, scored, head, top, measures)
    of_queries = terms(sums, head)
    scores = score_edges(hidden_ND, scored, of_queries, head)
    scores = scores._replace(measures={name: of_queries.measures[name] for name in measures})
    if not top:
        return scores
    id, logprob = top_k_logprobs(sums.ranked, of_queries, head, top)
    return scores._replace(top_id=id, top_logprob=logprob)


def _of(hidden_ND, scored, head, top, measures, slots) -> Sums:
    """The sums of the queries in some slots."""
    hidden_QD = hidden_ND[slots(scored.token)]
    if "rank" not in measures:
        return sum_columns(hidden_QD, head, top, measures)
    return sums_with_rank(hidden_QD, slots(scored.target), head, top, measures)


def _by_position_blocks(hidden_ND, scored, head, top, measures) -> Sums:
    Q, sizes = scored.token.shape[0], head.backend.position_blocks
    run = functools.partial(_of, hidden_ND, scored, head, top, measures)
    return map_position_blocks(Q, scored.n_positions, sizes, run)


def _by_buckets(hidden_ND, scored, head, top, measures) -> Sums:
    """All queries at once, in the smallest of a few sizes that holds them."""
    Q = scored.token.shape[0]

    def run(size):
        part = _of(hidden_ND, scored, head, top, measures, lambda x: x[:size])
        return jax.tree.map(lambda x: _padded(x, Q), part)

    return _in_a_bucket(Q, scored.n_positions, run)


def _by_kernel(hidden_ND, scored, head, top, measures) -> Sums:
    run = functools.partial(kernel_tpu, interpret=head.backend.interpreted)
    return run(hidden_ND[scored.token], scored.n_positions, head)


KERNEL: LMHeadName = "kernel_tpu"
IMPLEMENTATIONS: dict[
    LMHeadName, Callable[[Any, ScoredPositions, Unembedding, int, tuple[str, ...]], Sums]
] = {
    "buckets": _by_buckets,
    KERNEL: _by_kernel,
    "position_blocks": _by_position_blocks,
}


def _in_a_bucket(most, count, run, least=1):
    """`run` of the smallest of a few numbers that is not below `count`; `most` is the largest.

    On a GPU a loop whose length is data makes the host wait in each step, a choice does once.
    """
    sizes = sorted({min(most, max(least, most >> k)) for k in range(BUCKETS)})
    nth = jnp.searchsorted(jnp.array(sizes), count)
    return lax.switch(nth, [functools.partial(run, size) for size in sizes])


def _padded(x, Q):
    """With zeros for the queries that are left out."""
    return jnp.pad(x, [(0, Q - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])


def score_edges(hidden_ND, scored, of_queries, head) -> Scores:
    """What the terms of the queries say of every answer.

    The answers go in blocks, so that few rows of the unembedding are held at a time.
    """
    A = scored.target.shape[0]
    block = next(n for n in range(min(A, EDGE_BLOCK), 0, -1) if A % n == 0)

    def step(b, out):
        def own(x):
            return lax.dynamic_slice_in_dim(x, b * block, block)

        slot = own(scored.slot)
        hidden = hidden_ND[scored.token[slot]]
        part = answers(
            hidden, own(scored.target), jax.tree.map(lambda x: x[slot], of_queries), head
        )
        start = b * block
        return tuple(
            lax.dynamic_update_slice_in_dim(o, p, start, 0) for o, p in zip(out, part, strict=True)
        )

    def run(n_blocks):
        return lax.fori_loop(0, n_blocks, step, (jnp.zeros(A, jnp.float32), jnp.zeros(A, bool)))

    n_blocks = -(-scored.n_edges // block)
    if head.backend.lm_head == "buckets":
        # XLA takes a loop of one step apart, and sums would round otherwise than in longer loops.
        logprob, greedy = _in_a_bucket(A // block, n_blocks, run, least=2)
    else:
        logprob, greedy = run(n_blocks)
    return Scores(
        logprob,
        greedy,
        of_queries.entropy,
        of_queries.self_certainty,
        of_queries.greedy_id,
    )
