"""A batch as one array of integers, so that one transfer carries it instead of eight."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxscore.device.rows import Asked, Rows

PER_TOKEN = 4  # arrays with an entry per token: ids, positions, subtree ends, queries
COUNTS = 2  # how many queries and answers there are


def packed(rows: Rows) -> np.ndarray:
    """int32 [n], the arrays of a batch on the host one after the other."""
    ids, position, end, asked = rows
    counts = np.array([asked.n_queries, asked.n_answers], np.int32)
    parts = ids, position, end, asked.query, counts, asked.slot, asked.answer
    return np.concatenate([np.ravel(part) for part in parts])


def size(n_tokens: int, n_answers: int) -> int:
    """How many numbers the array of a batch has that has room for so many."""
    return PER_TOKEN * n_tokens + COUNTS + 2 * n_answers


def unpacked(values: Int[Array, " n"], shape: tuple[int, int]) -> Rows:
    """The batch again; `shape` is that of its ids."""
    n = shape[0] * shape[1]
    of_tokens, counts, of_answers = jnp.split(values, [PER_TOKEN * n, PER_TOKEN * n + COUNTS])
    ids, position, end, query = of_tokens.reshape(PER_TOKEN, n)
    slot, answer = jnp.split(of_answers, 2)
    asked = Asked(query, counts[0], slot, answer, counts[1])
    return Rows(ids.reshape(shape), position.reshape(shape), end.reshape(shape), asked)
