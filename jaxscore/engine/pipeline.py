"""Scoring pipeline: windows in, scores out in order, with batches in flight.

input ──▶ windows ──▶ plan ──▶ send, two batches in flight, fetch ──▶ scores of each window
caller    thread      thread   thread, with a journal thread          caller
"""

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.engine.dispatch import Dispatch, InFlight, PlannedBatch
from jaxscore.engine.journal_writer import JournalWriter, Rows, read_journal
from jaxscore.engine.planner import Planner
from jaxscore.engine.progress import Progress, RunStatistics
from jaxscore.engine.stages import PATIENCE, Stage, rare_collection
from jaxscore.io import interrupts, processes
from jaxscore.journal import Journal, pack_scores, unpack_scores
from jaxscore.plan.requests import BASE_SCORES, ScoreOptions, SequenceScores, TokenSequence
from jaxscore.plan.result_assembly import ForestScores, Planned, Window
from jaxscore.plan.row_batches import RowBatch
from jaxscore.plan.tries import Subforest

AHEAD = 2  # windows in progress after the one whose scores are read next
IN_FLIGHT = 2  # one batch computing and one queued, so that the device never waits for the host

Windows = Callable[[Iterator[Any]], Iterator[list[TokenSequence]]]
_END = object()  # after the last chunk


class _Sent(NamedTuple):
    """Batches in flight, and the destination of their scores."""

    window: Window
    forest_scores: ForestScores
    subforest: Subforest
    in_flight: InFlight


class Pipeline:
    """Plans windows, sends their batches and returns the scores in input order.

    Attributes:
        planner, dispatch, statistics: the components of the pipeline.
        journal: journal of earlier results, to which new results are added, or None; may be set
            between two runs.
        pauses_journal: if True, runs do not use the journal.
        progress: if True, a bar is displayed on stderr.
    """

    def __init__(
        self,
        planner: Planner,
        dispatch: Dispatch,
        statistics: RunStatistics,
        journal: Journal | None = None,
        *,
        progress: bool = False,
    ) -> None:
        self.planner, self.dispatch, self.statistics = planner, dispatch, statistics
        self.journal, self.pauses_journal, self.progress = journal, False, progress
        self._detaching = threading.RLock()  # a write would reopen a closed journal

    @property
    def active_journal(self) -> Journal | None:
        """The journal that runs read and write, or None."""
        return None if self.pauses_journal else self.journal

    def score_windows(
        self,
        chunks: Iterable[Any],
        n_expected: int | None = None,
        options: ScoreOptions = BASE_SCORES,
        windows: Windows | None = None,
        chunks_ahead: int = 1,
    ) -> Iterator[list[SequenceScores]]:
        """Yield the scores of each window, in order.

        The caller's thread reads `chunks`. A second thread converts them to windows, a third one
        plans the windows, and a fourth one keeps the device busy, so that the device waits neither
        for reading nor for the caller's use of scores.

        Args:
            chunks: input of `windows`; if `windows` is None, lists of sequences, each of which is a
                window.
            n_expected: total number of sequences, if known; used for the time left.
            options: additional scores of each scored token.
            windows: converts chunks to windows, in order.
            chunks_ahead: maximum number of chunks that wait, at least 1.

        Raises:
            KeyboardInterrupt: an interrupt was requested. Batches in flight were journaled, and
                windows with complete scores were yielded; after the interrupt, nothing else was
                read, tokenized or planned.
        """
        # Over 60 lines: the generators of the threads share the queue and its events.
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        room = threading.Semaphore(AHEAD + 1)
        stopped, news = threading.Event(), threading.Event()

        def has_ended() -> bool:
            return stopped.is_set() or interrupts.interrupt_requested()

        def taken_chunks() -> Iterator[Any]:
            for chunk in iter(waiting.get, _END):
                news.set()
                if has_ended():
                    return
                yield chunk

        def admitted_windows() -> Iterator[list[TokenSequence]]:
            source = taken_chunks() if windows is None else windows(taken_chunks())
            while True:
                room.acquire()
                window = None if has_ended() else next(source, None)
                if window is None or has_ended():  # its last chunks may be missing
                    return
                yield window

        def planned_windows() -> Iterator[Window]:
            for sequences in admitted:
                window = self.planner.window(sequences, options)
                for forest in window.forests:  # compute rows and digests before the first batch
                    _ = forest.digest, [plan.rows for _, plan in forest.plans]
                yield window

        with (
            Progress(self.progress) as progress,
            interrupts.finish_on_interrupt(),
            rare_collection(),
        ):
            admitted = Stage("windows", admitted_windows(), 1)
            planned = Stage("plan", planned_windows(), 1)
            computed = self._scored(planned, progress, n_expected, stopped, options)
            scored = Stage("device", computed, 0, news)
            try:
                for chunk in interrupts.until_interrupt(chunks):
                    waiting.put(chunk)
                    # Yield scores only once enough chunks wait: nothing is read while the caller
                    # uses the scores.
                    while waiting.qsize() >= chunks_ahead or scored.failed:
                        if scored.ready:
                            room.release()
                            yield next(scored).scores()
                            continue
                        news.clear()
                        is_full = waiting.qsize() >= chunks_ahead or scored.failed
                        if is_full and not scored.ready:
                            news.wait()
                waiting.put(_END)
                for window in scored:
                    room.release()
                    yield window.scores()
            finally:
                stopped.set()
                waiting.put(_END)
                room.release()
                for stage in (admitted, planned, scored):
                    stage.stop()

    def _scored(
        self,
        planned: Stage[Window],
        progress: Progress,
        n_expected: int | None,
        stopped: threading.Event,
        options: ScoreOptions,
    ) -> Iterator[Window]:
        """Score windows, with `IN_FLIGHT` batches in flight, across windows.

        At the end, the journal has all scores.
        """
        # Over 60 lines: the order of these steps across windows is the mechanism.
        in_flight: deque[_Sent] = deque()
        open_windows: deque[Window] = deque()
        journal_writer: contextlib.AbstractContextManager[JournalWriter | None]
        journal_writer = contextlib.nullcontext()
        if self.active_journal is not None and processes.is_first():
            journal_writer = JournalWriter(functools.partial(self._write, options))

        def fetch(n_left: int = 0) -> None:
            while len(in_flight) > n_left:
                self._fetch(in_flight.popleft(), progress, writer)

        def finished() -> Iterator[Window]:
            while open_windows and open_windows[0].done:
                yield open_windows.popleft()

        def stop_if_interrupted() -> Iterator[Window]:
            if interrupts.interrupt_requested():
                fetch()
                yield from finished()
                raise KeyboardInterrupt

        with journal_writer as writer:
            while True:
                while in_flight and not planned.ready:  # nothing to send
                    fetch(len(in_flight) - 1)
                    yield from finished()
                while not planned.ready:  # planning may take long; it stops at its next window
                    yield from stop_if_interrupted()
                    planned.wait(PATIENCE)
                try:
                    window = next(planned, None)
                except Exception:  # of reading, tokenizing or planning; computed scores are kept
                    fetch()
                    yield from finished()
                    raise
                if window is None:
                    break
                yield from stop_if_interrupted()
                self.statistics.count_window(window)
                # Before any program runs: it would wait forever for a process with other input.
                processes.verify_same("requests", bytes.fromhex(self.statistics.plan_hash))
                open_windows.append(window)
                progress.extend(window.n_tokens, len(window.sequences), n_expected)
                if writer is not None and not writer.has_written(window):
                    # A text of an earlier window that is still in flight must be in the journal, or
                    # it would be computed again, with other neighbours, and its row replaced.
                    fetch()
                    writer.flush()
                self._restore(window)
                for forest_scores, subforest, plan in window.planned_subforests():
                    caches: tuple[KVCache, ...] | None = None
                    for batches in self._together(forest_scores, subforest, plan, progress):
                        yield from stop_if_interrupted()
                        if stopped.is_set():  # nobody reads the scores any more
                            return
                        variant = forest_scores.variant
                        if caches is None:
                            caches = self.dispatch.prefix(variant, subforest.prefix, progress)
                        window.n_in_flight += 1
                        sent = self.dispatch.send(
                            variant, batches, caches, progress, forest_scores.options
                        )
                        in_flight.append(_Sent(window, forest_scores, subforest, sent))
                        if len(in_flight) > IN_FLIGHT:
                            fetch(IN_FLIGHT)
                            yield from finished()
                window.all_sent = True
                yield from finished()
            fetch()
            yield from stop_if_interrupted()
            if stopped.is_set():  # the windows ended because nobody reads the scores any more
                return
            # A process that has more to score meets the others here; the check fails in all of
            # them before results are written.
            end = bytes.fromhex(self.statistics.plan_hash) + b" and no more"
            processes.verify_same("requests", end)
            yield from open_windows

    def _write(self, options: ScoreOptions, rows: Rows) -> None:
        """Write scores to the journal; a journal closed during the run is not reopened."""
        with self._detaching:
            if self.journal is not None:
                self.journal.write_scores(rows, options)

    def _restore(self, window: Window) -> None:
        """Store journaled scores in the window."""
        sequences, options = window.sequences, window.options
        journaled = read_journal(
            self.active_journal,
            lambda journal: journal.read_scores(sequences, options),
            pack_scores,
            functools.partial(unpack_scores, options=options),
        )
        n_complete = sum(bool(np.isfinite(scores.logprob).all()) for scores in journaled.values())
        self.statistics.sequences_restored += n_complete
        for forest_scores in window.forests:
            forest_scores.restore(journaled)

    def _together(
        self, forest_scores: ForestScores, subforest: Subforest, plan: Planned, progress: Progress
    ) -> Iterator[list[PlannedBatch]]:
        """Group the batches that are sent at once, without fully journaled batches.

        Journaled sequences are laid out like all others, so that a missing sequence has the same
        neighbours, and with them the same last bits, as in an uninterrupted run.
        """

        def missing() -> Iterator[RowBatch]:
            for batch in plan.batches():
                if self.active_journal is not None and forest_scores.has_scores(subforest, batch):
                    progress.advance(batch.n_tokens)
                else:
                    yield batch

        return self.dispatch.together(forest_scores.variant, missing())

    def _fetch(self, sent: _Sent, progress: Progress, writer: JournalWriter | None) -> None:
        window, forest_scores, subforest, in_flight = sent
        for batch, scores in self.dispatch.fetched(in_flight, progress):
            edges = forest_scores.add_scores(subforest, batch, scores)
            if writer is not None:
                writer.add_scored(window, forest_scores, edges)
            progress.advance(batch.n_tokens)
        window.n_in_flight -= 1
