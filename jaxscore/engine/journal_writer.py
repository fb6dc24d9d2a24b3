"""The scores of a run on their way into its journal, in a thread of their own."""

import contextlib
import functools
import queue
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from jaxscore.engine.stages import Stage
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.journal.database import (
    Journal,
    joined,
    packed_scores,
    packed_text,
    pairs,
    unpacked_scores,
    unpacked_text,
)
from jaxscore.plan.requests import (
    BASE_SCORES,
    GeneratedTokens,
    ScoreOptions,
    SequenceScores,
    TokenRequest,
    TokenSequence,
)
from jaxscore.plan.result_assembly import ForestScores, Window

T = TypeVar("T")

TOGETHER = 4096  # sequences that are handed over at once, and those that wait at most
PARTS_AFTER = 5.0  # seconds, after which sequences that lack tokens are written as they are

Rows = list[tuple[TokenSequence, SequenceScores]]


class RunJournal:
    """Scores and texts in a journal, or nowhere.

    Attributes:
        journal: None keeps nothing; may be set between two runs.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal

    def read_scores(
        self, sequences: Sequence[TokenSequence], wanted: ScoreOptions = BASE_SCORES
    ) -> dict[int, SequenceScores]:
        """What the journal has, by the place in `sequences`; the same in every process."""
        if self.journal is None:
            return {}
        found = self.journal.read_scores(sequences, wanted) if processes.is_first() else {}
        unpacked = functools.partial(unpacked_scores, wanted=wanted)
        return _from_first(found, packed_scores, unpacked)

    def write_scores(
        self,
        finished: Iterable[tuple[TokenSequence, SequenceScores]],
        wanted: ScoreOptions = BASE_SCORES,
    ) -> None:
        """Write these in one transaction."""
        if self.journal is not None and processes.is_first():
            self.journal.write_scores(finished, wanted)

    def read_texts(self, requests: Sequence[TokenRequest]) -> dict[int, GeneratedTokens]:
        """What the journal has, by the place in `requests`; the same in every process."""
        if self.journal is None:
            return {}
        found = self.journal.read_texts(requests) if processes.is_first() else {}
        return _from_first(found, packed_text, unpacked_text)

    def write_texts(self, finished: Iterable[tuple[TokenRequest, GeneratedTokens]]) -> None:
        """Write these in one transaction."""
        if self.journal is not None and processes.is_first():
            self.journal.write_texts(finished)

    def close(self) -> None:
        """Let other runs have the journal."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _from_first(
    found: dict[int, T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T | None]
) -> dict[int, T]:
    """What the first process has found."""
    if not processes.is_distributed():
        return found
    rows = {struct.pack("<q", place): pack(value) for place, value in found.items()}
    out: dict[int, T] = {}
    for key, packed in pairs(processes.broadcast_from_first(joined(rows))):
        if (value := unpack(packed)) is not None:
            out[struct.unpack("<q", key)[0]] = value
    return out


class _Parts(NamedTuple):
    """Sequences of one forest that have some scores and lack others: a flag for each."""

    window: Window
    work: ForestScores
    lacking: np.ndarray


class _Recent:
    """A window that may not be in the journal yet."""

    def __init__(self, window: Window) -> None:
        self.window = window

    @functools.cached_property
    def keys(self) -> set[bytes]:
        """Of its sequences, as the journal has them; computed when another window is compared."""
        return {sequence.digest() for sequence in self.window.sequences}


class JournalWriter:
    """Writes sequences when all their tokens have scores, while the next batches are computed.

    A transaction takes all that has come while the one before was written. A sequence that still
    lacks tokens waits for them, a few seconds at most: most are then written once, and not after
    each batch that has some of them. As a context manager it leaves nothing unwritten.

    Only one thread may use it. What goes wrong in the journal is raised by the next call.
    """

    def __init__(self, run_journal: RunJournal, wanted: ScoreOptions = BASE_SCORES) -> None:
        """Starts the thread that writes.

        Args:
            wanted: of the run whose scores these are.
        """
        self._given: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
        self._written = Stage("journal", _written(self._given, run_journal, wanted), 0)
        self._unwritten: deque[tuple[Window, int]] = deque()  # and how many sequences of it
        self._parts: dict[int, _Parts] = {}  # by the identity of the forest's work
        self._parts_written = time.monotonic()
        self._recent: list[_Recent] = []

    def has_written(self, window: Window) -> bool:
        """Whether the journal has all that earlier windows have scored of this one's sequences.

        True if each of those windows is written, or has none of these sequences.
        """
        self._recent = [one for one in self._recent if not self._has(one.window)]
        own = _Recent(window)
        known = all(own.keys.isdisjoint(other.keys) for other in self._recent)
        self._recent.append(own)
        return known

    def add_scored(self, window: Window, work: ForestScores, edges: np.ndarray) -> None:
        """These edges of a forest have been scored.

        Raises:
            InputError: the journal could not be written.
        """
        touched, whole = work.count_scored(edges)
        if id(work) not in self._parts:
            self._parts[id(work)] = _Parts(window, work, np.zeros(len(work.index), bool))
        lacking = self._parts[id(work)].lacking
        lacking[touched] = ~whole
        if not lacking.any():
            del self._parts[id(work)]
        self._write(window, work, touched[whole])
        if time.monotonic() - self._parts_written >= PARTS_AFTER:
            self._write_parts()
        self._wait(TOGETHER)

    def flush(self) -> None:
        """Return when all that was noted is in the journal.

        Raises:
            InputError: the journal could not be written.
        """
        self._write_parts()
        self._wait(0)

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error that ended the run is told, and not the journal's. Who ends a run by Ctrl-C is
        # told that finished work is kept, so a journal that lacks some of it is an error.
        told = kind is not None and not issubclass(kind, KeyboardInterrupt)
        try:
            with contextlib.suppress(InputError) if told else contextlib.nullcontext():
                self.flush()
        finally:
            self._given.put(None)
            self._written.stop()

    def _has(self, window: Window) -> bool:
        """Whether the journal has all of a window."""
        parts = any(one.window is window for one in self._parts.values())
        return window.done and not parts and all(one is not window for one, _ in self._unwritten)

    def _write_parts(self) -> None:
        """Let sequences be written that lack tokens."""
        for window, work, lacking in self._parts.values():
            self._write(window, work, np.flatnonzero(lacking))
        self._parts = {}
        self._parts_written = time.monotonic()

    def _write(self, window: Window, work: ForestScores, places: np.ndarray) -> None:
        """Hand over sequences, by their place in `work.index`, when there is room for them."""
        for some in np.split(places, range(TOGETHER, len(places), TOGETHER)):
            if len(some):
                self._wait(TOGETHER)
                own = [window.sequences[work.index[k]] for k in some.tolist()]
                self._unwritten.append((window, len(own)))
                self._given.put([*zip(own, work.scores_of(some), strict=True)])

    def _wait(self, most: int) -> None:
        """Return when at most so many sequences are not written yet."""
        while self._unwritten and (
            self._written.ready or sum(n for _, n in self._unwritten) > most
        ):
            for _ in range(next(self._written)):
                self._unwritten.popleft()


def _written(
    given: "queue.SimpleQueue[Rows | None]", run_journal: RunJournal, wanted: ScoreOptions
) -> Iterator[int]:
    """Write what is given until None comes; for each transaction, how many things it has taken."""
    ended = False
    while not ended:
        rows, n_taken = given.get(), 0
        together: Rows = []
        while rows is not None:
            together += rows
            n_taken += 1
            if given.empty() or len(together) >= TOGETHER:
                break
            rows = given.get()
        ended = rows is None
        if together:
            run_journal.write_scores(together, wanted)
            yield n_taken
