"""The queue of jobs, and the order in which the worker takes them.

A job belongs to one request. The worker takes turns between scoring windows and generation
groups; both take one piece of each job in turn, so that a large request does not delay small ones.
"""

import bisect
import concurrent.futures
import contextlib
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxscore.engine import WINDOW, WINDOW_TOKENS
from jaxscore.plan.requests import TokenSequence
from jaxscore.server import ApiError
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

RETRY_AFTER = 5  # seconds, in the Retry-After header of a refusal
MAX_WAITING = 1 << 20  # prompts that wait or are in work; each takes a kilobyte, however short
MAX_SKIPPED = 256  # jobs that do not fit in a window; trying them takes milliseconds
SMALL = 8  # an eighth of a window's time is for small pieces, also beyond its limit

TARGET = 0.1  # seconds of a window; a request that arrives meanwhile waits for its end
N_TIMED = 5  # windows; one that something else delayed does not move their median
# A window extends until a shared prefix is at most 1/REPEATED of it, but by at most LONGEST times
# its tokens beyond the prefix. A smaller LONGEST lets others wait less, and computes a long prefix
# more often: at 8, a prefix of 0.8 s is half of each window.
REPEATED = 8
LONGEST = 8

# Sequences of one prompt: they share its path in the trie, so they are planned together.
Piece = tuple[TokenSequence, ...]
# (index of the text, its new ids or the finished text) -> None; called in the worker's thread
Watch = Callable[[int, "list[int] | Generated"], None]


class Job:
    """Work for one request.

    Attributes:
        answer: a future that the worker sets. Cancelling it drops the pieces that still wait.
        n_prompts, n_tokens: the size of the job.
        pending: the indices of pieces that still wait, the next one last.
    """

    def __init__(self, n_prompts: int, n_tokens: int) -> None:
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.n_prompts, self.n_tokens = n_prompts, n_tokens
        self.pending = list(reversed(range(n_prompts)))
        self._results: list[Any] = [None] * n_prompts
        self._n_missing = n_prompts
        if not n_prompts:
            self.answer.set_result([])

    @property
    def is_open(self) -> bool:
        """True if a client waits for the answer."""
        return not self.answer.done()

    def set_result(self, index: int, result: Any) -> None:
        """Store the result of one piece; the last one completes the answer, a list in order."""
        if self._results[index] is None:
            self._n_missing -= 1
        self._results[index] = result
        if not self._n_missing:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller is gone
                self.answer.set_result(self._results)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller is gone
            self.answer.set_exception(error)


class ScoringJob(Job):
    """Sequences to score.

    Attributes:
        pieces: the pieces, one per prompt.
        top: the number of most probable tokens per position, one of `TOPS`.
        with_rank: True if each scored token gets its rank in the vocabulary.
        n_computed: the distinct tokens that its pieces added to their windows.
    """

    def __init__(self, pieces: Sequence[Piece], top: int = 0, *, with_rank: bool = False) -> None:
        super().__init__(len(pieces), sum(len(input_ids(piece)) for piece in pieces))
        self.pieces, self.top, self.with_rank = list(pieces), top, with_rank
        self.n_computed = 0
        # Neighbours in the order of their ids share the longest prefixes.
        keys = [sort_key(input_ids(piece)) for piece in self.pieces]
        self.pending.sort(key=keys.__getitem__, reverse=True)


class GenerationJob(Job):
    """Texts to generate.

    Attributes:
        requests: the requests, whose prompts are token ids.
        watch: a callback for new tokens; None if the client does not stream.
        streamed: the indices of texts that `watch` has seen in part; they are not generated again.
    """

    def __init__(self, requests: Sequence[GenerationRequest], watch: Watch | None = None) -> None:
        super().__init__(len(requests), sum(len(request.prompt) for request in requests))
        self.requests, self.watch = list(requests), watch
        self.streamed: set[int] = set()

    def set_result(self, index: int, result: Generated) -> None:
        """Store a finished text, see `Job.set_result`."""
        self.stream(index, result)
        super().set_result(index, result)

    def stream(self, index: int, generated: Generated | list[int]) -> None:
        """Pass new ids of a text, or the finished text, to `watch`."""
        if self.watch is not None and self.is_open:
            self.streamed.add(index)
            self.watch(index, generated)


AnyJob = TypeVar("AnyJob", bound=Job)


def run_pieces(
    pieces: Sequence[tuple[AnyJob, int]], work: Callable[[Sequence[tuple[AnyJob, int]]], None]
) -> None:
    """Do `work` for pieces of several jobs; if it fails, isolate the failure by a call per job."""
    try:
        work(pieces)
    except Exception as error:
        jobs = list(dict.fromkeys(job for job, _ in pieces))
        if len(jobs) == 1:
            traceback.print_exc()
            jobs[0].fail(error)
            return
        for job in jobs:
            run_pieces([piece for piece in pieces if piece[0] is job], work)


def input_ids(piece: Piece) -> np.ndarray:
    """Return the input tokens, int32 [n], of a piece's longest sequence."""
    return max((sequence.input_ids for sequence in piece), key=len)


def sort_key(ids: np.ndarray) -> bytes:
    """Return bytes that sort like the ids."""
    return np.ascontiguousarray(ids, ">u4").tobytes()


def every_token(ids: np.ndarray) -> TokenSequence:
    """Return the sequence that scores all tokens of a text but the first."""
    return TokenSequence(ids, 1)


def next_token(ids: np.ndarray) -> TokenSequence:
    """Return the sequence whose top k are the most probable tokens after a text."""
    return TokenSequence(ids, len(ids), np.zeros(1, np.int32))


class TrieSize:
    """Counts the nodes of the trie of a growing set of id sequences, without building it.

    A sequence adds the tokens that it does not share with its neighbours in sorted order, which
    have the longest common prefixes with it.
    """

    def __init__(self, shares_prefixes: bool = True) -> None:
        self.n_tokens, self._shares_prefixes = 0, shares_prefixes
        self._keys: list[bytes] = []

    def add(self, ids: np.ndarray, limit: Callable[[int], int]) -> int | None:
        """Add a sequence unless the trie would become too large.

        Args:
            ids: int32 [n].
            limit: maps the number of shared tokens to the largest size allowed.

        Returns:
            The number of nodes added, or None if the sequence does not fit.
        """
        key = sort_key(ids)
        index = bisect.bisect_left(self._keys, key)
        neighbours = self._keys[max(0, index - 1) : index + 1] if self._shares_prefixes else ()
        n_shared = max((_shared_prefix(key, other) for other in neighbours), default=0)
        n_added = len(ids) - n_shared
        if self.n_tokens + n_added > limit(n_shared):
            return None
        if n_added:
            self._keys.insert(index, key)
        self.n_tokens += n_added
        return n_added


def _shared_prefix(key: bytes, other: bytes) -> int:
    """Return the number of ids in the common prefix of two keys."""
    n = min(len(key), len(other))
    differ = np.frombuffer(key[:n], ">u4") != np.frombuffer(other[:n], ">u4")
    return int(differ.argmax()) if differ.any() else n // 4


class WindowSize:
    """Size limit of the next window, learned from the time that past windows took.

    Attributes:
        n_tokens: the maximum distinct tokens of the next window; `smallest` until one was timed.
    """

    def __init__(self, smallest: int, largest: int) -> None:
        """Args:
        smallest, largest: bounds of `n_tokens`, however long windows take.
        """
        self._smallest, self._largest = min(smallest, largest), largest
        self._seconds_per_token: deque[float] = deque(maxlen=N_TIMED)
        self.n_tokens = self._smallest

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Record the time of a window that compiled no program.

        Ignores windows that are small for lack of jobs: most of their time is a constant.
        """
        if not n_tokens or (2 * n_tokens < self.n_tokens and seconds < TARGET):
            return
        self._seconds_per_token.append(seconds / max(n_tokens, self._smallest))
        n_target = TARGET / statistics.median(self._seconds_per_token)
        self.n_tokens = int(min(max(n_target, self._smallest), self._largest))

    def limit(self, n_shared: int) -> int:
        """Return the largest window that a text with a shared prefix of `n_shared` tokens may join.

        The next window would compute that prefix again, so the window extends until the prefix is
        a small part of it, or until it takes `LONGEST * TARGET` seconds beyond the prefix.
        """
        extended = min(REPEATED * n_shared, n_shared + LONGEST * self.n_tokens)
        return min(max(self.n_tokens, extended), self._largest)

    def small_limit(self, n_shared: int) -> int:
        """Return the largest window that a small text may join."""
        return self._largest


def _unlimited(n_shared: int) -> int:
    return sys.maxsize


class Window(NamedTuple):
    """Pieces that are planned together, each a job and an index, and their distinct tokens."""

    pieces: list[tuple[ScoringJob, int]]
    n_tokens: int


class Group(NamedTuple):
    """Texts that are generated together, each a job and an index."""

    texts: list[tuple[GenerationJob, int]]


class Scheduler:
    """Queue of jobs: the event loop adds, the worker takes.

    Attributes:
        n_prompts, n_tokens: the size of all jobs that wait or are in work.
    """

    def __init__(
        self,
        window_size: WindowSize,
        group_texts: int,
        max_tokens: int,
        gather: float,
        *,
        shares_prefixes: bool = True,
    ) -> None:
        """Args:
        window_size: the limit of windows; used only in the worker's thread.
        group_texts: the maximum texts of a group.
        max_tokens: the maximum tokens that wait or are in work.
        gather: the seconds for which the first job of an idle worker waits for others.
        shares_prefixes: True if a window computes shared prefixes once.
        """
        self._window_size, self._group_texts = window_size, group_texts
        self._max_tokens, self._gather = max_tokens, gather
        self._shares_prefixes = shares_prefixes
        self._changed = threading.Condition()
        self._scoring: deque[ScoringJob] = deque()
        self._generation: deque[GenerationJob] = deque()
        self._open_jobs: set[Job] = set()  # waiting or in work
        self.n_prompts = self.n_tokens = 0
        self._is_idle, self._is_closed, self._generates_next = True, False, False

    def add(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ApiError: 429 if too much waits already, 503 if the server is shutting down.
        """
        if not job.is_open:  # a job without pieces
            return
        with self._changed:
            if self._is_closed:
                raise ApiError(503, "the server is shutting down; use another one", code="ending")
            self._check_room("tokens", self.n_tokens, job.n_tokens, self._max_tokens)
            self._check_room("prompts", self.n_prompts, job.n_prompts, MAX_WAITING)
            self._open_jobs.add(job)
            self.n_prompts += job.n_prompts
            self.n_tokens += job.n_tokens
            if isinstance(job, GenerationJob):
                self._generation.append(job)
            elif isinstance(job, ScoringJob):
                self._scoring.append(job)
            self._changed.notify()
        job.answer.add_done_callback(lambda _: self._remove(job))

    def take(self) -> Window | Group | None:
        """Wait for work and return the next window or group, or None after `close`."""
        with self._changed:
            self._is_idle = self._is_idle or not self._has_work()
            self._changed.wait_for(lambda: self._is_closed or self._has_work())
            if self._is_idle and self._gather and not self._is_closed:
                self._wait_for_others()
            self._is_idle = False
            if self._is_closed:
                return None
            if self._generation and (self._generates_next or not self._scoring):
                self._generates_next = False
                return self._take_group()
            self._generates_next = True
            return self._take_window()

    def take_window(self) -> Window | None:
        """Return a window without waiting, or None; for a worker in the middle of a group."""
        with self._changed:
            return self._take_window() if self._scoring and not self._is_closed else None

    def close(self) -> None:
        """Refuse further jobs, and make `take` return None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def fail_all(self, error: BaseException) -> None:
        """Answer every open job with an error."""
        with self._changed:
            jobs = list(self._open_jobs)
        for job in jobs:
            job.fail(error)

    def _check_room(self, unit: str, n_waiting: int, n: int, limit: int) -> None:
        if n_waiting and n_waiting + n > limit:
            raise ApiError(
                429,
                f"{n_waiting} {unit} wait, and this request has {n}; at most {limit} may wait "
                "together; try again later",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER)},
            )

    def _has_work(self) -> bool:
        return bool(self._scoring or self._generation)

    def _wait_for_others(self) -> None:
        deadline = time.monotonic() + self._gather
        while not self._is_closed and (left := deadline - time.monotonic()) > 0:
            if sum(job.n_tokens for job in self._scoring) >= self._window_size.n_tokens:
                return
            self._changed.wait(left)

    def _take_window(self) -> Window:
        """Take one piece of each job in turn until the window is full.

        A job whose piece does not fit is skipped and starts the next window; small pieces join
        beyond the limit. `add`, and with it the event loop, waits while this runs, which takes a
        tenth of a second for the largest windows.
        """
        size, n_read = TrieSize(self._shares_prefixes), 0
        pieces: list[tuple[ScoringJob, int]] = []
        skipped: list[ScoringJob] = []
        n_small = self._window_size.n_tokens // SMALL
        while self._scoring and len(pieces) < WINDOW and len(skipped) < MAX_SKIPPED:
            job = self._scoring[0]
            ids = input_ids(job.pieces[job.pending[-1]])
            if pieces and n_read + len(ids) > WINDOW_TOKENS:
                break
            n_read += len(ids)
            if not pieces:
                limit = _unlimited
            elif len(ids) <= n_small:
                limit = self._window_size.small_limit
                n_small -= len(ids)
            else:
                limit = self._window_size.limit
            n_added = size.add(ids, limit)
            if n_added is None:
                # If the window ended here, a long prefix would be computed again.
                skipped.append(self._scoring.popleft())
                continue
            job.n_computed += n_added
            pieces.append((job, job.pending.pop()))
            _rotate(self._scoring)
        self._scoring.extendleft(reversed(skipped))
        return Window(pieces, size.n_tokens)

    def _take_group(self) -> Group:
        """Take one text of each job in turn until the group is full."""
        texts: list[tuple[GenerationJob, int]] = []
        while self._generation and len(texts) < self._group_texts:
            job = self._generation[0]
            texts.append((job, job.pending.pop()))
            _rotate(self._generation)
        return Group(texts)

    def _remove(self, job: Job) -> None:
        """Remove a job that is answered or cancelled."""
        with self._changed:
            self._open_jobs.discard(job)
            self.n_prompts -= job.n_prompts
            self.n_tokens -= job.n_tokens
            for queue in (self._scoring, self._generation):
                with contextlib.suppress(ValueError):
                    queue.remove(job)  # type: ignore[arg-type]


def _rotate(jobs: deque[Any]) -> None:
    """Move the first job to the end, or drop it if nothing is pending."""
    job = jobs.popleft()
    if job.pending:
        jobs.append(job)
