"""The vocabulary pass over a batch's queries, and over no others."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.forms import VocabularyForm
from jaxscore.device.rows import Asked, Scores, Unembedding
from jaxscore.device.vocabulary.answers import answers
from jaxscore.device.vocabulary.blocks import by_columns
from jaxscore.device.vocabulary.kernel_tpu import kernel_tpu
from jaxscore.device.vocabulary.sums import Sums, Terms, terms

ANSWER_BLOCK = 512  # answers whose rows of the unembedding are held at a time
BUCKETS = 4  # each half as large as the one before


def vocabulary_terms(hidden_QD: Float[Array, "Q D"], head: Unembedding) -> Terms:
    """Entropy, self-certainty and the most probable token of each query, all of them wanted."""
    return terms(by_columns(hidden_QD, head), head)


def score_queries(hidden_ND: Float[Array, "N D"], asked: Asked, head: Unembedding) -> Scores:
    """Scores of the tokens that are asked for, by the platform's form.

    How many there are is data, not shape: a batch with few queries costs few, and nothing
    recompiles.
    """
    of_queries = FORMS[head.forms.vocabulary](hidden_ND, asked, head)
    return _with_answers(hidden_ND, asked, of_queries, head)


def _by_query_blocks(hidden_ND, asked, head) -> Terms:
    """Blocks of queries, as many as there are: large ones read the vocabulary seldom, small ones
    at the end leave few slots empty."""
    Q = asked.query.shape[0]

    def step(first, block, b, out):
        start = jnp.minimum(first + b * block, Q - block)
        query = lax.dynamic_slice_in_dim(asked.query, start, block)
        part = by_columns(hidden_ND[query], head)
        return jax.tree.map(lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, part)

    out = _no_sums(Q)
    large, small = head.forms.query_blocks
    done = jnp.int32(0)
    # A block of all Q slots would be the same in each step, and XLA moves what is the same out
    # of the loop: it would run once also where no step does.
    if large < Q:
        n_large = asked.n_queries // large
        out = lax.fori_loop(0, n_large, functools.partial(step, 0, large), out)
        done = n_large * large
    small = min(Q, small)
    n_small = (asked.n_queries - done + small - 1) // small
    return terms(lax.fori_loop(0, n_small, functools.partial(step, done, small), out), head)


def _by_buckets(hidden_ND, asked, head) -> Terms:
    """All queries at once, in the smallest of a few sizes that holds them.

    On a GPU a loop whose length is data makes the host wait in each step, a choice does once.
    """
    Q = asked.query.shape[0]
    sizes = sorted({max(1, Q >> k) for k in range(BUCKETS)})

    def of(size):
        def run(query):
            part = by_columns(hidden_ND[query[:size]], head)
            return jax.tree.map(lambda x: jnp.pad(x, (0, Q - size)), part)

        return run

    nth = jnp.searchsorted(jnp.array(sizes), asked.n_queries)
    return terms(lax.switch(nth, [*map(of, sizes)], asked.query), head)


def _by_kernel(hidden_ND, asked, head) -> Terms:
    run = functools.partial(kernel_tpu, interpret=head.forms.interpreted)
    return terms(run(hidden_ND[asked.query], asked.n_queries, head), head)


FORMS: dict[VocabularyForm, Callable[[Any, Asked, Unembedding], Terms]] = {
    "buckets": _by_buckets,
    "kernel_tpu": _by_kernel,
    "query_blocks": _by_query_blocks,
}


def _no_sums(Q):
    zero = jnp.zeros(Q, jnp.float32)
    return Sums(zero, zero, zero, zero, jnp.zeros(Q, jnp.int32))


def _with_answers(hidden_ND, asked, of_queries, head) -> Scores:
    """The answers in blocks, so that few rows of the unembedding are held at a time."""
    A = asked.answer.shape[0]
    block = next(n for n in range(min(A, ANSWER_BLOCK), 0, -1) if A % n == 0)

    def step(b, out):
        def own(x):
            return lax.dynamic_slice_in_dim(x, b * block, block)

        slot = own(asked.slot)
        hidden = hidden_ND[asked.query[slot]]
        part = answers(hidden, own(asked.answer), jax.tree.map(lambda x: x[slot], of_queries), head)
        start = b * block
        return tuple(
            lax.dynamic_update_slice_in_dim(o, p, start, 0) for o, p in zip(out, part, strict=True)
        )

    n_blocks = A // block if head.forms.vocabulary == "buckets" else -(-asked.n_answers // block)
    out = jnp.zeros(A, jnp.float32), jnp.zeros(A, bool)
    logprob, greedy = lax.fori_loop(0, n_blocks, step, out)
    return Scores(
        logprob,
        greedy,
        of_queries.entropy,
        of_queries.self_certainty,
        of_queries.greedy_id,
    )
