"""Batches that did not fit in the device's memory, cut in two."""

from collections.abc import Iterator

import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.plan.row_batches import RowBatch


def exhausted(problem: JaxRuntimeError) -> bool:
    """Whether it says that memory ran out, at compilation or at work."""
    return "RESOURCE_EXHAUSTED" in str(problem)


def halves(batch: RowBatch) -> Iterator[RowBatch]:
    """The same rows in batches of half as many, the last one filled up with empty rows.

    Every edge of the batch is in exactly one of them; more than two are needed where half of the
    rows have more queries than tokens.
    """
    n_rows, length = batch.shape
    count = -(-n_rows // 2)
    n_tokens = batch.n_tokens
    query, n_queries = batch.query, len(batch.edge)
    for first in (0, count):
        rows = slice(first, min(first + count, n_rows))
        n_own = rows.stop - rows.start
        ids, position = np.zeros((2, count, length), np.int32)
        end = np.tile(np.arange(1, length + 1, dtype=np.int32), (count, 1))
        ids[:n_own], position[:n_own] = batch.ids[rows], batch.position[rows]
        end[:n_own] = batch.subtree_end[rows]
        low, high = np.searchsorted(query[:n_queries], [first * length, rows.stop * length])
        budget = count * length
        for start in range(low, high, budget) or (low,):
            part = slice(start, min(start + budget, high))
            n = part.stop - part.start
            own_query = np.zeros(budget, np.int32)
            own_query[:n] = query[part] - first * length
            target = np.zeros((budget, batch.target.shape[1]), np.int32)
            target[:n] = batch.target[part]
            yield RowBatch(ids, position, end, own_query, target, batch.edge[part], n_tokens)
            n_tokens = 0  # counted once
