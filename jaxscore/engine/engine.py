"""What runs a model: planner, compiled programs, pipeline, statistics and journal together."""

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from jaxscore.device.backends import deterministic_options
from jaxscore.engine.defaults import BATCH_TOKENS
from jaxscore.engine.dispatch import Dispatch
from jaxscore.engine.journal_writer import RunJournal
from jaxscore.engine.pipeline import Pipeline, Windows
from jaxscore.engine.planner import Planner, model_facts
from jaxscore.engine.programs import Programs, Variant, variants_of
from jaxscore.engine.progress import RunStatistics
from jaxscore.journal.database import Journal
from jaxscore.models.model import Model
from jaxscore.plan.requests import ScoreOptions, SequenceScores, TokenSequence, check_sequences


class Engine:
    """Scores token ids under one model.

    Attributes:
        model: on one device, or on all of its mesh.
        planner, dispatch, statistics, run_journal, pipeline: its parts, see there.
        variants: the model as short and long requests see it.
    """

    def __init__(
        self,
        model: Model,
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool = False,
        journal: Journal | None = None,
        reproducible: bool = False,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            batch_tokens: tokens in each batch, padding included; decides speed and memory.
            progress: a bar on stderr with tokens per second and the time left.
            journal: holds what was scored before, and keeps what is scored.
            reproducible: every sequence is computed by itself (`jaxscore.plan.row_batches`), so its
                scores' bits depend on nothing beside it; `batch_tokens` then has no effect.

        Raises:
            ValueError: `batch_tokens` is below the shortest row.
        """
        self.model = model
        self.planner = Planner(
            model_facts(model), batch_tokens=batch_tokens, reproducible=reproducible
        )
        self.variants = variants_of(model, deterministic_options() if reproducible else {})
        self.dispatch = Dispatch(self.variants, model.mesh)
        self.statistics = RunStatistics()
        self.run_journal = RunJournal(journal)
        self.pipeline = Pipeline(
            self.planner, self.dispatch, self.statistics, self.run_journal, progress=progress
        )

    @property
    def programs(self) -> Programs:
        """Those of the model as most requests see it."""
        return self.variants[0].programs

    def variant(self, n_tokens: int) -> Variant:
        """The model as a request of so many tokens sees it."""
        return self.variants[self.planner.variant(n_tokens)]

    def run(
        self,
        given: Iterable[Any],
        n_expected: int | None = None,
        *,
        top: int = 0,
        measures: Collection[str] = (),
        windows: Windows | None = None,
        parts_ahead: int = 1,
    ) -> Iterator[list[SequenceScores]]:
        """Scores of each window, see `Pipeline.run`, also for `given`, `windows`, `parts_ahead`.

        Each choice of `top` and `measures` has programs of its own.

        Args:
            top: how many of the most probable tokens to return for each scored token, see
                `SequenceScores`.
            measures: names of `Model.measures`, what else to return for each scored token.

        Raises:
            ValueError: `top` is below 0 or above the vocabulary, or a measure is not the model's.
        """
        top = operator.index(top)
        if not 0 <= top <= self.model.vocab_size:
            raise ValueError(
                f"top is {top}, expected 0 to {self.model.vocab_size}, the model's vocabulary"
            )
        known, measures = self.model.measures, [*measures]
        if unknown := [name for name in measures if name not in known]:
            raise ValueError(
                f"measures hold {unknown[0]!r}, expected some of {', '.join(known) or 'none'}"
            )
        wanted = ScoreOptions(top, tuple(name for name in known if name in measures))
        return self.pipeline.run(given, n_expected, wanted, windows, parts_ahead)

    def score_sequences(
        self,
        sequences: Sequence[TokenSequence],
        *,
        top: int = 0,
        measures: Collection[str] = (),
    ) -> list[SequenceScores]:
        """All planned together, one result for each, in order.

        Args:
            top, measures: as of `run`.

        Raises:
            ValueError: a sequence is longer than the model's positions, starts outside its ids,
                or has an id that is no integer of the model's vocabulary; or as `run`.
        """
        if found := self.complaints(sequences):
            first = min(found)
            raise ValueError(f"sequence {first}: {found[first]}")
        [scores] = self.run(iter([list(sequences)]), top=top, measures=measures)
        return scores

    def complaints(self, sequences: Sequence[TokenSequence]) -> dict[int, str]:
        """By their place, the sequences that the model cannot score, and why."""
        vocab_size, positions = self.model.vocab_size, self.model.max_positions
        return check_sequences(
            sequences,
            vocab_size=vocab_size,
            max_positions=positions,
            placeholders=self.model.placeholders,
        )

    def facts(self) -> dict[str, Any]:
        """What an output was made of and what it took, as JSON has it; for its manifest."""
        where, planner = self.model.mesh, self.planner
        return {
            "batch_tokens": None if planner.reproducible else planner.batch_tokens,
            "mesh": None if where is None else str(where.shape),
            "compiler_options": self.programs.options,
            **self.statistics.facts(),
            "batches_that_did_not_fit": sorted(self.dispatch.too_large),
            "programs": [
                {"name": " ".join(map(str, name)), "seconds": round(seconds, 3), "bytes": size}
                for variant in self.variants
                for name, seconds, size in variant.programs.compiled
            ],
        }
