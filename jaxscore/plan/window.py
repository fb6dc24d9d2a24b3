"""Sequences that are planned together, and the scores that have come back for them."""

from collections.abc import Iterator, Sequence

from jaxscore.plan.forest_work import ForestWork, Planned
from jaxscore.plan.prefixes import Part
from jaxscore.plan.token_requests import NOTHING_MORE, SequenceScores, TokenSequence, Wanted


class Window:
    """All work of sequences that came together, and how many of their batches are in flight."""

    def __init__(
        self,
        works: list[ForestWork],
        sequences: Sequence[TokenSequence],
        wanted: Wanted = NOTHING_MORE,
    ) -> None:
        self.works, self.sequences, self.wanted = works, sequences, wanted
        self.n_in_flight, self.all_sent = 0, False

    @property
    def done(self) -> bool:
        return self.all_sent and not self.n_in_flight

    @property
    def n_tokens(self) -> int:
        return sum(work.n_tokens for work in self.works)

    def lay_out(self) -> None:
        """Compute rows and digests now, and not when the first batch is made for a device."""
        for work in self.works:
            _ = work.digest, [plan.rows for _, plan in work.plans]

    def planned_parts(self) -> Iterator[tuple[ForestWork, Part, Planned]]:
        """What is to be computed, one forest's rows after the other."""
        for work in self.works:
            for part, plan in work.plans:
                yield work, part, plan

    def scores(self) -> list[SequenceScores]:
        """One entry for each sequence, in the order in which they came."""
        found: dict[int, SequenceScores] = {}
        for work in self.works:
            found |= zip(work.index, work.scores(), strict=True)
        return [found[k] for k in range(len(self.sequences))]
