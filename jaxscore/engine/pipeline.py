"""Token ids in, scores out: planned, dispatched to the devices and put back in order."""

import functools
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxscore.device.attention.past import Past
from jaxscore.device.dots import on_cpu
from jaxscore.device.score import score_rows, score_shard
from jaxscore.engine import interrupt, processes
from jaxscore.engine.dispatch import Dispatch, Flown
from jaxscore.engine.platform import same_bits
from jaxscore.engine.programs import Programs, trunk_past
from jaxscore.engine.progress import Progress
from jaxscore.journal.database import Journal
from jaxscore.models.model import Model
from jaxscore.plan import packing
from jaxscore.plan.forest import Forest, Share, TokenSequence, build
from jaxscore.plan.one_per_row import Alone
from jaxscore.plan.prefixes import Part, split, whole
from jaxscore.plan.window import Lot, Planned, SequenceScores, Variant, Window

# Trunks cost programs of their own, seconds each: what they save must be worth more. In
# multiplications, by what a CPU and an accelerator do in ten seconds, and as a share of all work.
LEAST_SAVED_CPU, LEAST_SAVED_ACCELERATOR, LEAST_SHARE = 1e12, 5e14, 0.1
PROGRAM_CPU, PROGRAM_ACCELERATOR = 3e11, 1.5e14  # multiplications in three seconds
IN_FLIGHT = 2  # batches: one computing, one waiting, so that the device never waits for the host
BATCH_TOKENS = 4096


class SequenceScorer:
    """Scores token ids under one model."""

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
            model: on one device, or on all of an arrangement's.
            batch_tokens: tokens a batch, padding included; decides speed and memory.
            progress: a bar on stderr with tokens a second and the time left.
            journal: holds what was scored before, and is told what is scored; may be set later.
            reproducible: every sequence is computed by itself (`jaxscore.plan.one_per_row`), so its
                scores' bits depend on nothing beside it; `batch_tokens` is then of no effect.
        """
        if batch_tokens < packing.SHORTEST_ROW:
            raise ValueError(f"batch_tokens {batch_tokens} is below {packing.SHORTEST_ROW}")
        self.model = model
        self.batch_tokens, self.progress, self.journal = batch_tokens, progress, journal
        self.tokens_given = self.tokens_unique = self.tokens_laid_out = self.tokens_scored = 0
        self.sequences = self.sequences_restored = 0
        self.reproducible = reproducible
        self.dispatch = Dispatch(model.arrangement)
        self.begin_output()
        self._parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
        options = same_bits() if reproducible else {}
        self._variants = [_variant(model, options)]
        if model.longer is not None:
            self._variants.append(_variant(model.longer[1], options))
        self.programs = self._variants[0].programs

    @property
    def plan_hash(self) -> str:
        """Of all batches planned so far, hexadecimal; the requests' order within a window is none
        of it."""
        return self._digest.hexdigest()

    def note_plan(self, digest: bytes) -> None:
        """Something has been planned of which this is the digest."""
        self._digest.update(digest)

    def begin_output(self) -> None:
        """What is planned and counted from here on is another output's, see `facts`."""
        self._digest, self._before = hashlib.sha256(), self._counts()

    def _counts(self) -> dict[str, int]:
        return {
            "texts": self.sequences,
            "texts_from_journal": self.sequences_restored,
            "tokens_given": self.tokens_given,
            "tokens_unique": self.tokens_unique,
            "tokens_laid_out": self.tokens_laid_out,
            "tokens_scored": self.tokens_scored,
        }

    def facts(self) -> dict[str, Any]:
        """What an output was made of and what it took, as JSON has it; for its manifest."""
        where = self.model.arrangement
        return {
            "batch_tokens": None if self.reproducible else self.batch_tokens,
            "mesh": None if where is None else str(where.shape),
            "compiler_options": self.programs.options,
            "plan": self.plan_hash,
            "counts": {name: n - self._before[name] for name, n in self._counts().items()},
            "batches_that_did_not_fit": sorted(self.dispatch.too_large),
            "programs": [
                {"name": " ".join(map(str, name)), "seconds": round(seconds, 3), "bytes": size}
                for variant in self._variants
                for name, seconds, size in variant.programs.compiled
            ],
        }

    def score_sequences(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        """Token ids instead of text.

        Raises:
            ValueError: a sequence is longer than the model's positions or has an id that the
                model does not know.
        """
        for k, sequence in enumerate(sequences):
            if complaint := self._complaint(sequence):
                raise ValueError(f"sequence {k}: {complaint}")
        [scores] = self._run(iter([list(sequences)]))
        return scores

    def _complaint(self, sequence: TokenSequence) -> str | None:
        n, most = len(sequence.ids), self.model.max_positions
        if n - 1 > most:
            continuation = n - sequence.start
            hint = (
                "shorten it"
                if continuation > most
                else "shorten the context, or drop its oldest tokens with --truncate left"
            )
            return (
                f"{n} tokens ({continuation} of them continuation), the model takes {most} "
                f"positions; {hint}"
            )
        if n and int(sequence.ids.max()) >= self.model.vocab_size:
            return (
                f"token id {int(sequence.ids.max())} is beyond the model's vocabulary of "
                f"{self.model.vocab_size}; tokenizer and model do not belong together"
            )
        return None

    def variant(self, n_tokens: int) -> Variant:
        """The model as a request of so many tokens sees it."""
        longer = self.model.longer
        return self._variants[1 if longer is not None and n_tokens > longer[0] else 0]

    def _run(
        self,
        windows: Iterator[list[TokenSequence]],
        n_expected: int | None = None,
        *,
        n_unfed: int = 0,
    ) -> Iterator[list[SequenceScores]]:
        """Scores of each window, with `IN_FLIGHT` batches dispatched ahead, across windows.

        Args:
            n_unfed: tokens at the end of each sequence that are no part of the request's length.
        """
        flight: deque[tuple[Window, Lot, Part, Flown]] = deque()
        open_windows: deque[Window] = deque()
        with Progress(self.progress) as progress, interrupt.finishing():

            def fetch() -> None:
                window, lot, part, flown = flight.popleft()
                for batch, scores in self.dispatch.fetched(flown, progress):
                    lot.take(part, batch, scores)
                    progress.advance(batch.n_tokens)
                window.n_open -= 1
                self._keep(window, lot, part, flown.batches)

            def end_if_wished() -> None:
                if interrupt.wished():
                    while flight:
                        fetch()
                    raise KeyboardInterrupt

            for sequences in windows:
                end_if_wished()
                window = self._plan(sequences, n_unfed)
                open_windows.append(window)
                progress.extend(window.n_tokens, len(sequences), n_expected)
                if self.journal is not None:
                    # A text of an earlier window must be found, or it would be computed beside
                    # others and its row replaced.
                    while flight:
                        fetch()
                self._restore(window)
                for lot, part, plan in window.planned_parts():
                    past: tuple[Past, ...] | None = None
                    for batches in self._together(lot, part, plan, progress):
                        end_if_wished()
                        if past is None:
                            past = self._past(lot.variant, part, progress)
                        window.n_open += 1
                        flown = self.dispatch.send(lot.variant, batches, past, progress)
                        flight.append((window, lot, part, flown))
                        if len(flight) > IN_FLIGHT:
                            fetch()
                window.planned = True
                while open_windows and open_windows[0].done:
                    yield open_windows.popleft().scores()
            while flight:
                fetch()
            end_if_wished()
            # One that has more to score finds the others here, and none of them writes.
            processes.agree("requests", self._digest.digest() + b" and no more")
            for window in open_windows:
                yield window.scores()

    def _together(
        self, lot: Lot, part: Part, plan: Planned, progress: Progress
    ) -> Iterator[list[packing.RowBatch]]:
        """Batches of one shape, as many as devices share the rows, and none that is known.

        What a journal had is laid out all the same, so that what is missing has the same
        neighbours, and with them the same last bits, as ever.
        """
        waiting: list[packing.RowBatch] = []
        for batch in plan.batches():
            if self.journal is not None and lot.known(part, batch):
                progress.advance(batch.n_tokens)
                continue
            if waiting and (
                batch.shape != waiting[0].shape or len(waiting) == (self.dispatch.n_together or 1)
            ):
                yield waiting
                waiting = []
            waiting.append(batch)
        if waiting:
            yield waiting

    def _plan(self, sequences: list[TokenSequence], n_unfed: int) -> Window:
        of_variant: dict[int, list[int]] = {}
        for k, sequence in enumerate(sequences):
            variant = self.variant(len(sequence.ids) - n_unfed)
            of_variant.setdefault(self._variants.index(variant), []).append(k)
        lots = [
            self._lot(self._variants[which], index, [sequences[k] for k in index])
            for which, index in sorted(of_variant.items())
        ]
        self.sequences += len(sequences)
        for lot in lots:
            self.note_plan(lot.digest())
        # Before any program runs that would wait for ever for one that never comes.
        processes.agree("requests", self._digest.digest())
        return Window(lots, sequences, n_unfed)

    def _restore(self, window: Window) -> None:
        if self.journal is not None:
            found = self.journal.found(window.sequences, window.n_unfed)
            self.sequences_restored += sum(
                bool(np.isfinite(one.logprob).all()) for one in found.values()
            )
            for lot in window.lots:
                lot.restore(found)

    def _keep(
        self, window: Window, lot: Lot, part: Part, batches: Sequence[packing.RowBatch]
    ) -> None:
        if self.journal is not None:
            touched = sorted({k for batch in batches for k in lot.asking(part, batch).tolist()})
            rows = ((window.sequences[lot.index[k]], lot.scores_of(k)) for k in touched)
            self.journal.keep(rows, window.n_unfed)

    def _lot(self, variant: Variant, index: list[int], sequences: list[TokenSequence]) -> Lot:
        if self.reproducible:
            forest = build(sequences, share=Share.WHOLE)
            alone = Alone(forest, self.model.width)
            return self._counted(Lot(variant, index, forest, [(whole(forest), alone)]))
        share = Share.TRIES if self.model.shares_text else Share.PATHS
        forest = build(sequences, share=share)
        plain = self._packed(forest)
        plans = [(whole(forest), plain)]
        least = LEAST_SAVED_CPU if on_cpu() else LEAST_SAVED_ACCELERATOR
        least = max(least / self._parameters, LEAST_SHARE * plain.cost)
        if self.model.cached and plain.cost - forest.n_nodes > least:
            parts = split(forest)
            trunked = [(part, self._packed(part.forest, len(part.trunk))) for part in parts]
            cost = sum(self._cost(part, plan) for part, plan in trunked)
            if plain.cost - cost > least:
                plans = trunked
        return self._counted(Lot(variant, index, forest, [*plans]))

    def _counted(self, lot: Lot) -> Lot:
        self.tokens_given += lot.forest.n_given
        self.tokens_unique += lot.forest.n_nodes
        self.tokens_laid_out += lot.n_tokens
        self.tokens_scored += len(lot.forest.edge_of)
        return lot

    def _packed(self, forest: Forest, trunk: int = 0) -> packing.Plan:
        # The same whether a program is there already: a layout, and with it the last bits of a
        # score, depends on what is asked for and not on what was asked before.
        program_cost = (PROGRAM_CPU if on_cpu() else PROGRAM_ACCELERATOR) / self._parameters
        return packing.plan(
            forest,
            max_positions=self.model.max_positions - trunk,
            width=self.model.width,
            batch_tokens=self.batch_tokens,
            trunk=trunk,
            pack=self.model.shares_text,
            program_cost=program_cost,
        )

    def _cost(self, part: Part, plan: packing.Plan) -> float:
        """In tokens of linear work, that of computing the trunk included."""
        n = len(part.trunk)
        return plan.cost + n * packing.attention_cost(n, self.model.width)

    def _past(self, variant: Variant, part: Part, progress: Progress) -> tuple[Past, ...]:
        """The keys and values of a part's trunk, if it has one."""
        if not len(part.trunk):
            return ()
        past = trunk_past(variant.programs, variant.model, part.trunk, progress)
        progress.advance(len(part.trunk))
        return (past,)


def _variant(model: Model, options: dict[str, Any]) -> Variant:
    run = score_rows if model.arrangement is None else score_shard
    rows = functools.partial(run, model.hidden_states, model.unembedding)
    return Variant(model, Programs(model.arrangement, options), rows)
