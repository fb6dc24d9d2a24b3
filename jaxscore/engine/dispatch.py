"""Sending of batches to the devices and fetching of scores; halving of batches that do not fit."""

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
from jaxscore.engine.programs import DoesNotFit, Programs, Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.plan.chunks import PathPlan, plan_paths
from jaxscore.plan.requests import ScoreOptions, TokenClasses
from jaxscore.plan.row_batches import RowBatch, split_scored


class PlannedBatch(NamedTuple):
    """Batch with its inputs for recurrent layers."""

    rows: RowBatch
    paths: PathPlan | None


class InFlight(NamedTuple):
    """Batches of one program in flight.

    Attributes:
        variant: index into the dispatch's `variants`.
        scores: scores on the devices, or None if the batches do not fit in memory.
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
        n_together: number of batches sent at once, one for each share of `data`; None without a
            mesh, where one batch is sent.
        too_large: shapes that did not fit in memory, whose batches are halved at once.
    """

    def __init__(self, variants: Sequence[Variant], mesh: DeviceMesh | None) -> None:
        self.variants = variants
        self.n_together = None if mesh is None else mesh.shape.data
        self.too_large: set[tuple[int, int]] = set()
        self._mask: tuple[TokenClasses, Any] | None = None  # classes, and their mask on the devices

    def prefix(self, variant: int, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """Compute the prefix cache of these tokens; return an empty tuple without tokens."""
        if not len(ids):
            return ()
        model, programs, _ = self.variants[variant]
        cache = prefix_cache(programs, model, ids, progress)
        progress.advance(len(ids))
        return (cache,)

    def together(self, variant: int, batches: Iterable[RowBatch]) -> Iterator[list[PlannedBatch]]:
        """Group batches that one program computes together, at most `n_together` at once.

        Batches of a group would also run the same program on a single device, so a batch's bits do
        not depend on the other batches of its group.
        """
        needs = self.variants[variant].model.functions.paths
        waiting_by_shape: dict[Hashable, list[PlannedBatch]] = {}
        for batch in batches:
            paths = None if needs is None else plan_paths(batch, needs)
            key = batch.shape, paths and paths.shape
            waiting = waiting_by_shape.setdefault(key, [])
            waiting.append(PlannedBatch(batch, paths))
            if len(waiting) == (self.n_together or 1):
                yield waiting_by_shape.pop(key)
        yield from waiting_by_shape.values()

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
            InputError: they do not fit in memory and cannot be halved, see `_mark_too_large`.
        """
        scores, shape = None, batches[0].rows.shape
        if shape not in self.too_large:
            try:
                scores = self._run(variant, batches, caches, progress, options)
            except JaxRuntimeError as error:
                self._mark_too_large(shape, error, progress)
        return InFlight(variant, batches, caches, options, scores)

    def fetched(self, in_flight: InFlight, progress: Progress) -> Iterator[tuple[RowBatch, Scores]]:
        """Yield each batch, or each half of one, with its scores on the host.

        Raises:
            InputError: see `send`; memory that runs out during execution is only noticed here.
        """
        variant, batches, caches, options, scores = in_flight
        if scores is not None:
            try:
                with jax_settings.isolated():
                    columns, tree = jax.tree.flatten(jax.device_get(scores))
            except JaxRuntimeError as error:
                self._mark_too_large(batches[0].rows.shape, error, progress)
            else:
                shares = (np.split(column, self.n_together or 1) for column in columns)
                # Not strict: in the last group, some shares of `data` may have no batch.
                for batch, leaves in zip(batches, zip(*shares, strict=True), strict=False):
                    yield batch.rows, jax.tree.unflatten(tree, leaves)
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
        path_options = {} if paths is None else {"path_shape": paths.shape}
        values = stack_batches(batches, self.n_together)
        name = f"score with {options.name()}" if any(options) else "score"
        options_of_program = {"top": options.top, "measures": options.measures, **path_options}
        return programs.run(
            (name, *rows.shape, *slots),
            functools.partial(score, rows.shape, **options_of_program),
            (model.params, programs.put(values, ROWS), self._mask_of(options, programs), *caches),
            progress,
        )

    def _mask_of(self, options: ScoreOptions, programs: Programs) -> Any:
        """Return the mask of the run's classes on the devices, which all batches share."""
        classes = options.classes
        if classes is None:
            return None
        if self._mask is None or self._mask[0] is not classes:
            self._mask = classes, programs.put(classes.mask)
        return self._mask[1]

    def _mark_too_large(
        self, shape: tuple[int, int], error: JaxRuntimeError, progress: Progress
    ) -> None:
        """Record that batches of this shape do not fit.

        Raises:
            InputError: a batch of a single row does not fit; or only one of several processes ran
                out of memory, during execution, while the others wait for it in the program.
        """
        rows, length = shape
        if not is_out_of_memory(error):
            raise error
        message = f"{rows} x {length} tokens do not fit in the device's memory; "
        if rows == 1:
            raise InputError(
                f"{message}spread the model with --mesh model=N, use --quantize int8, or shorten "
                "the longest texts"
            ) from error
        if processes.is_distributed() and not isinstance(error, DoesNotFit):
            raise InputError(f"{message}give --batch-tokens {rows * length // 2}") from error
        if shape in self.too_large:  # another batch of this shape was in flight
            return
        self.too_large.add(shape)
        progress.write_line(
            f"{message}continuing with {-(-rows // 2)} x {length}; --batch-tokens "
            f"{rows * length // 2} avoids this"
        )


def stack_batches(batches: Sequence[PlannedBatch], n: int | None) -> np.ndarray:
    """Pack `n` batches as int32 [n, size]; if `n` is None, pack a single batch as [size].

    Missing batches are copies of the first one without scored positions.
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
    arrays: tuple[Any, ...] = (
        rows.ids,
        rows.position,
        rows.subtree_end,
        ScoredPositions(*positions),
        paths,
    )
    return pack_rows(Rows(*arrays))


def halves(batch: RowBatch) -> Iterator[RowBatch]:
    """Split a batch into batches of half as many rows; the last one is padded with empty rows.

    Every edge of the batch is in exactly one of them. There are more than two if one half of the
    rows has more than TARGETS_PER_TOKEN targets per token.
    """
    n_rows, length = batch.shape
    n_half = -(-n_rows // 2)
    n_tokens = batch.n_tokens
    scored, n_answers = batch.scored, len(batch.edge)
    token, answer = scored.query[scored.slot[:n_answers]], scored.answer[:n_answers]
    for first in (0, n_half):
        rows = slice(first, min(first + n_half, n_rows))
        n_filled = rows.stop - rows.start
        ids, position = np.zeros((2, n_half, length), np.int32)
        end = np.tile(np.arange(1, length + 1, dtype=np.int32), (n_half, 1))
        ids[:n_filled], position[:n_filled] = batch.ids[rows], batch.position[rows]
        end[:n_filled] = batch.subtree_end[rows]
        targets = slice(*np.searchsorted(token, [first * length, rows.stop * length]))
        arrays = token[targets] - first * length, answer[targets], batch.edge[targets]
        for scored_half in split_scored(*arrays, n_half * length):
            yield RowBatch(ids, position, end, scored_half, n_tokens)
            n_tokens = 0  # counted once
