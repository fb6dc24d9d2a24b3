"""The scores of a run on their way into its journal, in a thread of their own."""

import contextlib
import functools
import queue
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxscore.engine.journaled import JournaledScores
from jaxscore.engine.stages import Stage
from jaxscore.errors import InputError
from jaxscore.plan.token_requests import SequenceScores, TokenSequence
from jaxscore.plan.window import ForestWork, Window

TOGETHER = 4096  # sequences in a transaction, and those that wait for one at most
PARTS_AFTER = 5.0  # seconds, after which sequences that lack tokens are written as they are

Rows = list[tuple[TokenSequence, SequenceScores]]


class _Places(NamedTuple):
    """Sequences of one forest, by their place in its `index`."""

    window: Window
    work: ForestWork
    places: np.ndarray


class _Recent:
    """A window that may not be in the journal yet."""

    def __init__(self, window: Window) -> None:
        self.window = window

    @functools.cached_property
    def keys(self) -> set[bytes]:
        """Of its sequences, as the journal has them; not made where no other window comes."""
        return {sequence.digest() for sequence in self.window.sequences}


class Keeper:
    """Writes sequences when all their tokens have scores, while the next batches are computed.

    While one transaction is written the next one is collected. A sequence that still lacks tokens
    waits for them, a few seconds at most: most are then written once, and not after each batch
    that has some of them. As a context manager it leaves nothing unwritten.

    Only one thread may use it. What goes wrong in the journal is raised by the next call.
    """

    def __init__(self, journaled: JournaledScores) -> None:
        """Starts the thread that writes."""
        self._given: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
        self._written = Stage("journal", map(journaled.keep, iter(self._given.get, None)), 0)
        self._whole: deque[_Places] = deque()
        self._parts: dict[int, _Places] = {}  # by the identity of the forest's work; flags
        self._writing: list[Window] = []  # whose rows are being written
        self._recent: list[_Recent] = []
        self._parts_written = time.monotonic()

    def known(self, window: Window) -> bool:
        """Whether the journal has all that earlier windows have scored of this one's sequences.

        It has where those windows are written, or have none of these sequences.
        """
        self._recent = [one for one in self._recent if self._unwritten(one.window)]
        own = _Recent(window)
        known = all(own.keys.isdisjoint(other.keys) for other in self._recent)
        self._recent.append(own)
        return known

    def note(self, window: Window, work: ForestWork, edges: np.ndarray) -> None:
        """These edges of a forest have been scored.

        Raises:
            InputError: the journal could not be written.
        """
        touched, whole = work.progress(edges)
        if id(work) not in self._parts:
            flags = np.zeros(len(work.index), bool)
            self._parts[id(work)] = _Places(window, work, flags)
        flags = self._parts[id(work)].places
        flags[touched] = ~whole
        if not flags.any():
            del self._parts[id(work)]
        if whole.any():
            self._whole.append(_Places(window, work, touched[whole]))
        if time.monotonic() - self._parts_written >= PARTS_AFTER:
            self._take_parts()
        if self._writing and self._written.ready:
            self._end_write()
        while self._whole and (not self._writing or self._n_whole() > TOGETHER):
            self._begin_write()

    def flush(self) -> None:
        """Return when all that was noted is in the journal.

        Raises:
            InputError: the journal could not be written.
        """
        self._take_parts()
        while self._whole:
            self._begin_write()
        self._end_write()

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            # What ended the run is told, even where the journal is what failed.
            with contextlib.suppress(InputError) if kind else contextlib.nullcontext():
                self.flush()
        finally:
            self._given.put(None)
            self._written.stop()

    def _unwritten(self, window: Window) -> bool:
        """Whether something of a window is not in the journal yet."""
        if not window.done or any(one is window for one in self._writing):
            return True
        if any(one.window is window for one in self._whole):
            return True
        parts = (one for one in self._parts.values() if one.window is window)
        return any(one.places.any() for one in parts)

    def _n_whole(self) -> int:
        return sum(len(one.places) for one in self._whole)

    def _take_parts(self) -> None:
        """Let sequences be written that lack tokens."""
        for window, work, flags in self._parts.values():
            if flags.any():
                self._whole.append(_Places(window, work, np.flatnonzero(flags)))
        self._parts = {}
        self._parts_written = time.monotonic()

    def _begin_write(self) -> None:
        """Hand over the sequences that have waited longest, when the write before has ended."""
        self._end_write()
        rows: Rows = []
        while self._whole and len(rows) < TOGETHER:
            window, work, places = self._whole.popleft()
            some, rest = np.split(places, [TOGETHER - len(rows)])
            if len(rest):
                self._whole.appendleft(_Places(window, work, rest))
            rows += self._rows(window, work, some)
            self._writing.append(window)
        self._given.put(rows)

    def _end_write(self) -> None:
        """Wait for the write that was begun, if one was."""
        if self._writing:
            next(self._written)
            self._writing = []

    @staticmethod
    def _rows(
        window: Window, work: ForestWork, places: np.ndarray
    ) -> Iterator[tuple[TokenSequence, SequenceScores]]:
        for k, scores in zip(places.tolist(), work.scores_of(places), strict=True):
            yield window.sequences[work.index[k]], scores
