"""What waits for the worker, and what it does next: fair windows and groups of texts in turn."""

import contextlib
import sys
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from jaxscore.engine.defaults import WINDOW, WINDOW_TOKENS
from jaxscore.server.errors import ApiError
from jaxscore.server.jobs import Job, ScoringJob, WritingJob, path
from jaxscore.server.trie_size import TrieSize
from jaxscore.server.window_size import WindowSize

RETRY_AFTER = 5  # seconds that a client is told to wait
MOST_WAITING = 1 << 20  # prompts that wait and are in work, each a kilobyte however short
MOST_SKIPPED = 256  # jobs that do not fit in a window; trying them takes milliseconds
SMALL = 8  # an eighth of a window's time is for small pieces, also beyond the limit


class Window(NamedTuple):
    """Pieces that are planned together.

    Attributes:
        pieces: a job, and the place of one of its pieces.
        n_tokens: what is computed for them.
    """

    pieces: list[tuple[ScoringJob, int]]
    n_tokens: int


class Group(NamedTuple):
    """Texts that are written side by side: a job, and the place of one of its texts."""

    texts: list[tuple[WritingJob, int]]


class Backlog:
    """Jobs that wait; the event loop adds, the worker takes.

    Attributes:
        n_prompts, n_tokens: of jobs that wait or are in work.
    """

    def __init__(
        self,
        window_size: WindowSize,
        group_texts: int,
        max_tokens: int,
        gather: float,
        *,
        shares_text: bool = True,
    ) -> None:
        """Args:
        window_size: limits windows; the worker's thread alone uses it.
        group_texts: most texts of a group.
        max_tokens: most tokens that wait and are in work.
        gather: seconds for which the first job of an idle worker waits for others.
        shares_text: whether what pieces of a window share is computed once.
        """
        self._window_size, self._group_texts = window_size, group_texts
        self._max_tokens, self._gather, self._shares_text = max_tokens, gather, shares_text
        self._changed = threading.Condition()
        self._scoring: deque[ScoringJob] = deque()
        self._writing: deque[WritingJob] = deque()
        self._known: set[Job] = set()  # waiting and in work
        self.n_prompts = self.n_tokens = 0
        self._idle, self._closed, self._writes_next = True, False, False

    def add(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
            ApiError: 429, too much waits already; 503, the server ends.
        """
        if not job.open:  # there was nothing to do
            return
        with self._changed:
            if self._closed:
                raise ApiError(503, "the server is ending; ask another one", code="ending")
            self._check_room("tokens", self.n_tokens, job.n_tokens, self._max_tokens)
            self._check_room("prompts", self.n_prompts, job.n_prompts, MOST_WAITING)
            self._known.add(job)
            self.n_prompts += job.n_prompts
            self.n_tokens += job.n_tokens
            if isinstance(job, WritingJob):
                self._writing.append(job)
            elif isinstance(job, ScoringJob):
                self._scoring.append(job)
            self._changed.notify()
        job.answer.add_done_callback(lambda _: self._drop(job))

    def take(self) -> Window | Group | None:
        """What is to be done next; waits for it. None after `close`."""
        with self._changed:
            self._idle = self._idle or not self._waiting()
            self._changed.wait_for(lambda: self._closed or self._waiting())
            if self._idle and self._gather and not self._closed:
                self._wait_for_others()
            self._idle = False
            if self._closed:
                return None
            if self._writing and (self._writes_next or not self._scoring):
                self._writes_next = False
                return self._group()
            self._writes_next = True
            return self._window()

    def take_window(self) -> Window | None:
        """A window where one waits, at once; for a worker in the middle of a group."""
        with self._changed:
            return self._window() if self._scoring and not self._closed else None

    def close(self) -> None:
        """Take no more jobs, and end `take`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail_all(self, problem: BaseException) -> None:
        """Give every job an error in place of its answer."""
        with self._changed:
            jobs = list(self._known)
        for job in jobs:
            job.fail(problem)

    def _check_room(self, what: str, waiting: int, n: int, most: int) -> None:
        if waiting and waiting + n > most:
            raise ApiError(
                429,
                f"{waiting} {what} wait, and this request has {n}; at most {most} may wait "
                "together; ask again later",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER)},
            )

    def _waiting(self) -> bool:
        return bool(self._scoring or self._writing)

    def _wait_for_others(self) -> None:
        until = time.monotonic() + self._gather
        while not self._closed and (left := until - time.monotonic()) > 0:
            if sum(job.n_tokens for job in self._scoring) >= self._window_size.n_tokens:
                return
            self._changed.wait(left)

    def _window(self) -> Window:
        """One piece of each job in turn until the window is full.

        A job whose piece does not fit is skipped and starts the next window; small pieces are let
        in beyond the limit. `add` waits while this runs, and with it the event loop: so many
        pieces take a tenth of a second.
        """
        size, n_read = TrieSize(self._shares_text), 0
        out: list[tuple[ScoringJob, int]] = []
        skipped: list[ScoringJob] = []
        n_small = self._window_size.n_tokens // SMALL
        while self._scoring and len(out) < WINDOW and len(skipped) < MOST_SKIPPED:
            job = self._scoring[0]
            ids = path(job.pieces[job.left[-1]])
            if out and n_read + len(ids) > WINDOW_TOKENS:
                break
            n_read += len(ids)
            if not out:
                limit = _any_size  # the first piece has a window whatever its size
            elif len(ids) <= n_small:
                limit = self._window_size.most_tokens
                n_small -= len(ids)
            else:
                limit = self._window_size.limit
            n_added = size.add(ids, limit)
            if n_added is None:
                # Ending the window here would leave a long prefix to be computed again.
                skipped.append(self._scoring.popleft())
                continue
            job.added += n_added
            out.append((job, job.left.pop()))
            _next_turn(self._scoring)
        self._scoring.extendleft(reversed(skipped))  # the next window starts with them
        return Window(out, size.n_tokens)

    def _group(self) -> Group:
        """One text of each job in turn until the group is full; the turns go on likewise."""
        out: list[tuple[WritingJob, int]] = []
        while self._writing and len(out) < self._group_texts:
            job = self._writing[0]
            out.append((job, job.left.pop()))
            _next_turn(self._writing)
        return Group(out)

    def _drop(self, job: Job) -> None:
        """Forget a job that is answered, or that nobody waits for any more."""
        with self._changed:
            self._known.discard(job)
            self.n_prompts -= job.n_prompts
            self.n_tokens -= job.n_tokens
            for waiting in (self._scoring, self._writing):
                with contextlib.suppress(ValueError):
                    waiting.remove(job)  # type: ignore[arg-type]


def _any_size(n_shared: int) -> int:
    return sys.maxsize


def _next_turn(jobs: deque[Any]) -> None:
    """The first job has had its turn: it goes to the end, or away where nothing of it is left."""
    job = jobs.popleft()
    if job.left:
        jobs.append(job)
