"""Batches that did not fit in the device's memory, cut in two."""

from collections.abc import Iterator

import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.plan.row_batches import RowBatch, questions


def exhausted(problem: JaxRuntimeError) -> bool:
    """Whether it says that memory ran out, at compilation or at work."""
    return "RESOURCE_EXHAUSTED" in str(problem)


def halves(batch: RowBatch) -> Iterator[RowBatch]:
    """The same rows in batches of half as many, the last one filled up with empty rows.

    Every edge of the batch is in exactly one of them; more than two are needed where half of the
    rows have more than ANSWERS answers per token.
    """
    n_rows, length = batch.shape
    count = -(-n_rows // 2)
    n_tokens = batch.n_tokens
    asked, n_answers = batch.questions, len(batch.edge)
    token, answer = asked.query[asked.slot[:n_answers]], asked.answer[:n_answers]
    for first in (0, count):
        rows = slice(first, min(first + count, n_rows))
        n_own = rows.stop - rows.start
        ids, position = np.zeros((2, count, length), np.int32)
        end = np.tile(np.arange(1, length + 1, dtype=np.int32), (count, 1))
        ids[:n_own], position[:n_own] = batch.ids[rows], batch.position[rows]
        end[:n_own] = batch.subtree_end[rows]
        own = slice(*np.searchsorted(token, [first * length, rows.stop * length]))
        of_rows = token[own] - first * length, answer[own], batch.edge[own]
        for part in questions(*of_rows, count * length):
            yield RowBatch(ids, position, end, part, n_tokens)
            n_tokens = 0  # counted once
