"""What a run takes from its journal and keeps in it: of several processes, the first one does."""

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from jaxscore.io import processes
from jaxscore.journal import row_format
from jaxscore.journal.database import Journal
from jaxscore.plan.token_requests import (
    NOTHING_MORE,
    SequenceScores,
    TokenRequest,
    TokenSequence,
    Wanted,
    Written,
)

T = TypeVar("T")


class JournaledScores:
    """Scores and texts in a journal, or nowhere.

    Attributes:
        journal: None keeps nothing; may be set between two runs.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self.journal = journal

    def found(
        self, sequences: Sequence[TokenSequence], wanted: Wanted = NOTHING_MORE
    ) -> dict[int, SequenceScores]:
        """What the journal has, by the place in `sequences`; the same in every process."""
        if self.journal is None:
            return {}
        found = self.journal.found(sequences, wanted) if processes.first() else {}
        unpacked = functools.partial(row_format.unpacked_scores, wanted=wanted)
        return _from_first(found, row_format.packed_scores, unpacked)

    def keep(
        self,
        finished: Iterable[tuple[TokenSequence, SequenceScores]],
        wanted: Wanted = NOTHING_MORE,
    ) -> None:
        """Write these in one transaction."""
        if self.journal is not None and processes.first():
            self.journal.keep(finished, wanted)

    def found_texts(self, requests: Sequence[TokenRequest]) -> dict[int, Written]:
        """What the journal has, by the place in `requests`; the same in every process."""
        if self.journal is None:
            return {}
        found = self.journal.found_texts(requests) if processes.first() else {}
        return _from_first(found, row_format.packed_text, row_format.unpacked_text)

    def keep_texts(self, finished: Iterable[tuple[TokenRequest, Written]]) -> None:
        """Write these in one transaction."""
        if self.journal is not None and processes.first():
            self.journal.keep_texts(finished)

    def close(self) -> None:
        """Let other runs have the journal."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _from_first(
    found: dict[int, T], pack: Callable[[T], bytes], unpack: Callable[[bytes], T | None]
) -> dict[int, T]:
    """What the first process has found."""
    if not processes.several():
        return found
    rows = {struct.pack("<q", place): pack(value) for place, value in found.items()}
    out: dict[int, T] = {}
    for key, packed in row_format.pairs(processes.from_first(row_format.joined(rows))):
        if (value := unpack(packed)) is not None:
            out[struct.unpack("<q", key)[0]] = value
    return out
