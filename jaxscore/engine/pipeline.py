"""Windows of sequences in, their scores out: batches in flight, in order, until interrupted."""

import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.engine import stages
from jaxscore.engine.dispatch import Dispatch, InFlight
from jaxscore.engine.journal_writer import JournalWriter, RunJournal
from jaxscore.engine.planner import Planner
from jaxscore.engine.progress import Progress, RunStatistics
from jaxscore.engine.stages import Stage
from jaxscore.io import interrupts, processes
from jaxscore.plan.prefixes import Part
from jaxscore.plan.requests import BASE_SCORES, ScoreOptions, SequenceScores, TokenSequence
from jaxscore.plan.result_assembly import ForestScores, Planned, Window
from jaxscore.plan.row_batches import RowBatch

AHEAD = 2  # windows on their way behind the one whose scores are taken next
IN_FLIGHT = 2  # batches: one computing, one waiting, so that the device never waits for the host

Windows = Callable[[Iterator[Any]], Iterator[list[TokenSequence]]]
_NO_MORE = object()  # after the last part


class _Sent(NamedTuple):
    """Batches in flight, and where their scores belong."""

    window: Window
    work: ForestScores
    part: Part
    in_flight: InFlight


class Pipeline:
    """Plans windows, sends their batches and puts the scores back in order."""

    def __init__(
        self,
        planner: Planner,
        dispatch: Dispatch,
        statistics: RunStatistics,
        run_journal: RunJournal,
        *,
        progress: bool = False,
    ) -> None:
        self.planner, self.dispatch = planner, dispatch
        self.statistics, self.run_journal, self.progress = statistics, run_journal, progress

    def run(
        self,
        given: Iterable[Any],
        n_expected: int | None = None,
        wanted: ScoreOptions = BASE_SCORES,
        windows: Windows | None = None,
        parts_ahead: int = 1,
    ) -> Iterator[list[SequenceScores]]:
        """Scores of each window, in order.

        The caller's thread reads what is `given`. A second thread makes windows of it, a third
        one plans them, and a fourth one keeps the device busy, so that neither reading nor what
        the caller does with scores makes the device wait.

        Args:
            given: windows of sequences that are planned together, or what `windows` takes.
            n_expected: sequences in all, where it is known: for the time left.
            wanted: for each scored token.
            windows: what makes windows of what is given, in order; None where they are given.
            parts_ahead: how much of what is given waits at most, at least 1.

        Raises:
            KeyboardInterrupt: the user wants the run to end; what was in flight is kept.
        """
        parts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        room = threading.Semaphore(AHEAD + 1)
        stopped, news = threading.Event(), threading.Event()

        def taken() -> Iterator[Any]:
            for part in iter(parts.get, _NO_MORE):
                news.set()
                if stopped.is_set():
                    return
                yield part

        def admitted() -> Iterator[list[TokenSequence]]:
            source = taken() if windows is None else windows(taken())
            while True:
                room.acquire()
                window = None if stopped.is_set() else next(source, None)
                if window is None:
                    return
                yield window

        with Progress(self.progress) as progress, interrupts.finish_on_interrupt(), stages.calm():
            made = Stage("windows", admitted(), 1)
            plan = functools.partial(self._planned, wanted)
            planned = Stage("plan", map(plan, made), 1)
            computed = self._computed(planned, progress, n_expected, stopped, wanted)
            scored = Stage("device", computed, 0, news)

            def crowded() -> bool:
                return parts.qsize() >= parts_ahead or scored.failed

            try:
                for part in given:
                    parts.put(part)
                    # Scores are handed out when enough parts wait: nothing is read while the
                    # caller uses them.
                    while crowded():
                        if scored.ready:
                            room.release()
                            yield next(scored).scores()
                            continue
                        news.clear()
                        if crowded() and not scored.ready:
                            news.wait()
                parts.put(_NO_MORE)
                for window in scored:
                    room.release()
                    yield window.scores()
            finally:
                stopped.set()
                parts.put(_NO_MORE)
                room.release()
                made.stop()
                planned.stop()
                scored.stop()

    def _planned(self, wanted: ScoreOptions, sequences: list[TokenSequence]) -> Window:
        window = self.planner.window(sequences, wanted)
        window.lay_out()
        return window

    def _computed(
        self,
        planned: Stage[Window],
        progress: Progress,
        n_expected: int | None,
        stopped: threading.Event,
        wanted: ScoreOptions,
    ) -> Iterator[Window]:
        """The same windows with their scores, which the journal has when they end."""
        if self.run_journal.journal is None or not processes.is_first():
            yield from self._scored(planned, progress, n_expected, stopped, None)
            return
        with JournalWriter(self.run_journal, wanted) as writer:
            yield from self._scored(planned, progress, n_expected, stopped, writer)

    def _scored(
        self,
        planned: Stage[Window],
        progress: Progress,
        n_expected: int | None,
        stopped: threading.Event,
        writer: JournalWriter | None,
    ) -> Iterator[Window]:
        """The same windows with their scores; `IN_FLIGHT` batches are ahead, across windows."""
        flight: deque[_Sent] = deque()
        open_windows: deque[Window] = deque()

        def fetch() -> None:
            self._fetch(flight.popleft(), progress, writer)

        def fetch_all() -> None:
            while flight:
                fetch()

        def end_if_wished() -> None:
            if interrupts.interrupt_requested():
                fetch_all()
                raise KeyboardInterrupt

        def finished() -> Iterator[Window]:
            while open_windows and open_windows[0].done:
                yield open_windows.popleft()

        while True:
            while flight and not planned.ready:  # nothing to send
                fetch()
                yield from finished()
            try:
                window = next(planned, None)
            except Exception:  # of reading, encoding or planning: what is computed is kept
                fetch_all()
                yield from finished()
                raise
            if window is None:
                break
            end_if_wished()
            self.statistics.count_window(window)
            # Before any program runs that would wait for ever for one that never comes.
            self._agree()
            open_windows.append(window)
            progress.extend(window.n_tokens, len(window.sequences), n_expected)
            if writer is not None and not writer.has_written(window):
                # A text of an earlier window must be found, or it would be computed beside
                # others and its row replaced.
                fetch_all()
                writer.flush()
            self._restore(window)
            for work, part, plan in window.planned_parts():
                caches: tuple[KVCache, ...] | None = None
                for batches in self._together(work, part, plan, progress):
                    end_if_wished()
                    if stopped.is_set():  # nobody takes the scores
                        return
                    if caches is None:
                        caches = self.dispatch.prefix(work.variant, part.prefix, progress)
                    window.n_in_flight += 1
                    sent = self.dispatch.send(work.variant, batches, caches, progress, work.options)
                    flight.append(_Sent(window, work, part, sent))
                    if len(flight) > IN_FLIGHT:
                        fetch()
                        yield from finished()
            window.all_sent = True
            yield from finished()
        fetch_all()
        end_if_wished()
        if stopped.is_set():  # the windows ended because nobody takes the scores
            return
        # A process that has more to score finds the others here, and none of them writes.
        self._agree(b" and no more")
        yield from open_windows

    def _agree(self, more: bytes = b"") -> None:
        processes.verify_same("requests", bytes.fromhex(self.statistics.plan_hash) + more)

    def _restore(self, window: Window) -> None:
        found = self.run_journal.read_scores(window.sequences, window.options)
        whole = sum(bool(np.isfinite(one.logprob).all()) for one in found.values())
        self.statistics.sequences_restored += whole
        for work in window.forests:
            work.restore(found)

    def _together(
        self, work: ForestScores, part: Part, plan: Planned, progress: Progress
    ) -> Iterator[list[RowBatch]]:
        """Batches of one shape, one for each device along `data`, and none that is known.

        What a journal had is laid out all the same, so that what is missing has the same
        neighbours, and with them the same last bits, as ever.
        """
        waiting: list[RowBatch] = []
        for batch in plan.batches():
            if self.run_journal.journal is not None and work.has_scores(part, batch):
                progress.advance(batch.n_tokens)
                continue
            if waiting and (
                batch.shape != waiting[0].shape or len(waiting) == (self.dispatch.n_together or 1)
            ):
                yield waiting
                waiting = []
            waiting.append(batch)
        if waiting:
            yield waiting

    def _fetch(self, sent: _Sent, progress: Progress, writer: JournalWriter | None) -> None:
        window, work, part, in_flight = sent
        for batch, scores in self.dispatch.fetched(in_flight, progress):
            edges = work.add_scores(part, batch, scores)
            if writer is not None:
                writer.add_scored(window, work, edges)
            progress.advance(batch.n_tokens)
        window.n_in_flight -= 1
