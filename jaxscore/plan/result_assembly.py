"""Windows of sequences that are planned together, and their scores, collected from batches."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.plan.packing import PackedRows
from jaxscore.plan.requests import (
    BASE_SCORES,
    NO_MEASURES,
    PER_TARGET_MEASURES,
    ScoreOptions,
    SequenceScores,
    TokenSequence,
)
from jaxscore.plan.row_batches import OnePerRow, RowBatch
from jaxscore.plan.tries import Forest, Subforest

Planned = PackedRows | OnePerRow  # the rows of a subforest
N_FIELDS = 6  # number of fields of `SequenceScores` before `measures`


class ForestScores:
    """Sequences of one window that one variant of the model scores, and their scores.

    Attributes:
        variant: index of the model's variant.
        index: each sequence's index in the window.
        forest: the forest of these sequences.
        plans: the subforests of the forest, each with its rows.
        options: scores of each edge in addition to the base scores.
    """

    def __init__(
        self,
        variant: int,
        index: Sequence[int],
        forest: Forest,
        plans: list[tuple[Subforest, Planned]],
        options: ScoreOptions = BASE_SCORES,
    ) -> None:
        self.variant, self.index, self.forest, self.plans = variant, index, forest, plans
        self.options = options
        n, top = forest.n_edges, options.top
        logprob, entropy, self_certainty, *measures = np.full(
            (3 + len(options.columns), n), np.nan, np.float32
        )
        self._edges = SequenceScores(
            logprob,
            entropy,
            self_certainty,
            greedy=np.zeros(n, bool),
            top_id=np.zeros((n, top), np.int32),
            top_logprob=np.full((n, top), np.nan, np.float32),
            measures=dict(zip(options.columns, measures, strict=True)),
        )
        self._n_missing: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def n_tokens(self) -> int:
        """Number of tokens in rows and prefixes, without padding."""
        return sum(plan.n_tokens + len(subforest.prefix) for subforest, plan in self.plans)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the batches and their programs, independent of the order of the requests."""
        out = hashlib.sha256(self.options.identity())
        for subforest, plan in self.plans:
            forest = subforest.forest
            for array in (subforest.prefix, forest.ids, forest.depth, forest.edge_node):
                out.update(np.int64(len(array)).tobytes() + array.tobytes())
            out.update(forest.edge_target.tobytes() + plan.layout())
        return out.digest()

    def add_scores(self, subforest: Subforest, batch: RowBatch, scores: Any) -> np.ndarray:
        """Store the scores of a batch. Edges that already have scores keep them.

        Args:
            scores: `device.rows.Scores` with host arrays.

        Returns:
            The edges that had no scores before.
        """
        edges = subforest.edges[batch.edge]
        is_missing = ~np.isfinite(self._edges.logprob[edges])
        edge, target = edges[is_missing], np.flatnonzero(is_missing)
        per_target = not PER_TARGET_MEASURES.isdisjoint(self.options.measures)
        query = target if per_target else batch.scored.slot[target]
        self._edges.logprob[edge] = scores.logprob[target]
        self._edges.greedy[edge] = scores.greedy[target]
        self._edges.entropy[edge] = scores.entropy[query]
        self._edges.self_certainty[edge] = scores.self_certainty[query]
        if self.options.top:
            self._edges.top_id[edge] = scores.top_id[query]
            self._edges.top_logprob[edge] = scores.top_logprob[query]
        masses = () if self.options.classes is None else scores.mass.T
        computed = [*(scores.measures[name] for name in self.options.measures), *masses]
        for values, column in zip(self._edges.measures.values(), computed, strict=True):
            values[edge] = column[query]
        return edge

    def restore(self, journaled: Mapping[int, SequenceScores]) -> None:
        """Store scores of earlier runs.

        Args:
            journaled: index of a sequence in the window -> its scores, NaN where missing.
        """
        for k, index in enumerate(self.index):
            if index in journaled:
                edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
                has_score = np.isfinite(journaled[index].logprob)
                columns = zip(_columns(self._edges), _columns(journaled[index]), strict=True)
                for values, restored in columns:
                    values[edge[has_score]] = restored[has_score]

    def has_scores(self, subforest: Subforest, batch: RowBatch) -> bool:
        """Return True if all edges of a batch have scores."""
        edge = subforest.edges[batch.edge]
        columns = self._edges.logprob, self._edges.entropy, self._edges.self_certainty
        return all(np.isfinite(values[edge]).all() for values in columns)

    def count_scored(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the sequences whose edges have just been scored.

        Args:
            edges: the result of `add_scores`; each edge is passed once.

        Returns:
            Positions of the sequences in `index`, ascending, and a bool array: True for each
            sequence whose scores are complete.
        """
        forest, n = self.forest, len(self.index)
        if self._n_missing is None:
            # The sequences of each edge, sorted by edge; the offset of each edge in them; and the
            # number of tokens without a score in each sequence.
            order = np.argsort(forest.edge_of, kind="stable")
            sequence = np.repeat(np.arange(n), np.diff(forest.offsets))[order]
            first = np.searchsorted(forest.edge_of[order], np.arange(forest.n_edges + 1))
            is_missing = ~np.isfinite(self._edges.logprob)
            is_missing[edges] = True
            missing = np.bincount(sequence, is_missing[forest.edge_of[order]], n)
            self._n_missing = sequence, first, missing.astype(np.int64)
        sequence, first, missing = self._n_missing
        n_scored = np.bincount(sequence[_ranges(first[edges], first[edges + 1])], minlength=n)
        missing -= n_scored
        touched = np.flatnonzero(n_scored)
        return touched, missing[touched] == 0

    def scores_of(self, indices: np.ndarray) -> list[SequenceScores]:
        """Return the scores of the sequences at these positions of `index`; NaN where missing."""
        first, stop = self.forest.offsets[indices], self.forest.offsets[indices + 1]
        edge = self.forest.edge_of[_ranges(first, stop)]
        columns = [values[edge] for values in _columns(self._edges)]
        names, scores = self.options.columns, []
        bounds = np.concatenate([[0], np.cumsum(stop - first)]).tolist()
        for a, b in itertools.pairwise(bounds):
            fields = [values[a:b] for values in columns]
            measures = dict(zip(names, fields[N_FIELDS:], strict=True)) if names else NO_MEASURES
            scores.append(SequenceScores._make([*fields[:N_FIELDS], measures]))
        return scores


@dataclasses.dataclass
class Window:
    """Sequences that are planned together, and the progress of their batches.

    Attributes:
        forests: one forest for each variant of the model that scores some of the sequences.
        n_in_flight: number of dispatched batches whose scores have not been fetched.
        all_sent: True once all batches have been dispatched.
    """

    forests: list[ForestScores]
    sequences: Sequence[TokenSequence]
    options: ScoreOptions = BASE_SCORES
    n_in_flight: int = 0
    all_sent: bool = False

    @functools.cached_property
    def keys(self) -> set[bytes]:
        """Digests of the sequences."""
        return {sequence.digest() for sequence in self.sequences}

    @property
    def done(self) -> bool:
        return self.all_sent and not self.n_in_flight

    @property
    def n_tokens(self) -> int:
        return sum(forest.n_tokens for forest in self.forests)

    def planned_subforests(self) -> Iterator[tuple[ForestScores, Subforest, Planned]]:
        """Yield all subforests with their rows, forest by forest."""
        for forest in self.forests:
            for subforest, plan in forest.plans:
                yield forest, subforest, plan

    def scores(self) -> list[SequenceScores]:
        """Return the scores of each sequence, in the order of `sequences`."""
        by_index: dict[int, SequenceScores] = {}
        for forest in self.forests:
            scores = forest.scores_of(np.arange(len(forest.index)))
            by_index |= zip(forest.index, scores, strict=True)
        return [by_index[k] for k in range(len(self.sequences))]


def _ranges(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Concatenate the integers of all ranges [first, stop)."""
    count = stop - first
    return np.repeat(stop - np.cumsum(count), count) + np.arange(int(count.sum()))


def _columns(scores: SequenceScores) -> list[Any]:
    """Return all arrays: the `N_FIELDS` fields, then the measures."""
    return [*scores[:N_FIELDS], *scores.measures.values()]
