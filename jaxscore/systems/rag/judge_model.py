"""The model that judges: in this process, or behind an endpoint."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxscore.endpoints.chat import ChatEndpoint
from jaxscore.endpoints.ollama import OllamaEndpoint
from jaxscore.errors import InputError
from jaxscore.systems.rag import judge_pointwise
from jaxscore.systems.rag.evaluator_file import Evaluator
from jaxscore.systems.rag.judge_pointwise import Verdict
from jaxscore.systems.rag.records import Record
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.types.results import Generated

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer


class JudgeModel(Protocol):
    """Answers conversations.

    Attributes:
        system: whether it takes a system turn.
        remarks: what people should know of how its answers came about.
    """

    system: bool

    @property
    def remarks(self) -> list[str]: ...

    def write(self, asked: Sequence[list[Message]], max_new_tokens: int) -> list[Generated]: ...


class LocalJudge:
    """A scorer's model, asked through its chat template.

    Raises:
        InputError: its tokenizer has none.
    """

    def __init__(self, scorer: "Scorer") -> None:
        self.scorer = scorer
        self.system = chat_template.takes_system(scorer.encoder.tokenizer)

    @property
    def remarks(self) -> list[str]:
        return []

    def prompts(self, asked: Sequence[list[Message]]) -> list[str]:
        """The texts that the model reads."""
        return [chat_template.render(self.scorer.encoder.tokenizer, messages) for messages in asked]

    def write(self, asked: Sequence[list[Message]], max_new_tokens: int) -> list[Generated]:
        """Its greedy answers."""
        requests = judge_pointwise.generation_requests(self.prompts(asked), max_new_tokens)
        from jaxscore.engine.generation.generator import Generator

        return Generator(self.scorer).generate(requests)

    def label_ids(self, evaluator: Evaluator) -> tuple[int, ...]:
        """The first token of each label.

        Raises:
            InputError: two labels share it.
        """
        try:
            return self.scorer.encoder.first_ids(list(evaluator.pointwise.options))
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


class EndpointJudge:
    """A server's model, which applies its chat template itself."""

    system = True

    def __init__(self, endpoint: ChatEndpoint | OllamaEndpoint) -> None:
        self.endpoint = endpoint

    def describe(self) -> dict[str, Any]:
        """The model and its server, for reports."""
        return self.endpoint.describe()

    @property
    def remarks(self) -> list[str]:
        told = self.endpoint.remark if isinstance(self.endpoint, ChatEndpoint) else None
        return [] if told is None else [told]

    def write(self, asked: Sequence[list[Message]], max_new_tokens: int) -> list[Generated]:
        """Its answers at temperature 0."""
        return self.endpoint.generate(judge_pointwise.chat_requests(asked, max_new_tokens))
