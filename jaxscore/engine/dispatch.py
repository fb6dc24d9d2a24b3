"""Sends batches to the devices and fetches scores; halves batches that do not fit in memory."""

import functools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device import jax_settings
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.rows import Rows, ScoredPositions, Scores, pack_rows
from jaxscore.device.sharding import ROWS, DeviceMesh
from jaxscore.engine.devices import is_out_of_memory
from jaxscore.engine.programs import DoesNotFit, Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.plan.chunks import PathPlan, plan_paths
from jaxscore.plan.requests import ScoreOptions
from jaxscore.plan.row_batches import RowBatch, split_scored


class PlannedBatch(NamedTuple):
    """A batch, and its inputs for recurrent layers."""

    rows: RowBatch
    paths: PathPlan | None


class InFlight(NamedTuple):
    """Batches of one program in flight; `scores` is None if they do not fit in memory.

    `variant` is an index into the dispatch's `variants`.
    """

    variant: int
    batches: Sequence[PlannedBatch]
    caches: tuple[KVCache, ...]
    options: ScoreOptions
    scores: Scores | None


class Dispatch:
    """Sends batches and fetches their scores.

    Attributes:
        variants: the model's variants.
        n_together: batches sent at once, one for each device along `data`; None (one batch)
            without a mesh.
        too_large: shapes that did not fit in memory, whose batches are halved at once.
    """

    def __init__(self, variants: Sequence[Variant], mesh: DeviceMesh | None) -> None:
        self.variants = variants
        self.n_together = None if mesh is None else mesh.shape.data
        self.too_large: set[tuple[int, int]] = set()

    def prefix(self, variant: int, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """Prefix cache of these tokens; empty without tokens."""
        if not len(ids):
            return ()
        model, programs, _ = self.variants[variant]
        cache = prefix_cache(programs, model, ids, progress)
        progress.advance(len(ids))
        return (cache,)

    def together(self, variant: int, batches: Iterable[RowBatch]) -> Iterator[list[PlannedBatch]]:
        """Batches that one program computes, at most `n_together` at once.

        A batch is never beside one whose program differs from its own on one device: its bits do
        not depend on the batches beside it.
        """
        needs = self.variants[variant].model.paths
        of_shape: dict[Hashable, list[PlannedBatch]] = {}
        for batch in batches:
            paths = None if needs is None else plan_paths(batch, needs)
            key = batch.shape, paths and paths.shape
            waiting = of_shape.setdefault(key, [])
            waiting.append(PlannedBatch(batch, paths))
            if len(waiting) == (self.n_together or 1):
                yield of_shape.pop(key)
        yield from of_shape.values()

    def send(
        self,
        variant: int,
        batches: Sequence[PlannedBatch],
        caches: tuple[KVCache, ...],
        progress: Progress,
        options: ScoreOptions,
    ) -> InFlight:
        """Send batches of `together` without waiting for them.

        Raises:
            InputError: they do not fit in memory and cannot be halved, see `_give_up`.
        """
        scores, shape = None, batches[0].rows.shape
        if shape not in self.too_large:
            try:
                scores = self._run(variant, batches, caches, progress, options)
            except JaxRuntimeError as problem:
                self._give_up(shape, problem, progress)
        return InFlight(variant, batches, caches, options, scores)

    def fetched(self, in_flight: InFlight, progress: Progress) -> Iterator[tuple[RowBatch, Scores]]:
        """Yield each batch, or each half of one, with its scores on the host.

        Raises:
            InputError: as `send`; a program that ran out of memory while it ran is known only here.
        """
        variant, batches, caches, options, scores = in_flight
        if scores is not None:
            try:
                with jax_settings.isolated():
                    columns, tree = jax.tree.flatten(jax.device_get(scores))
            except JaxRuntimeError as problem:
                self._give_up(batches[0].rows.shape, problem, progress)
            else:
                shares = (np.split(column, self.n_together or 1) for column in columns)
                of_batches = zip(*shares, strict=True)
                for batch, own in zip(batches, of_batches, strict=False):  # some may have no batch
                    yield batch.rows, jax.tree.unflatten(tree, own)
                return
        smaller = (half for batch in batches for half in halves(batch.rows))
        for together in self.together(variant, smaller):
            sent = self.send(variant, together, caches, progress, options)
            yield from self.fetched(sent, progress)

    def _run(
        self,
        variant: int,
        batches: Sequence[PlannedBatch],
        caches: tuple[KVCache, ...],
        progress: Progress,
        options: ScoreOptions,
    ) -> Scores:
        slots = [cache.key.shape[-2] for cache in caches]
        model, programs, score = self.variants[variant]
        (rows, paths), *_ = batches
        own = {} if paths is None else {"path_shape": paths.shape}
        values = stack_batches(batches, self.n_together)
        name = f"score with {options.name()}" if any(options) else "score"
        return programs.run(
            (name, *rows.shape, *slots),
            functools.partial(score, rows.shape, **options._asdict(), **own),
            (model.params, programs.put(values, ROWS), *caches),
            progress,
        )

    def _give_up(
        self, shape: tuple[int, int], problem: JaxRuntimeError, progress: Progress
    ) -> None:
        """Note that batches of this shape do not fit.

        Raises:
            InputError: a batch of one row does not fit; or one of several processes has found
                it alone, while it ran the program that the others wait in.
        """
        rows, length = shape
        if not is_out_of_memory(problem):
            raise problem
        finding = f"{rows} x {length} tokens do not fit in the device's memory; "
        if rows == 1:
            raise InputError(
                f"{finding}spread the model with --mesh model=N, take --quantize int8, or shorten "
                "the longest texts"
            ) from problem
        if processes.is_distributed() and not isinstance(problem, DoesNotFit):
            raise InputError(f"{finding}give --batch-tokens {rows * length // 2}") from problem
        if shape in self.too_large:  # another batch of it was in flight
            return
        self.too_large.add(shape)
        progress.write_line(
            f"{finding}going on with {-(-rows // 2)} x {length}, which --batch-tokens "
            f"{rows * length // 2} does at once"
        )


def stack_batches(batches: Sequence[PlannedBatch], n: int | None) -> np.ndarray:
    """Pack `n` batches, missing ones without scored positions, as int32 [n, size].

    If `n` is None, pack a single batch as [size].
    """
    packed = [
        _packed(batch, batch.rows.scored.n_queries, len(batch.rows.edge)) for batch in batches
    ]
    if n is None:
        return packed[0]
    return np.stack([*packed, *[_packed(batches[0], 0, 0)] * (n - len(batches))])


def _packed(batch: PlannedBatch, n_queries: int, n_answers: int) -> np.ndarray:
    rows, paths = batch
    scored = rows.scored
    positions: tuple[Any, ...] = scored.query, n_queries, scored.slot, scored.answer, n_answers
    of_batch: tuple[Any, ...] = (
        rows.ids,
        rows.position,
        rows.subtree_end,
        ScoredPositions(*positions),
        paths,
    )
    return pack_rows(Rows(*of_batch))


def halves(batch: RowBatch) -> Iterator[RowBatch]:
    """Split a batch into batches of half as many rows, the last one padded with empty rows.

    Every edge of the batch is in exactly one of them. There are more than two if half of the rows
    have more than TARGETS_PER_TOKEN targets per token.
    """
    n_rows, length = batch.shape
    count = -(-n_rows // 2)
    n_tokens = batch.n_tokens
    scored, n_answers = batch.scored, len(batch.edge)
    token, answer = scored.query[scored.slot[:n_answers]], scored.answer[:n_answers]
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
