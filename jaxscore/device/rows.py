"""Arrays that the host sends to the device for one batch, and the scores that come back.

A batch travels as one int32 array, so that one transfer carries it instead of eight.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from jaxscore.device.backends import FORMS, Forms


class Asked(NamedTuple):
    """What is wanted of a batch's tokens.

    `query` indexes the flattened [R * L] tokens, and the first `n_queries` are computed. Each of
    the first `n_answers` answers is the token `answer` after the query in slot `slot`. Slots
    beyond hold 0 and are never read.
    """

    query: Int[Array, " Q"]
    n_queries: Int[Array, ""]
    slot: Int[Array, " A"]
    answer: Int[Array, " A"]
    n_answers: Int[Array, ""]


class Rows(NamedTuple):
    """A batch of packed tries. `plan.row_batches.RowBatch` is its host side.

    `position` is a token's depth in its trie. Token i of a row sees token j of the same row
    if and only if `j <= i < subtree_end[j]`.
    """

    ids: Int[Array, "R L"]
    position: Int[Array, "R L"]
    subtree_end: Int[Array, "R L"]
    asked: Asked


class Scores(NamedTuple):
    """Of every answer and of every query, float32 nats. Slots past their number mean nothing.

    Where ranks are asked for, what is of every query is of every answer, [A].

    `top_id` and `top_logprob` are the k most probable tokens after each query, the most probable
    first, the lowest id first among equal logits; None where none are asked for. `measures` are
    by their names, see `vocabulary.sums`.
    """

    logprob: Float[Array, " A"]
    greedy: Bool[Array, " A"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]
    top_id: Int[Array, "Q k"] | None = None
    top_logprob: Float[Array, "Q k"] | None = None
    measures: dict[str, Float[Array, " Q"]] = {}  # noqa: RUF012 - never changed


class Unembedding(NamedTuple):
    """From a hidden state to logits: `softcap * tanh(scale * (h @ weight.T + bias) / softcap)`.

    With `split`, the name of a mesh axis, each shard has some of the rows, in order. `forms` is
    the platform's.
    """

    weight: Num[Array, "V D"]  # as stored, see `dots.as_integers`
    bias: Float[Array, " V"] | None
    scale: float
    softcap: float | None
    split: str | None = None
    forms: Forms = FORMS["cpu"]


PER_TOKEN = 4  # arrays with an entry per token: ids, positions, subtree ends, queries
COUNTS = 2  # how many queries and answers there are


def pack_rows(rows: Rows) -> np.ndarray:
    """int32 [n], the arrays of a batch on the host one after the other."""
    ids, position, end, asked = rows
    counts = np.array([asked.n_queries, asked.n_answers], np.int32)
    parts = ids, position, end, asked.query, counts, asked.slot, asked.answer
    return np.concatenate([np.ravel(part) for part in parts])


def packed_size(n_tokens: int, n_answers: int) -> int:
    """How many numbers the array of a batch has that has room for so many."""
    return PER_TOKEN * n_tokens + COUNTS + 2 * n_answers


def unpack_rows(values: Int[Array, " n"], shape: tuple[int, int]) -> Rows:
    """The batch again; `shape` is that of its ids."""
    n = shape[0] * shape[1]
    of_tokens, counts, of_answers = jnp.split(values, [PER_TOKEN * n, PER_TOKEN * n + COUNTS])
    ids, position, end, query = of_tokens.reshape(PER_TOKEN, n)
    slot, answer = jnp.split(of_answers, 2)
    asked = Asked(query, counts[0], slot, answer, counts[1])
    return Rows(ids.reshape(shape), position.reshape(shape), end.reshape(shape), asked)
