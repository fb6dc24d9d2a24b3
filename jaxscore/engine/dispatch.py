"""Batches to the devices and their scores back, in halves where whole ones do not fit."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device.attention.past import Past
from jaxscore.device.rows import Rows, Scores
from jaxscore.engine.mesh import ROWS, Arrangement
from jaxscore.engine.progress import Progress
from jaxscore.engine.split_batches import exhausted, halves
from jaxscore.errors import InputError
from jaxscore.plan.packing import RowBatch
from jaxscore.plan.window import Variant


class Flown(NamedTuple):
    """Batches of one shape that are being computed; no scores where they do not fit in memory."""

    variant: Variant
    batches: Sequence[RowBatch]
    past: tuple[Past, ...]
    scores: Scores | None


class Dispatch:
    """Sends batches and fetches what they score.

    Attributes:
        n_together: batches that go at once, one a device of those that share the rows; None
            without an arrangement, which is one.
        too_large: shapes that did not fit in memory, which from then on are halved at once.
    """

    def __init__(self, arrangement: Arrangement | None) -> None:
        self.n_together = None if arrangement is None else arrangement.shape.data
        self.too_large: set[tuple[int, int]] = set()

    def send(
        self,
        variant: Variant,
        batches: Sequence[RowBatch],
        past: tuple[Past, ...],
        progress: Progress,
    ) -> Flown:
        """Batches of one shape, at most `n_together`, on their way.

        Raises:
            InputError: they do not fit in memory and cannot be halved, see `_give_up`.
        """
        scores = None
        if batches[0].shape not in self.too_large:
            try:
                scores = self._run(variant, batches, past, progress)
            except JaxRuntimeError as problem:
                self._give_up(batches[0].shape, problem, progress)
        return Flown(variant, batches, past, scores)

    def fetched(self, flown: Flown, progress: Progress) -> Iterator[tuple[RowBatch, Scores]]:
        """Each batch, or each half of one, with its scores on the host.

        Raises:
            InputError: as `send`; what ran out of memory at work is known only here.
        """
        variant, batches, past, scores = flown
        if scores is not None:
            try:
                columns = jax.device_get(scores)
            except JaxRuntimeError as problem:
                self._give_up(batches[0].shape, problem, progress)
            else:
                n_queries = len(batches[0].query)
                for k, batch in enumerate(batches):
                    own = slice(k * n_queries, (k + 1) * n_queries)
                    yield batch, Scores(*(column[own] for column in columns))
                return
        smaller = [half for batch in batches for half in halves(batch)]
        n = self.n_together or 1
        for some in (smaller[k : k + n] for k in range(0, len(smaller), n)):
            yield from self.fetched(self.send(variant, some, past, progress), progress)

    def _run(
        self,
        variant: Variant,
        batches: Sequence[RowBatch],
        past: tuple[Past, ...],
        progress: Progress,
    ) -> Scores:
        slots = [one.key.shape[-3] for one in past]
        rows = _side_by_side(batches, self.n_together)
        return variant.programs.run(
            ("score", *batches[0].shape, *slots),
            variant.score_rows,
            (variant.model.params, variant.programs.put(rows, ROWS), *past),
            progress,
        )

    def _give_up(
        self, shape: tuple[int, int], problem: JaxRuntimeError, progress: Progress
    ) -> None:
        """No more batches of this shape.

        Raises:
            InputError: there are no smaller ones; or there are several processes, which would
                have to agree on it, while only one of them may be out of memory.
        """
        rows, length = shape
        if not exhausted(problem):
            raise problem
        what = f"{rows} x {length} tokens do not fit in the device's memory; "
        if rows == 1:
            raise InputError(
                f"{what}spread the model with --mesh model=N, take --quantize int8, or shorten "
                "the longest texts"
            ) from problem
        if jax.process_count() > 1:
            raise InputError(f"{what}give --batch-tokens {rows * length // 2}") from problem
        if shape in self.too_large:  # another batch of it was on its way
            return
        self.too_large.add(shape)
        progress.tell(
            f"{what}going on with {-(-rows // 2)} x {length}, which --batch-tokens "
            f"{rows * length // 2} does at once"
        )


def _side_by_side(batches: Sequence[RowBatch], n: int | None) -> Rows:
    """Host arrays of `n` batches, empty ones behind those that there are; of one for None."""

    def rows(batch: RowBatch, n_queries: int) -> Rows:
        of_batch: tuple[Any, ...] = (batch.ids, batch.position, batch.subtree_end)
        asked: tuple[Any, ...] = (batch.query, batch.target, np.int32(n_queries))
        return Rows(*of_batch, *asked)

    if n is None:
        [batch] = batches
        return rows(batch, len(batch.edge))
    own = [rows(batch, len(batch.edge)) for batch in batches]
    own += [rows(batches[0], 0)] * (n - len(batches))
    *columns, n_queries = zip(*own, strict=True)
    joined: list[Any] = [np.concatenate(column) for column in columns]
    joined.append(np.array(n_queries, np.int32))
    return Rows(*joined)
