"""Sequences that one variant of the model scores, and the scores that have come back for them."""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxscore.plan.packing import PackedRows
from jaxscore.plan.prefixes import Part
from jaxscore.plan.requests import (
    BASE_SCORES,
    NO_MEASURES,
    ScoreOptions,
    SequenceScores,
    TokenSequence,
)
from jaxscore.plan.row_batches import OnePerRow, RowBatch
from jaxscore.plan.tries import Forest

Planned = PackedRows | OnePerRow  # how a part is laid out
N_TERMS = 6  # fields of `SequenceScores` before its measures


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

    @property
    def measures(self) -> Mapping[str, Any]: ...


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


class ForestScores:
    """Sequences of one window that one variant of the model scores, in one forest.

    Attributes:
        variant: index of the model's variant.
        index: of each sequence of the forest, its place in the window.
        forest: all of them.
        plans: the forest's parts, and how each is laid out.
        wanted: what each edge has beside the terms that every run has.
    """

    def __init__(
        self,
        variant: int,
        index: Sequence[int],
        forest: Forest,
        plans: list[tuple[Part, Planned]],
        wanted: ScoreOptions = BASE_SCORES,
    ) -> None:
        self.variant, self.index, self.forest, self.plans = variant, index, forest, plans
        self.wanted = wanted
        n, top = forest.n_edges, wanted.top
        self._edges = SequenceScores(
            logprob=_unknown(n),
            entropy=_unknown(n),
            self_certainty=_unknown(n),
            greedy=np.zeros(n, bool),
            top_id=np.zeros((n, top), np.int32),
            top_logprob=_unknown(n, top),
            measures={name: _unknown(n) for name in wanted.measures},
        )
        self._progress: _Progress | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, prefixes included and padding not."""
        return sum(plan.n_tokens + len(part.prefix) for part, plan in self.plans)

    @functools.cached_property
    def digest(self) -> bytes:
        """Of all that decides which batches there will be, whatever the requests' order, and
        which programs score them."""
        out = hashlib.sha256(self.wanted.name().encode())
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
        edges = part.edges[batch.edge]
        missing = ~np.isfinite(self._edges.logprob[edges])
        edge, answer = edges[missing], np.flatnonzero(missing)
        of_query = answer if self.wanted.by_answer else batch.scored.slot[answer]
        self._edges.logprob[edge] = scores.logprob[answer]
        self._edges.greedy[edge] = scores.greedy[answer]
        self._edges.entropy[edge] = scores.entropy[of_query]
        self._edges.self_certainty[edge] = scores.self_certainty[of_query]
        if self.wanted.top:
            self._edges.top_id[edge] = scores.top_id[of_query]
            self._edges.top_logprob[edge] = scores.top_logprob[of_query]
        for name, values in self._edges.measures.items():
            values[edge] = scores.measures[name][of_query]
        return edge

    def restore(self, found: Mapping[int, SequenceScores]) -> None:
        """Put at their edges what is known of some sequences, by their place in the window."""
        for k, place in enumerate(self.index):
            if place in found:
                edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
                whole = np.isfinite(found[place].logprob)
                for values, known in zip(_arrays(self._edges), _arrays(found[place]), strict=True):
                    values[edge[whole]] = known[whole]

    def known(self, part: Part, batch: RowBatch) -> bool:
        """Whether nothing is missing that a batch would answer."""
        edge = part.edges[batch.edge]
        terms = self._edges.logprob, self._edges.entropy, self._edges.self_certainty
        return all(np.isfinite(values[edge]).all() for values in terms)

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
            before = ~np.isfinite(self._edges.logprob)
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
        every = [values[edge] for values in _arrays(self._edges)]
        names = self.wanted.measures
        out = []
        for a, b in itertools.pairwise(bounds.tolist()):
            terms = [values[a:b] for values in every]
            measures = dict(zip(names, terms[N_TERMS:], strict=True)) if names else NO_MEASURES
            out.append(SequenceScores._make([*terms[:N_TERMS], measures]))
        return out


def _unknown(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def _arrays(scores: SequenceScores) -> list[Any]:
    """All columns, the `N_TERMS` fields first and then the measures."""
    return [*scores[:N_TERMS], *scores.measures.values()]


class Window:
    """All work of sequences that came together, and how many of their batches are in flight."""

    def __init__(
        self,
        forests: list[ForestScores],
        sequences: Sequence[TokenSequence],
        wanted: ScoreOptions = BASE_SCORES,
    ) -> None:
        self.forests, self.sequences, self.wanted = forests, sequences, wanted
        self.n_in_flight, self.all_sent = 0, False

    @property
    def done(self) -> bool:
        return self.all_sent and not self.n_in_flight

    @property
    def n_tokens(self) -> int:
        return sum(work.n_tokens for work in self.forests)

    def lay_out(self) -> None:
        """Compute rows and digests now, and not when the first batch is made for a device."""
        for work in self.forests:
            _ = work.digest, [plan.rows for _, plan in work.plans]

    def planned_parts(self) -> Iterator[tuple[ForestScores, Part, Planned]]:
        """What is to be computed, one forest's rows after the other."""
        for work in self.forests:
            for part, plan in work.plans:
                yield work, part, plan

    def scores(self) -> list[SequenceScores]:
        """One entry for each sequence, in the order in which they came."""
        found: dict[int, SequenceScores] = {}
        for work in self.forests:
            found |= zip(work.index, work.scores(), strict=True)
        return [found[k] for k in range(len(self.sequences))]
