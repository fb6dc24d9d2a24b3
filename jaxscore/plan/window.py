"""Sequences that are planned together, and the scores that have come back for them."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxscore.plan.forest import Forest
from jaxscore.plan.one_per_row import OnePerRow
from jaxscore.plan.packing import Plan
from jaxscore.plan.prefixes import Part
from jaxscore.plan.row_batches import RowBatch
from jaxscore.plan.token_requests import SequenceScores, TokenSequence

Planned = Plan | OnePerRow  # how a part is laid out


class QueryScores(Protocol):
    """What comes back for a batch: arrays of the host, the fields of `device.rows.Scores`."""

    @property
    def logprob(self) -> Any: ...

    @property
    def greedy(self) -> Any: ...

    @property
    def entropy(self) -> Any: ...

    @property
    def self_certainty(self) -> Any: ...

    @property
    def top_id(self) -> Any: ...

    @property
    def top_logprob(self) -> Any: ...


class _Progress(NamedTuple):
    """What a forest's sequences lack.

    Attributes:
        sequence: edge after edge, the sequences that have it, by their place.
        first: [edges + 1], where in `sequence` each edge's begin.
        lacking: [sequences], how many of their tokens have no score.
    """

    sequence: np.ndarray
    first: np.ndarray
    lacking: np.ndarray


class ForestWork:
    """Sequences of one window that one variant of the model scores, in one forest.

    Attributes:
        variant: index of the model's variant.
        index: of each sequence of the forest, its place in the window.
        forest: all of them.
        plans: the forest's parts, and how each is laid out.
        top: how many of the most probable tokens each edge has.
    """

    def __init__(
        self,
        variant: int,
        index: Sequence[int],
        forest: Forest,
        plans: list[tuple[Part, Planned]],
        top: int = 0,
    ) -> None:
        self.variant, self.index, self.forest, self.plans = variant, index, forest, plans
        self.top = top
        n = forest.n_edges
        self._logprob, self._entropy, self._self_certainty = (
            np.full(n, np.nan, np.float32) for _ in range(3)
        )
        self._greedy = np.zeros(n, bool)
        self._top_id = np.zeros((n, top), np.int32)
        self._top_logprob = np.full((n, top), np.nan, np.float32)
        self._progress: _Progress | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, prefixes included and padding not."""
        return sum(plan.n_tokens + len(part.prefix) for part, plan in self.plans)

    def digest(self) -> bytes:
        """Of all that decides which batches there will be, whatever the requests' order, and
        which programs score them."""
        out = hashlib.sha256(f"top {self.top}".encode() if self.top else b"")
        for part, plan in self.plans:
            forest = part.forest
            for array in (part.prefix, forest.ids, forest.depth, forest.edge_node):
                out.update(np.int64(len(array)).tobytes() + array.tobytes())
            out.update(forest.edge_target.tobytes() + plan.layout())
        return out.digest()

    def take(self, part: Part, batch: RowBatch, scores: QueryScores) -> np.ndarray:
        """Put a batch's answers at their edges; what is known already stays as it is.

        Returns:
            The edges that were missing.
        """
        n = len(batch.edge)
        edges = part.edges[batch.edge]
        missing = ~np.isfinite(self._logprob[edges])
        edge, slot = edges[missing], batch.questions.slot[:n][missing]
        self._logprob[edge] = scores.logprob[:n][missing]
        self._greedy[edge] = scores.greedy[:n][missing]
        self._entropy[edge] = scores.entropy[slot]
        self._self_certainty[edge] = scores.self_certainty[slot]
        if self.top:
            self._top_id[edge] = scores.top_id[slot]
            self._top_logprob[edge] = scores.top_logprob[slot]
        return edge

    def restore(self, found: Mapping[int, SequenceScores]) -> None:
        """Put at their edges what is known of some sequences, by their place in the window.

        The most probable tokens are not among it.
        """
        for k, place in enumerate(self.index):
            if place in found:
                edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
                whole = np.isfinite(found[place].logprob)
                for values, known in zip(self._of_tokens(), found[place], strict=False):
                    values[edge[whole]] = known[whole]

    def known(self, part: Part, batch: RowBatch) -> bool:
        """Whether nothing is missing that a batch would answer."""
        edge = part.edges[batch.edge]
        return all(np.isfinite(values[edge]).all() for values in self._of_tokens())

    def progress(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sequences that have one of these edges, and which of them lack no token now.

        Args:
            edges: what `take` has just put there, each of them passed once.

        Returns:
            Places in `index`, ascending, and a flag for each.
        """
        forest, n = self.forest, len(self.index)
        if self._progress is None:
            order = np.argsort(forest.edge_of, kind="stable")
            sequence = np.repeat(np.arange(n), np.diff(forest.offsets))[order]
            first = np.searchsorted(forest.edge_of[order], np.arange(forest.n_edges + 1))
            before = ~np.isfinite(self._logprob)
            before[edges] = True
            lacking = np.bincount(sequence, before[forest.edge_of[order]], n)
            self._progress = _Progress(sequence, first, lacking.astype(np.int64))
        sequence, first, lacking = self._progress
        count = first[edges + 1] - first[edges]
        at = np.repeat(first[edges + 1] - np.cumsum(count), count) + np.arange(int(count.sum()))
        found = np.bincount(sequence[at], minlength=n)
        lacking -= found
        touched = np.flatnonzero(found)
        return touched, lacking[touched] == 0

    def scores_of(self, places: np.ndarray) -> list[SequenceScores]:
        """The sequences at these places of `index`, NaN where nothing has come back."""
        first = self.forest.offsets[places]
        count = self.forest.offsets[places + 1] - first
        bounds = np.concatenate([[0], np.cumsum(count)])
        edge = self.forest.edge_of[
            np.arange(int(bounds[-1])) + np.repeat(first - bounds[:-1], count)
        ]
        return self._cut(edge, bounds)

    def scores(self) -> list[SequenceScores]:
        """One entry for each sequence, in the order of `index`."""
        return self._cut(self.forest.edge_of, self.forest.offsets)

    def _cut(self, edge: np.ndarray, bounds: np.ndarray) -> list[SequenceScores]:
        """The scores of these edges, for each pair of bounds."""
        every = *self._of_tokens(), self._top_id, self._top_logprob
        columns = [values[edge] for values in every]
        return [
            SequenceScores(*(column[a:b] for column in columns))
            for a, b in itertools.pairwise(bounds.tolist())
        ]

    def _of_tokens(self) -> tuple[Any, ...]:
        """The first fields of `SequenceScores`, which a journal keeps."""
        return self._logprob, self._entropy, self._self_certainty, self._greedy


class Window:
    """All work of sequences that came together, and how many of their batches are in flight."""

    def __init__(self, works: list[ForestWork], sequences: Sequence[TokenSequence]) -> None:
        self.works, self.sequences = works, sequences
        self.n_in_flight, self.all_sent = 0, False

    @property
    def done(self) -> bool:
        return self.all_sent and not self.n_in_flight

    @property
    def n_tokens(self) -> int:
        return sum(work.n_tokens for work in self.works)

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
