"""Planner: from token sequences to tries, prefix caches and packed rows.

It needs a few facts about the model. The plan of a window depends on that window alone.
"""

import dataclasses

import jax

from jaxscore.device.dots import is_blocks
from jaxscore.models.model import Model
from jaxscore.plan import packing
from jaxscore.plan.requests import BASE_SCORES, ScoreOptions, TokenSequence
from jaxscore.plan.result_assembly import ForestScores, Window
from jaxscore.plan.row_batches import SHORTEST_ROW, OnePerRow, attention_cost
from jaxscore.plan.tries import (
    Forest,
    Share,
    Subforest,
    as_subforest,
    build_forest,
    split_at_prefixes,
)

# A prefix cache needs additional programs, which compile for seconds each, and must save more than
# that: in multiplications, ten seconds' work of a CPU or an accelerator; and a share of all work.
LEAST_SAVED_CPU, LEAST_SAVED_ACCELERATOR, LEAST_SHARE = 1e12, 5e14, 0.1
PROGRAM_CPU, PROGRAM_ACCELERATOR = 3e11, 1.5e14  # multiplications in three seconds
# Fixed cost of a recurrent model's batch, for reading and copying weights: tokens of linear work.
RECURRENT_BATCH = 128


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """Facts about a model on which planning depends.

    Attributes:
        width: width of the hidden states, which determines the best row lengths.
        max_positions: maximum number of tokens of a path.
        n_parameters: number of multiplications per token.
        shares_text: if True, rows may hold tries; otherwise each row holds one path.
        takes_prefixes: if True, rows may continue a prefix cache.
        deals_rows: if True, a batch has rows of all sizes, to fill the chunks of recurrent layers.
        longer_from: requests of which the model reads more tokens than this use the second variant;
            None if there is a single variant.
        on_cpu: True on a CPU; determines how much work an additional program must save.
    """

    width: int
    max_positions: int
    n_parameters: int
    shares_text: bool
    takes_prefixes: bool
    longer_from: int | None = None
    on_cpu: bool = True
    deals_rows: bool = False


def model_facts(model: Model) -> ModelFacts:
    """Collect the facts about a model for planning."""
    cached, paths = model.functions.cached, model.functions.paths
    return ModelFacts(
        width=model.width,
        max_positions=model.max_positions,
        n_parameters=sum(leaf.size for leaf in jax.tree.leaves(model.params, is_leaf=is_blocks)),
        shares_text=model.shares_text,
        takes_prefixes=cached is not None and cached.saves_work,
        on_cpu=model.devices.platform == "cpu",
        deals_rows=paths is not None and paths.size > 0,
        longer_from=None if model.longer is None else model.longer[0],
    )


class Planner:
    """Plans windows of sequences.

    Attributes:
        facts: facts about the model.
        batch_tokens: number of tokens in each batch, including padding.
        reproducible: if True, every sequence has a separate batch, see `jaxscore.plan.row_batches`,
            and `batch_tokens` is ignored.
    """

    def __init__(self, facts: ModelFacts, *, batch_tokens: int, reproducible: bool) -> None:
        if batch_tokens < SHORTEST_ROW:
            raise ValueError(f"batch_tokens {batch_tokens} is below {SHORTEST_ROW}")
        self.facts, self.batch_tokens, self.reproducible = facts, batch_tokens, reproducible

    def variant(self, n_read: int) -> int:
        """Return the index of the model's variant for a request.

        Args:
            n_read: number of the request's tokens that the model reads; a token that is only scored
                is not read.
        """
        longer_from = self.facts.longer_from
        return int(longer_from is not None and n_read > longer_from)

    def window(self, sequences: list[TokenSequence], options: ScoreOptions = BASE_SCORES) -> Window:
        """Plan sequences together, one forest for each variant that scores some of them.

        Args:
            options: additional scores of each scored token; they do not affect the batches.
        """
        by_variant: dict[int, list[int]] = {}
        for k, sequence in enumerate(sequences):
            by_variant.setdefault(self.variant(len(sequence.input_ids)), []).append(k)
        works = [
            self._work(variant, index, [sequences[k] for k in index], options)
            for variant, index in sorted(by_variant.items())
        ]
        return Window(works, sequences, options)

    def _work(
        self, variant: int, index: list[int], sequences: list[TokenSequence], options: ScoreOptions
    ) -> ForestScores:
        if self.reproducible:
            forest = build_forest(sequences, share=Share.WHOLE)
            rows = OnePerRow(forest)
            return ForestScores(variant, index, forest, [(as_subforest(forest), rows)], options)
        share = Share.TRIES if self.facts.shares_text else Share.PATHS
        forest = build_forest(sequences, share=share)
        plain = self._packed(forest)
        plans = [(as_subforest(forest), plain)]
        least_saved = LEAST_SAVED_CPU if self.facts.on_cpu else LEAST_SAVED_ACCELERATOR
        least_saved = max(least_saved / self.facts.n_parameters, LEAST_SHARE * plain.cost)
        if self.facts.takes_prefixes and plain.cost - forest.n_nodes > least_saved:
            subforests = split_at_prefixes(forest)
            with_prefixes = [
                (subforest, self._packed(subforest.forest, len(subforest.prefix)))
                for subforest in subforests
            ]
            cost = sum(self._cost(subforest, plan) for subforest, plan in with_prefixes)
            if plain.cost - cost > least_saved:
                plans = with_prefixes
        return ForestScores(variant, index, forest, [*plans], options)

    def _packed(self, forest: Forest, prefix: int = 0) -> packing.PackedRows:
        # The cost is independent of which programs are already compiled: a layout, and with it the
        # last bits of a score, depends on the requests of the window alone.
        multiplications = PROGRAM_CPU if self.facts.on_cpu else PROGRAM_ACCELERATOR
        return packing.pack_rows(
            forest,
            max_positions=self.facts.max_positions - prefix,
            width=self.facts.width,
            batch_tokens=self.batch_tokens,
            prefix=prefix,
            pack=self.facts.shares_text,
            deal=self.facts.deals_rows,
            batch_cost=RECURRENT_BATCH if self.facts.deals_rows else 0.0,
            program_cost=multiplications / self.facts.n_parameters,
        )

    def _cost(self, subforest: Subforest, plan: packing.PackedRows) -> float:
        """Compute the cost in tokens of linear work, including the prefix."""
        n = len(subforest.prefix)
        return plan.cost + n * attention_cost(n, self.facts.width)
