"""Requests that are planned together, and what has come back for them."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device.rows import Scores
from jaxscore.engine.programs import Programs
from jaxscore.models.model import Model
from jaxscore.plan.forest import Forest, TokenSequence
from jaxscore.plan.one_per_row import Alone
from jaxscore.plan.packing import Plan, RowBatch
from jaxscore.plan.prefixes import Part

Planned = Plan | Alone  # how a part is laid out


class SequenceScores(NamedTuple):
    """float32 nats and bool, one entry for each scored token of a `TokenSequence`."""

    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray


class Variant(NamedTuple):
    """A model as requests of some lengths see it, and its programs."""

    model: Model
    programs: Programs
    score_rows: Callable[..., Scores]


class Lot:
    """Requests of one window that one variant scores, in one forest."""

    def __init__(
        self,
        variant: Variant,
        index: Sequence[int],
        forest: Forest,
        plans: list[tuple[Part, Planned]],
    ) -> None:
        self.variant, self.index, self.forest, self.plans = variant, index, forest, plans
        n = forest.n_edges
        self._logprob, self._entropy, self._self_certainty = (
            np.full(n, np.nan, np.float32) for _ in range(3)
        )
        self._greedy = np.zeros(n, bool)
        self._asking: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens laid out, trunks included and padding not."""
        return sum(plan.n_tokens + len(part.trunk) for part, plan in self.plans)

    def digest(self) -> bytes:
        """Of all that decides which batches there will be, whatever the requests' order."""
        out = hashlib.sha256()
        for part, plan in self.plans:
            forest = part.forest
            for array in (part.trunk, forest.ids, forest.depth, forest.edge_node):
                out.update(np.int64(len(array)).tobytes() + array.tobytes())
            out.update(forest.edge_target.tobytes() + repr(plan.layout()).encode())
        return out.digest()

    def take(self, part: Part, batch: RowBatch, scores: Scores) -> None:
        """Put a batch's answers at their edges; what is known already stays as it is."""
        n = len(batch.edge)
        asked = batch.edge >= 0
        missing = ~np.isfinite(self._logprob[part.edges[np.where(asked, batch.edge, 0)]])
        asked = asked & missing
        edge = part.edges[batch.edge[asked]]
        self._logprob[edge] = scores.logprob[:n][asked]
        self._greedy[edge] = scores.greedy[:n][asked]
        for here, there in (
            (self._entropy, scores.entropy),
            (self._self_certainty, scores.self_certainty),
        ):
            here[edge] = np.broadcast_to(there[:n, None], asked.shape)[asked]

    def restore(self, found: Mapping[int, SequenceScores]) -> None:
        """Put at their edges what is known of some sequences, by their place in the window."""
        for k, place in enumerate(self.index):
            if place in found:
                edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
                whole = np.isfinite(found[place].logprob)
                for values, known in zip(self._columns(), found[place], strict=True):
                    values[edge[whole]] = known[whole]

    def known(self, part: Part, batch: RowBatch) -> bool:
        """Whether nothing is missing that a batch would answer."""
        edge = part.edges[batch.edge[batch.edge >= 0]]
        return all(np.isfinite(values[edge]).all() for values in self._columns())

    def asking(self, part: Part, batch: RowBatch) -> np.ndarray:
        """The sequences, by their place in `index`, that have an edge of a batch."""
        if self._asking is None:
            order = np.argsort(self.forest.edge_of, kind="stable")
            sequence = np.searchsorted(self.forest.offsets, order, side="right") - 1
            self._asking = self.forest.edge_of[order], sequence
        edges, sequence = self._asking
        edge = part.edges[batch.edge[batch.edge >= 0]]
        first, last = (np.searchsorted(edges, edge, side) for side in ("left", "right"))
        count = last - first
        at = np.repeat(last - np.cumsum(count), count) + np.arange(int(count.sum()))
        return np.unique(sequence[at])

    def scores_of(self, k: int) -> SequenceScores:
        """The sequence at place k of `index`, NaN where nothing has come back."""
        edge = self.forest.edge_of[slice(*self.forest.offsets[k : k + 2])]
        return SequenceScores(*(values[edge] for values in self._columns()))

    def scores(self) -> list[SequenceScores]:
        """One entry a sequence, in the order of `index`."""
        columns = [values[self.forest.edge_of] for values in self._columns()]
        bounds = self.forest.offsets.tolist()
        return [
            SequenceScores(*(column[a:b] for column in columns))
            for a, b in itertools.pairwise(bounds)
        ]

    def _columns(self) -> tuple[Any, ...]:
        return self._logprob, self._entropy, self._self_certainty, self._greedy


class Window:
    """All lots of requests that came together, and how many of their batches are on their way."""

    def __init__(self, lots: list[Lot], sequences: Sequence[TokenSequence], n_unfed: int) -> None:
        self.lots, self.sequences, self.n_unfed = lots, sequences, n_unfed
        self.n_open, self.planned = 0, False

    @property
    def done(self) -> bool:
        return self.planned and not self.n_open

    @property
    def n_tokens(self) -> int:
        return sum(lot.n_tokens for lot in self.lots)

    def planned_parts(self) -> Iterator[tuple[Lot, Part, Planned]]:
        """What is to be computed, one forest's rows after the other."""
        for lot in self.lots:
            for part, plan in lot.plans:
                yield lot, part, plan

    def scores(self) -> list[SequenceScores]:
        """One entry a sequence, in the order in which they came."""
        found: dict[int, SequenceScores] = {}
        for lot in self.lots:
            found |= zip(lot.index, lot.scores(), strict=True)
        return [found[k] for k in range(len(self.sequences))]
