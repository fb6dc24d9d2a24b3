"""Journal of a run: reading in all processes, and writing of scores in a thread."""

import contextlib
import queue
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from jaxscore.engine.stages import Stage
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.journal import Journal
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.plan.result_assembly import ForestScores, Window

T = TypeVar("T")

TOGETHER = 4096  # maximum number of sequences in a transaction, and of sequences that wait for one
PARTS_AFTER = 5.0  # seconds until incomplete sequences are written

Rows = list[tuple[TokenSequence, SequenceScores]]


def read_journal(
    journal: Journal | None,
    read: Callable[[Journal], dict[int, T]],
    pack: Callable[[T], bytes],
    unpack: Callable[[bytes], T | None],
) -> dict[int, T]:
    """Read the journal in the first process, and return the results in every process.

    Args:
        journal: the journal, or None for an empty result.
        read: reads results, by the index of their request.
        pack, unpack: convert one result to and from the bytes of a message.
    """
    if journal is None:
        return {}
    processes.note_journal(journal.path)
    results = read(journal) if processes.is_first() else {}
    if not processes.is_distributed():
        return results
    rows = {index: pack(value) for index, value in results.items()}
    message = processes.broadcast_from_first(
        b"".join(struct.pack("<QQ", index, len(row)) + row for index, row in rows.items())
    )
    received: dict[int, T] = {}
    offset = 0
    while offset < len(message):
        index, size = struct.unpack_from("<QQ", message, offset)
        start, offset = offset + 16, offset + 16 + size
        if (value := unpack(message[start:offset])) is not None:
            received[index] = value
    return received


class _Incomplete(NamedTuple):
    """Sequences of a forest that have some of their scores.

    Attributes:
        flags: bool [sequences of the forest], True for an incomplete one.
    """

    window: Window
    work: ForestScores
    flags: np.ndarray


class JournalWriter:
    """Writes each sequence once all its tokens have scores, while the device computes.

    A transaction writes everything that was queued during the previous one. An incomplete sequence
    waits a few seconds for its remaining scores, so that most sequences are written once instead
    of after each of their batches. On exit of the context everything is written.

    Only one thread may use the writer. Errors of the journal are raised by the next call.
    """

    def __init__(self, write: Callable[[Rows], None]) -> None:
        """Start the thread that writes.

        Args:
            write: writes rows in a transaction; may raise InputError.
        """
        self._queue: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
        self._transactions = Stage("journal", _write_queue(self._queue, write), 0)
        self._unwritten: deque[tuple[Window, int]] = deque()  # queued: window, number of sequences
        self._incomplete: dict[int, _Incomplete] = {}  # by the `id` of the forest's scores
        self._incomplete_written = time.monotonic()
        self._recent: list[Window] = []  # windows that may not be in the journal yet

    def has_written(self, window: Window) -> bool:
        """Return True if earlier windows' scores of this window's sequences are all journaled.

        That holds if each earlier window is written, or has none of these sequences.
        """
        waiting = {id(unwritten) for unwritten, _ in self._unwritten}
        waiting |= {id(incomplete.window) for incomplete in self._incomplete.values()}
        self._recent = [
            recent for recent in self._recent if not recent.done or id(recent) in waiting
        ]
        is_disjoint = all(window.keys.isdisjoint(recent.keys) for recent in self._recent)
        self._recent.append(window)
        return is_disjoint

    def add_scored(self, window: Window, work: ForestScores, edges: np.ndarray) -> None:
        """Queue the sequences that are complete with these edges, which were just scored.

        Raises:
            InputError: the journal could not be written.
        """
        touched, is_complete = work.count_scored(edges)
        if id(work) not in self._incomplete:
            flags = np.zeros(len(work.index), bool)
            self._incomplete[id(work)] = _Incomplete(window, work, flags)
        flags = self._incomplete[id(work)].flags
        flags[touched] = ~is_complete
        if not flags.any():
            del self._incomplete[id(work)]
        self._write(window, work, touched[is_complete])
        if time.monotonic() - self._incomplete_written >= PARTS_AFTER:
            self._write_incomplete()
        self._wait(TOGETHER)

    def flush(self) -> None:
        """Wait until everything is in the journal.

        Raises:
            InputError: the journal could not be written.
        """
        self._write_incomplete()
        self._wait(0)

    def __enter__(self) -> "JournalWriter":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # The error that ended the run takes precedence over errors of the journal. After Ctrl-C,
        # however, the message promises that finished work is journaled, so they are raised.
        has_failed = error_type is not None and not issubclass(error_type, KeyboardInterrupt)
        try:
            with contextlib.suppress(InputError) if has_failed else contextlib.nullcontext():
                self.flush()
        finally:
            self._queue.put(None)
            self._transactions.stop()

    def _write_incomplete(self) -> None:
        """Queue all incomplete sequences."""
        for window, work, flags in self._incomplete.values():
            self._write(window, work, np.flatnonzero(flags))
        self._incomplete = {}
        self._incomplete_written = time.monotonic()

    def _write(self, window: Window, work: ForestScores, indices: np.ndarray) -> None:
        """Queue sequences, by their position in `work.index`, as soon as the queue has room."""
        for chunk in np.split(indices, range(TOGETHER, len(indices), TOGETHER)):
            if len(chunk):
                self._wait(TOGETHER)
                sequences = [window.sequences[work.index[k]] for k in chunk.tolist()]
                self._unwritten.append((window, len(sequences)))
                self._queue.put([*zip(sequences, work.scores_of(chunk), strict=True)])

    def _wait(self, max_unwritten: int) -> None:
        """Wait until at most this many sequences are unwritten."""
        while self._unwritten and (
            self._transactions.ready or sum(n for _, n in self._unwritten) > max_unwritten
        ):
            for _ in range(next(self._transactions)):
                self._unwritten.popleft()


def _write_queue(
    waiting: "queue.SimpleQueue[Rows | None]", write: Callable[[Rows], None]
) -> Iterator[int]:
    """Write queued rows until None; yield the number of queue entries of each transaction."""
    is_last = False
    while not is_last:
        rows, n_taken = waiting.get(), 0
        together: Rows = []
        while rows is not None:
            together += rows
            n_taken += 1
            if waiting.empty() or len(together) >= TOGETHER:
                break
            rows = waiting.get()
        is_last = rows is None
        if together:
            write(together)
            yield n_taken
