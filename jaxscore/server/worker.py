"""The thread that runs the model: takes windows and groups from the scheduler, returns results."""

import concurrent.futures
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jaxscore.engine.generation import Generator
from jaxscore.engine.generation.slots import most_rows
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.plan.row_batches import TAIL
from jaxscore.scorer import Scorer
from jaxscore.server import TOPS, ApiError, Settings
from jaxscore.server.scheduler import (
    GenerationJob,
    Group,
    Scheduler,
    ScoringJob,
    Window,
    WindowSize,
    every_token,
    next_token,
    run_pieces,
)

WARM_UP_TOKENS = 64
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
PROMPTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20000)


class Metrics:
    """Counters, gauges and histograms of one server, in their own registry.

    No label contains text of a client.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"jaxscore_{name}", description, labels, registry=registry)

        self.requests = counter("requests", "Requests answered", "endpoint", "code")
        self.cancelled = counter("requests_cancelled", "Requests whose client went away")
        self.prompts = counter("prompts", "Prompts scored or continued")
        self.tokens_given = counter("tokens_given", "Tokens of all texts that were scored")
        self.tokens_computed = counter("tokens_computed", "Tokens computed after sharing")
        self.tokens_generated = counter("tokens_generated", "Tokens generated")
        self.programs = counter("programs_compiled", "Programs compiled")
        self.request_seconds = Histogram(
            "jaxscore_request_seconds",
            "Seconds from a request's head to the end of its answer",
            ("endpoint",),
            registry=registry,
            buckets=SECONDS,
        )
        self.window_seconds = Histogram(
            "jaxscore_window_seconds", "Seconds of a window", registry=registry, buckets=SECONDS
        )
        self.window_prompts = Histogram(
            "jaxscore_window_prompts", "Prompts of a window", registry=registry, buckets=PROMPTS
        )

    def watch_queue(self, n_prompts: Callable[[], int], n_tokens: Callable[[], int]) -> None:
        """Register the length of a queue, which is read at each scrape."""
        for name, length in (("prompts", n_prompts), ("tokens", n_tokens)):
            Gauge(
                f"jaxscore_queue_{name}", f"Waiting and in work: {name}", registry=self._registry
            ).set_function(length)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)


class Worker:
    """Owns a scorer and its generator, which no other thread runs.

    Attributes:
        scheduler: the queue of jobs.
        ready: a future that ends after the first window, or with the error of the warm-up.
    """

    def __init__(self, scorer: Scorer, settings: Settings, metrics: Metrics) -> None:
        self._scorer, self._metrics = scorer, metrics
        self._generator = Generator(scorer)
        # A smaller batch would be padded to the smallest one.
        self._window_size = WindowSize(scorer.batch_tokens // TAIL, settings.window_tokens)
        self.scheduler = Scheduler(
            self._window_size,
            most_rows(scorer.model),
            settings.max_queue_tokens,
            settings.gather,
            shares_prefixes=scorer.capabilities.shares_prefixes and not scorer.reproducible,
        )
        metrics.watch_queue(lambda: self.scheduler.n_prompts, lambda: self.scheduler.n_tokens)
        self.ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="jaxscore-worker", daemon=True)
        self._n_programs = 0

    @property
    def is_alive(self) -> bool:
        """True if the worker's thread runs."""
        return self._thread.is_alive() and self.ready.done()

    def start(self) -> None:
        """Start the thread, which first computes a window that compiles common programs."""
        self._thread.start()

    def abort(self) -> None:
        """Refuse further jobs, and answer all open ones with status 503."""
        self.scheduler.close()
        message = "the server shut down before this request was finished; use another one"
        self.scheduler.fail_all(ApiError(503, message, code="ending"))

    def stop(self, seconds: float) -> bool:
        """Refuse further jobs and finish the work in progress.

        Returns:
            True if the thread ended within `seconds`.
        """
        self.scheduler.close()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._warm_up()
            self.ready.set_result(None)
            while (work := self.scheduler.take()) is not None:
                if isinstance(work, Group):
                    run_pieces(work.texts, self._generate)
                    self._count_programs()
                else:
                    self._run_window(work)
        except BaseException as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            else:
                traceback.print_exc()
            self.scheduler.close()
        self.scheduler.fail_all(RuntimeError("the worker has ended"))

    def _warm_up(self) -> None:
        """Compute a window like lm-eval's, to compile its programs before the first client."""
        model = self._scorer.model
        allowed = np.setdiff1d(np.arange(model.vocab_size), list(model.checkpoint.placeholders))
        ids = np.resize(allowed, min(WARM_UP_TOKENS, model.max_positions)).astype(np.int32)
        self._compute([every_token(ids), next_token(ids)], TOPS[1])
        self._count_programs()

    def _run_window(self, window: Window) -> None:
        if window.pieces:
            started = time.perf_counter()
            run_pieces(window.pieces, self._score)
            seconds = time.perf_counter() - started
            self._metrics.window_seconds.observe(seconds)
            self._metrics.window_prompts.observe(len(window.pieces))
            if not self._count_programs():
                self._window_size.observe(window.n_tokens, seconds)

    def _score(self, pieces: Sequence[tuple[ScoringJob, int]]) -> None:
        """Score pieces of several jobs in one pass."""
        sequences = [sequence for job, index in pieces for sequence in job.pieces[index]]
        measures = ("rank",) if any(job.with_rank for job, _ in pieces) else ()
        top = max(job.top for job, _ in pieces)
        scores = iter(self._compute(sequences, top, measures))
        self._metrics.prompts.inc(len(pieces))  # before a client can read the counter
        for job, index in pieces:
            job.set_result(index, [next(scores) for _ in job.pieces[index]])

    def _compute(
        self, sequences: list[TokenSequence], top: int, measures: Sequence[str] = ()
    ) -> list[SequenceScores]:
        statistics = self._scorer.statistics
        n_given, n_computed = statistics.tokens_given, statistics.tokens_laid_out
        [scores] = self._scorer.engine.run(iter([sequences]), top=top, measures=measures)
        self._metrics.tokens_given.inc(statistics.tokens_given - n_given)
        self._metrics.tokens_computed.inc(statistics.tokens_laid_out - n_computed)
        return scores

    def _generate(self, texts: Sequence[tuple[GenerationJob, int]]) -> None:
        """Generate texts of several jobs together; a window has its turn after each block."""
        if any(index in job.streamed for job, index in texts):
            raise RuntimeError("a text that is partly sent cannot be generated again")
        watched: set[int] = set()  # texts that `watch` was called for in this block of steps
        n_streamed = [0] * len(texts)

        def watch(k: int, ids: list[int], ended: bool) -> bool:
            if not watched or k in watched:  # a new block
                watched.clear()
                self._run_window_between_blocks()
            watched.add(k)
            job, index = texts[k]
            if not ended:
                job.stream(index, ids[n_streamed[k] :])
                n_streamed[k] = len(ids)
            return job.is_open

        requests = [job.requests[index] for job, index in texts]
        for k, text in self._generator.stream(requests, watch=watch):
            watched.clear()  # a text is yielded at the end of a block
            job, index = texts[k]
            self._metrics.prompts.inc()
            self._metrics.tokens_generated.inc(len(text.token_ids))
            job.set_result(index, text)

    def _run_window_between_blocks(self) -> None:
        """Run a window, so that scoring never waits for the whole texts of a group."""
        if (window := self.scheduler.take_window()) is not None:
            self._run_window(window)

    def _count_programs(self) -> int:
        """Count and return the programs compiled since the last call."""
        n = sum(len(variant.programs.compiled) for variant in self._scorer.engine.variants)
        n_new, self._n_programs = n - self._n_programs, n
        self._metrics.programs.inc(n_new)
        return n_new
