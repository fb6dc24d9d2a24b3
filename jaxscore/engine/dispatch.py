"""Batches to the devices and their scores back, in halves where whole ones do not fit."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.rows import Rows, ScoredPositions, Scores, pack_rows
from jaxscore.device.sharding import ROWS, DeviceMesh
from jaxscore.engine.memory import is_out_of_memory
from jaxscore.engine.programs import Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError
from jaxscore.plan.requests import ScoreOptions
from jaxscore.plan.row_batches import RowBatch, split_scored


class InFlight(NamedTuple):
    """Batches of one shape that are being computed; no scores where they do not fit in memory.

    `variant` is an index in the dispatch's `variants`.
    """

    variant: int
    batches: Sequence[RowBatch]
    caches: tuple[KVCache, ...]
    wanted: ScoreOptions
    scores: Scores | None


class Dispatch:
    """Sends batches and fetches what they score.

    Attributes:
        variants: of the model.
        n_together: batches that go at once, one for each device along `data`; None without a
            mesh, which is one.
        too_large: shapes that did not fit in memory, which from then on are halved at once.
    """

    def __init__(self, variants: Sequence[Variant], mesh: DeviceMesh | None) -> None:
        self.variants = variants
        self.n_together = None if mesh is None else mesh.shape.data
        self.too_large: set[tuple[int, int]] = set()

    def prefix(self, variant: int, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """The keys and values of a shared prefix; none where it has no tokens."""
        if not len(ids):
            return ()
        own = self.variants[variant]
        cache = prefix_cache(own.programs, own.model, ids, progress)
        progress.advance(len(ids))
        return (cache,)

    def send(
        self,
        variant: int,
        batches: Sequence[RowBatch],
        caches: tuple[KVCache, ...],
        progress: Progress,
        wanted: ScoreOptions,
    ) -> InFlight:
        """Dispatch batches of one shape, at most `n_together`, and do not wait for them.

        Raises:
            InputError: they do not fit in memory and cannot be halved, see `_give_up`.
        """
        scores = None
        if batches[0].shape not in self.too_large:
            try:
                scores = self._run(variant, batches, caches, progress, wanted)
            except JaxRuntimeError as problem:
                self._give_up(batches[0].shape, problem, progress)
        return InFlight(variant, batches, caches, wanted, scores)

    def fetched(self, in_flight: InFlight, progress: Progress) -> Iterator[tuple[RowBatch, Scores]]:
        """Each batch, or each half of one, with its scores on the host.

        Raises:
            InputError: as `send`; a program that ran out of memory while it ran is known only here.
        """
        variant, batches, caches, wanted, scores = in_flight
        if scores is not None:
            try:
                columns = jax.device_get(scores)
            except JaxRuntimeError as problem:
                self._give_up(batches[0].shape, problem, progress)
            else:
                n = self.n_together or 1
                for k, batch in enumerate(batches):
                    yield batch, _share(columns, k, n)
                return
        smaller = [half for batch in batches for half in halves(batch)]
        n = self.n_together or 1
        for some in (smaller[k : k + n] for k in range(0, len(smaller), n)):
            yield from self.fetched(self.send(variant, some, caches, progress, wanted), progress)

    def _run(
        self,
        variant: int,
        batches: Sequence[RowBatch],
        caches: tuple[KVCache, ...],
        progress: Progress,
        wanted: ScoreOptions,
    ) -> Scores:
        slots = [one.key.shape[-2] for one in caches]
        values = side_by_side(batches, self.n_together)
        own = self.variants[variant]
        what = f"score with {wanted.name()}" if any(wanted) else "score"
        return own.programs.run(
            (what, *batches[0].shape, *slots),
            functools.partial(own.score, batches[0].shape, **wanted._asdict()),
            (own.model.params, own.programs.put(values, ROWS), *caches),
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
        if not is_out_of_memory(problem):
            raise problem
        what = f"{rows} x {length} tokens do not fit in the device's memory; "
        if rows == 1:
            raise InputError(
                f"{what}spread the model with --mesh model=N, take --quantize int8, or shorten "
                "the longest texts"
            ) from problem
        if jax.process_count() > 1:
            raise InputError(f"{what}give --batch-tokens {rows * length // 2}") from problem
        if shape in self.too_large:  # another batch of it was in flight
            return
        self.too_large.add(shape)
        progress.tell(
            f"{what}going on with {-(-rows // 2)} x {length}, which --batch-tokens "
            f"{rows * length // 2} does at once"
        )


def _share(scores: Scores, k: int, n: int) -> Scores:
    """The k-th batch's of the scores of n batches, one after another."""
    return jax.tree.map(lambda column: np.split(column, n)[k], scores)


def side_by_side(batches: Sequence[RowBatch], n: int | None) -> np.ndarray:
    """`n` batches, the missing ones without questions, int32 [n, size]; for None one, [size]."""
    own = [_packed(batch, batch.scored.n_queries, len(batch.edge)) for batch in batches]
    if n is None:
        [one] = own
        return one
    return np.stack([*own, *[_packed(batches[0], 0, 0)] * (n - len(batches))])


def _packed(batch: RowBatch, n_queries: int, n_answers: int) -> np.ndarray:
    asked = batch.scored
    of_asked: tuple[Any, ...] = asked.query, n_queries, asked.slot, asked.answer, n_answers
    of_batch: tuple[Any, ...] = (
        batch.ids,
        batch.position,
        batch.subtree_end,
        ScoredPositions(*of_asked),
    )
    return pack_rows(Rows(*of_batch))


def halves(batch: RowBatch) -> Iterator[RowBatch]:
    """The same rows in batches of half as many, the last one filled up with empty rows.

    Every edge of the batch is in exactly one of them; more than two are needed where half of the
    rows have more than TARGETS_PER_TOKEN answers per token.
    """
    n_rows, length = batch.shape
    count = -(-n_rows // 2)
    n_tokens = batch.n_tokens
    asked, n_answers = batch.scored, len(batch.edge)
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
        for part in split_scored(*of_rows, count * length):
            yield RowBatch(ids, position, end, part, n_tokens)
            n_tokens = 0  # counted once
