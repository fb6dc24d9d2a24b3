"""The model that judges: generates answers to conversations, or weighs labels."""

from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.lm import LM, require_local
from jaxscore.systems.rag import judge_pointwise
from jaxscore.systems.rag.evaluator_file import Evaluator
from jaxscore.systems.rag.judge_pointwise import Verdict
from jaxscore.systems.rag.records import Record
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.types.results import Generated


class Judge:
    """A model that answers conversations and, if it is local, weighs labels.

    Args:
        lm: takes messages.

    Attributes:
        system: whether its conversations may have a system turn.

    Raises:
        InputError: a local model's tokenizer has no chat template.
    """

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.system = not lm.capabilities.is_local or chat_template.takes_system(self._tokenizer)

    @property
    def _tokenizer(self) -> Any:
        return require_local("judge", self.lm).encoder.tokenizer

    def prompts(self, asked: Sequence[list[Message]]) -> list[str]:
        """The texts that a local model reads."""
        return [chat_template.render(self._tokenizer, messages) for messages in asked]

    def write(self, asked: Sequence[list[Message]], max_new_tokens: int) -> list[Generated]:
        """Its greedy answers."""
        return self.lm.generate(judge_pointwise.chat_requests(asked, max_new_tokens))

    def label_ids(self, evaluator: Evaluator) -> tuple[int, ...]:
        """The first token of each label.

        Raises:
            InputError: two labels share it.
        """
        try:
            return require_local("judge", self.lm).encoder.first_ids(
                list(evaluator.pointwise.options)
            )
        except InputError as problem:
            raise InputError(
                f"{evaluator.path}: {problem}; give --label-score sequence "
                "(label_score='sequence'), or other labels"
            ) from None

    def weigh(
        self,
        evaluator: Evaluator,
        records: Sequence[Record],
        label_ids: tuple[int, ...] | None,
        run: ScoringRun,
    ) -> list[Verdict]:
        """Verdicts from the probabilities of the labels.

        Args:
            label_ids: of `label_ids`; None weighs whole labels.
            run: scores the requests, with the boundary `judge_pointwise.SEQUENCE_BOUNDARY`.
        """
        question = evaluator.pointwise
        prompts = self.prompts(judge_pointwise.conversations(question, records, system=self.system))
        if label_ids is None:
            scored = run.score(judge_pointwise.sequence_requests(prompts, question))
            return judge_pointwise.by_sequences(question, records, scored)
        labelled = run.label(judge_pointwise.label_requests(prompts, label_ids))
        return judge_pointwise.by_labels(question, records, labelled)
