"""The one thread that runs the model: takes what waits, and hands the numbers back."""

import concurrent.futures
import threading
import time
import traceback
from collections.abc import Sequence

import numpy as np

from jaxscore.engine.generation.slots import most_rows
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.plan.row_batches import TAIL
from jaxscore.scorer import Scorer
from jaxscore.server.backlog import Backlog, Group, Window
from jaxscore.server.errors import ApiError
from jaxscore.server.jobs import Job, ScoringJob, after, every_token, together_or_alone
from jaxscore.server.metrics import Metrics
from jaxscore.server.settings import TOPS, Settings
from jaxscore.server.texts import Texts
from jaxscore.server.window_size import WindowSize

WARM_UP_TOKENS = 64


class Worker:
    """Owns a scorer and its generator, which are no other thread's.

    Attributes:
        backlog: what waits.
        ready: set when the first window was computed; an error where that failed.
        alive: whether jobs are worked on.
    """

    def __init__(self, scorer: Scorer, settings: Settings, metrics: Metrics) -> None:
        self._scorer, self._metrics = scorer, metrics
        self._texts = Texts(scorer, metrics, self._between)
        # A batch has no fewer tokens than its smallest part, whatever of it is padding.
        self._window_size = WindowSize(scorer.batch_tokens // TAIL, settings.window_tokens)
        self.backlog = Backlog(
            self._window_size,
            most_rows(scorer.model),
            settings.max_queue_tokens,
            settings.gather,
            shares_text=not scorer.reproducible,
        )
        metrics.watch_queue(lambda: self.backlog.n_prompts, lambda: self.backlog.n_tokens)
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="jaxscore-worker", daemon=True)
        self._n_programs = 0

    @property
    def alive(self) -> bool:
        """Whether jobs are worked on."""
        return self._thread.is_alive() and self.ready.done()

    def start(self) -> None:
        """Begin, with a window that compiles what most requests need."""
        self._thread.start()

    def add(self, job: Job) -> None:
        """Let a job wait for its turn, see `Backlog.add`."""
        self.backlog.add(job)

    def give_up(self) -> None:
        """Take nothing more, and answer what waits and what is in work with an error."""
        self.backlog.close()
        why = "the server has ended before this request was finished; ask another one"
        self.backlog.fail_all(ApiError(503, why, code="ending"))

    def stop(self, seconds: float) -> bool:
        """Take nothing more, and end after what is in work.

        Returns:
            Whether the thread has ended within so many seconds.
        """
        self.backlog.close()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._warm_up()
            self.ready.set_result(None)
            while (turn := self.backlog.take()) is not None:
                self._do(turn)
        except BaseException as problem:
            if not self.ready.done():
                self.ready.set_exception(problem)
            else:
                traceback.print_exc()
            self.backlog.close()
        self.backlog.fail_all(RuntimeError("the worker has ended"))

    def _warm_up(self) -> None:
        """One window as lm-eval asks it: its programs then exist when the first client comes."""
        n = min(WARM_UP_TOKENS, self._scorer.model.max_positions)
        allowed = np.setdiff1d(
            np.arange(self._scorer.model.vocab_size), list(self._scorer.model.placeholders)
        )
        ids = np.resize(allowed, n).astype(np.int32)
        self._scores([every_token(ids), after(ids)], TOPS[1])
        self._count_programs()

    def _do(self, turn: Window | Group) -> None:
        if isinstance(turn, Group):
            self._texts.write(turn.texts)
        elif turn.pieces:
            started = time.perf_counter()
            self._window(turn.pieces)
            seconds = time.perf_counter() - started
            self._metrics.window_seconds.observe(seconds)
            self._metrics.window_prompts.observe(len(turn.pieces))
            if not self._count_programs():
                self._window_size.observe(turn.n_tokens, seconds)
        self._count_programs()

    def _between(self) -> None:
        """A window in the middle of a group: long texts delay scoring by one block of steps."""
        if (window := self.backlog.take_window()) is not None:
            self._do(window)

    def _window(self, pieces: Sequence[tuple[ScoringJob, int]]) -> None:
        """Score pieces together; where that fails, each job's alone."""
        together_or_alone(pieces, self._put)

    def _put(self, pieces: Sequence[tuple[ScoringJob, int]]) -> None:
        asked = [job.pieces[place] for job, place in pieces]
        top = max(job.top for job, _ in pieces)
        scores = iter(self._scores([sequence for piece in asked for sequence in piece], top))
        self._metrics.prompts.inc(len(pieces))  # before a client can ask for it
        for (job, place), piece in zip(pieces, asked, strict=True):
            job.put(place, [next(scores) for _ in piece])

    def _scores(self, sequences: list[TokenSequence], top: int) -> list[SequenceScores]:
        statistics = self._scorer.statistics
        given, computed = statistics.tokens_given, statistics.tokens_laid_out
        [scores] = self._scorer.engine.run(iter([sequences]), top=top)
        self._metrics.tokens_given.inc(statistics.tokens_given - given)
        self._metrics.tokens_computed.inc(statistics.tokens_laid_out - computed)
        return scores

    def _count_programs(self) -> int:
        """Count programs that were compiled since the last call, and return their number."""
        n = sum(len(one.programs.compiled) for one in self._scorer.engine.variants)
        n_new, self._n_programs = n - self._n_programs, n
        self._metrics.programs.inc(n_new)
        return n_new
