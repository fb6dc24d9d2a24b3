"""Windows of sequences that are planned together, and the scores that return for them."""

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
from jaxscore.plan.tries import Forest, Part

Planned = PackedRows | OnePerRow  # the rows of a part
N_FIELDS = 6  # of `SequenceScores`, before its measures


class ForestScores:
    """Sequences of one window that one variant of the model scores, and their scores.

    Attributes:
        variant: index of the model's variant.
        index: each sequence's place in the window.
        forest: of all these sequences.
        plans: the forest's parts, and the rows of each.
        options: scores of each edge in addition to the base scores.
    """

    def __init__(
        self,
        variant: int,
        index: Sequence[int],
        forest: Forest,
        plans: list[tuple[Part, Planned]],
        options: ScoreOptions = BASE_SCORES,
    ) -> None:
        self.variant, self.index, self.forest, self.plans = variant, index, forest, plans
        self.options = options
        n, top = forest.n_edges, options.top
        logprob, entropy, self_certainty, *measures = np.full(
            (3 + len(options.measures), n), np.nan, np.float32
        )
        self._edges = SequenceScores(
            logprob,
            entropy,
            self_certainty,
            greedy=np.zeros(n, bool),
            top_id=np.zeros((n, top), np.int32),
            top_logprob=np.full((n, top), np.nan, np.float32),
            measures=dict(zip(options.measures, measures, strict=True)),
        )
        self._n_missing: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens in rows, with prefixes and without padding."""
        return sum(plan.n_tokens + len(part.prefix) for part, plan in self.plans)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the batches and their programs, whatever the order of the requests."""
        out = hashlib.sha256(self.options.name().encode())
        for part, plan in self.plans:
            forest = part.forest
            for array in (part.prefix, forest.ids, forest.depth, forest.edge_node):
                out.update(np.int64(len(array)).tobytes() + array.tobytes())
            out.update(forest.edge_target.tobytes() + plan.layout())
        return out.digest()

    def add_scores(self, part: Part, batch: RowBatch, scores: Any) -> np.ndarray:
        """Store the scores of a batch. Edges that have scores keep them.

        Args:
            scores: `device.rows.Scores` with arrays of the host.

        Returns:
            The edges that had no scores.
        """
        edges = part.edges[batch.edge]
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
        for name, values in self._edges.measures.items():
            values[edge] = scores.measures[name][query]
        return edge

    def restore(self, journaled: Mapping[int, SequenceScores]) -> None:
        """Store scores of earlier runs, by place in the window; NaN is missing."""
        for k, place in enumerate(self.index):
            if place in journaled:
                edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
                is_known = np.isfinite(journaled[place].logprob)
                columns = zip(_columns(self._edges), _columns(journaled[place]), strict=True)
                for values, known in columns:
                    values[edge[is_known]] = known[is_known]

    def has_scores(self, part: Part, batch: RowBatch) -> bool:
        """Whether all edges of a batch have scores."""
        edge = part.edges[batch.edge]
        columns = self._edges.logprob, self._edges.entropy, self._edges.self_certainty
        return all(np.isfinite(values[edge]).all() for values in columns)

    def count_scored(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the sequences of edges that have just been scored.

        Args:
            edges: as `add_scores` returns them; each edge is passed once.

        Returns:
            Indices of the sequences in `index`, ascending, and whether each is complete.
        """
        forest, n = self.forest, len(self.index)
        if self._n_missing is None:
            # The sequences of each edge, edge after edge; where each edge's begin; and how many
            # tokens without a score each sequence has.
            order = np.argsort(forest.edge_of, kind="stable")
            sequence = np.repeat(np.arange(n), np.diff(forest.offsets))[order]
            first = np.searchsorted(forest.edge_of[order], np.arange(forest.n_edges + 1))
            is_missing = ~np.isfinite(self._edges.logprob)
            is_missing[edges] = True
            missing = np.bincount(sequence, is_missing[forest.edge_of[order]], n)
            self._n_missing = sequence, first, missing.astype(np.int64)
        sequence, first, missing = self._n_missing
        found = np.bincount(sequence[_ranges(first[edges], first[edges + 1])], minlength=n)
        missing -= found
        touched = np.flatnonzero(found)
        return touched, missing[touched] == 0

    def scores_of(self, indices: np.ndarray) -> list[SequenceScores]:
        """Scores of the sequences at these indices of `index`; NaN if missing."""
        first, stop = self.forest.offsets[indices], self.forest.offsets[indices + 1]
        edge = self.forest.edge_of[_ranges(first, stop)]
        columns = [values[edge] for values in _columns(self._edges)]
        names, scores = self.options.measures, []
        bounds = np.concatenate([[0], np.cumsum(stop - first)]).tolist()
        for a, b in itertools.pairwise(bounds):
            own = [values[a:b] for values in columns]
            measures = dict(zip(names, own[N_FIELDS:], strict=True)) if names else NO_MEASURES
            scores.append(SequenceScores._make([*own[:N_FIELDS], measures]))
        return scores


@dataclasses.dataclass
class Window:
    """Sequences that are planned together, and the progress of their batches.

    Attributes:
        forests: one for each variant of the model that scores some of the sequences.
        n_in_flight: dispatched batches whose scores have not returned.
        all_sent: whether all batches have been dispatched.
    """

    forests: list[ForestScores]
    sequences: Sequence[TokenSequence]
    options: ScoreOptions = BASE_SCORES
    n_in_flight: int = 0
    all_sent: bool = False

    @functools.cached_property
    def keys(self) -> set[bytes]:
        """Digests of its sequences."""
        return {sequence.digest() for sequence in self.sequences}

    @property
    def done(self) -> bool:
        return self.all_sent and not self.n_in_flight

    @property
    def n_tokens(self) -> int:
        return sum(forest.n_tokens for forest in self.forests)

    def planned_parts(self) -> Iterator[tuple[ForestScores, Part, Planned]]:
        """Everything to compute, forest after forest."""
        for forest in self.forests:
            for part, plan in forest.plans:
                yield forest, part, plan

    def scores(self) -> list[SequenceScores]:
        """Scores of each sequence, in the order of `sequences`."""
        found: dict[int, SequenceScores] = {}
        for forest in self.forests:
            scores = forest.scores_of(np.arange(len(forest.index)))
            found |= zip(forest.index, scores, strict=True)
        return [found[k] for k in range(len(self.sequences))]


def _ranges(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The integers of all ranges [first, stop), one range after the other."""
    count = stop - first
    return np.repeat(stop - np.cumsum(count), count) + np.arange(int(count.sum()))


def _columns(scores: SequenceScores) -> list[Any]:
    """All arrays: the `N_FIELDS` fields, then the measures."""
    return [*scores[:N_FIELDS], *scores.measures.values()]
