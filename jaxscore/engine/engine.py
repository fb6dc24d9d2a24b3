"""`Engine`: the pipeline of one model."""

import dataclasses
import operator
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jaxscore.device import jax_settings
from jaxscore.device.backends import deterministic_options
from jaxscore.engine import BATCH_TOKENS
from jaxscore.engine.dispatch import Dispatch
from jaxscore.engine.pipeline import Pipeline, Windows
from jaxscore.engine.planner import Planner, model_facts
from jaxscore.engine.programs import Programs, Variant, variants_of
from jaxscore.engine.progress import RunStatistics
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.journal import Journal
from jaxscore.models.model import Model
from jaxscore.plan.requests import (
    ScoreOptions,
    SequenceScores,
    TokenClasses,
    TokenSequence,
    check_sequences,
)

Result = TypeVar("Result")


class Engine(Pipeline):
    """Scores token ids with one model.

    Attributes:
        model: the model, on one device or on all devices of its mesh.
        variants: the variants of the model for short and for long requests.
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
        """Create an engine without compiling anything yet.

        Args:
            batch_tokens: number of tokens in each batch, including padding; determines speed and
                memory.
            progress: if True, a bar on stderr shows tokens per second and the time left.
            journal: see `Pipeline`.
            reproducible: if True, every sequence is computed in a separate batch
                (`jaxscore.plan.row_batches.OnePerRow`), so that the bits of its scores depend on it
                alone; `batch_tokens` is then ignored.

        Raises:
            ValueError: `batch_tokens` is below the shortest row.
        """
        facts = model_facts(model)
        planner = Planner(facts, batch_tokens=batch_tokens, reproducible=reproducible)
        self.model = model
        self.variants = variants_of(model, deterministic_options() if reproducible else {})
        dispatch = Dispatch(self.variants, model.devices.mesh)
        super().__init__(planner, dispatch, RunStatistics(), journal, progress=progress)
        self._n_runs, self._lock = 0, threading.Lock()

    @property
    def programs(self) -> Programs:
        """The programs of the variant for short requests."""
        return self.variants[0].programs

    def variant(self, n_read: int) -> Variant:
        """Return the variant for a request of which the model reads `n_read` tokens."""
        return self.variants[self.planner.variant(n_read)]

    def run(
        self,
        chunks: Iterable[Any],
        n_expected: int | None = None,
        *,
        top: int = 0,
        measures: Collection[str] = (),
        classes: Mapping[str, Iterable[int]] | None = None,
        windows: Windows | None = None,
        chunks_ahead: int = 1,
    ) -> Iterator[list[SequenceScores]]:
        """Yield the scores of each window; see `score_windows` for the remaining arguments.

        Each combination of `top`, `measures` and a number of classes compiles separate programs.

        Args:
            top: number of most probable tokens to return for each scored token, see
                `SequenceScores`.
            measures: names of `ModelFunctions.measures` to return for each scored token.
            classes: name -> token ids; the measure `mass_NAME` of each scored token is the
                log-probability that one of these ids comes in its place.

        Raises:
            ValueError: `top` is below 0 or above the vocabulary size, or the model lacks a measure;
                a class is empty or has an id that is not in the vocabulary.
        """
        top = operator.index(top)
        if not 0 <= top <= self.model.vocab_size:
            raise ValueError(
                f"top is {top}, expected 0 to {self.model.vocab_size}, the model's vocabulary"
            )
        available, measures = self.model.functions.measures, [*measures]
        if unknown := [name for name in measures if name not in available]:
            raise ValueError(
                f"measures hold {unknown[0]!r}, expected some of {', '.join(available) or 'none'}"
            )
        token_classes = TokenClasses.of(classes, self.model.vocab_size) if classes else None
        options = ScoreOptions(
            top, tuple(name for name in available if name in measures), token_classes
        )
        return self.in_use(self.score_windows(chunks, n_expected, options, windows, chunks_ahead))

    def close(self) -> None:
        """Release the journal for other runs. May be called twice."""
        with self._detaching:
            journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()

    def in_use(self, results: Iterable[Result]) -> Iterator[Result]:
        """Yield the results of a run; until its end, `replace_params` is refused.

        Raises:
            InputError: see `processes.check_not_forked`.
        """
        processes.check_not_forked()
        with self._lock:
            self._n_runs += 1
        try:
            yield from results
        finally:
            with self._lock:
                self._n_runs -= 1

    @jax_settings.isolated()
    def replace_params(self, values: Any) -> None:
        """Replace the model's parameters; the compiled programs are kept.

        The journal is closed, since its scores belong to the previous parameters.

        Args:
            values: see `Model.replace_params`.

        Raises:
            InputError: `values` do not match the model's parameters, the model's parameters cannot
                be replaced, or a run has not ended.
        """
        processes.check_not_forked()
        model = self.model
        if model.replace_params is None:
            raise InputError(f"the parameters of this {model.model_type} cannot be replaced")
        params = model.replace_params(values)
        with self._lock:
            if self._n_runs:
                raise InputError(
                    f"{self._n_runs} runs have not ended, which would mix both models' scores; "
                    "read their results to the end, or close their iterators"
                )
            self.close()
            # The new parameters are not from the quantized checkpoint.
            checkpoint = dataclasses.replace(model.checkpoint, stored_as=None)
            self.model = dataclasses.replace(model, params=params, checkpoint=checkpoint)
            for k, variant in enumerate(self.variants):
                variant.programs.forget_parameters()
                updated = dataclasses.replace(self.model, functions=variant.model.functions)
                self.variants[k] = variant._replace(model=updated)

    def score_sequences(
        self,
        sequences: Sequence[TokenSequence],
        *,
        top: int = 0,
        measures: Collection[str] = (),
        classes: Mapping[str, Iterable[int]] | None = None,
    ) -> list[SequenceScores]:
        """Score sequences that are planned together; return one result for each, in order.

        Args:
            top, measures, classes: see `run`.

        Raises:
            ValueError: a sequence is longer than the model's positions, its `start` is outside its
                ids, or an id is not an integer of the model's vocabulary; see also `run`.
        """
        if problems := self.complaints(sequences):
            first = min(problems)
            raise ValueError(f"sequence {first}: {problems[first]}")
        [scores] = self.run(iter([list(sequences)]), top=top, measures=measures, classes=classes)
        return scores

    def complaints(self, sequences: Sequence[TokenSequence]) -> dict[int, str]:
        """Return an error message for each sequence that the model cannot score, by its index."""
        vocab_size, positions = self.model.vocab_size, self.model.max_positions
        return check_sequences(
            sequences,
            vocab_size=vocab_size,
            max_positions=positions,
            placeholders=self.model.checkpoint.placeholders,
            limit_reason=self.model.checkpoint.limit_reason,
        )

    def facts(self) -> dict[str, Any]:
        """Return plan, counts and programs of the current output, for its manifest."""
        devices, planner = self.model.devices, self.planner
        return {
            "batch_tokens": None if planner.reproducible else planner.batch_tokens,
            "mesh": None if devices.mesh is None else str(devices.shape),
            "compiler_options": self.programs.options,
            **self.statistics.facts(),
            "batches_that_did_not_fit": sorted(self.dispatch.too_large),
            "programs": [
                {"name": " ".join(map(str, name)), "seconds": round(seconds, 3), "bytes": size}
                for variant in self.variants
                for name, seconds, size in variant.programs.compiled
            ],
        }
