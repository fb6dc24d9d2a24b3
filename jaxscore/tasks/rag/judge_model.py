"""The model that judges: in this process, or behind an endpoint."""

from collections.abc import Sequence
from typing import Protocol

from jaxscore.endpoints.chat import ChatEndpoint
from jaxscore.endpoints.ollama import OllamaEndpoint
from jaxscore.engine.noise import Draw
from jaxscore.errors import InputError
from jaxscore.generator import Generator
from jaxscore.requests import Generated
from jaxscore.scorer import Scorer
from jaxscore.tasks.rag import judge_pointwise
from jaxscore.tasks.rag.evaluator_file import Evaluator
from jaxscore.tasks.rag.experiment_folder import Record
from jaxscore.tasks.rag.judge_pointwise import Verdict
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message


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

    def __init__(self, scorer: Scorer, truncate: str | None) -> None:
        self.scorer, self.truncate = scorer, truncate
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
                f"{evaluator.path}: {problem}; give --label-score sequence, or other labels"
            ) from None

    def weigh(
        self,
        evaluator: Evaluator,
        records: Sequence[Record],
        label_ids: tuple[int, ...] | None,
        draw: Draw | None = None,
    ) -> list[Verdict]:
        """Verdicts from the probabilities of the labels.

        Args:
            label_ids: of `label_ids`; None weighs whole labels.
            draw: the requests and their results pass it, if there is one.
        """
        draw = draw or Draw(0, 0)
        question = evaluator.pointwise
        prompts = self.prompts(judge_pointwise.conversations(question, records, system=self.system))
        if label_ids is None:
            requests = draw.watch(judge_pointwise.sequence_requests(prompts, question))
            scored = self.scorer.score(
                requests, boundary=judge_pointwise.SEQUENCE_BOUNDARY, truncate=self.truncate
            )
            return judge_pointwise.by_sequences(question, records, list(draw.results(scored)))
        asked = draw.watch(judge_pointwise.label_requests(prompts, label_ids))
        labelled = self.scorer.label(asked, truncate=self.truncate)
        return judge_pointwise.by_labels(question, records, list(draw.results(labelled)))


class EndpointJudge:
    """A server's model, which applies its chat template itself."""

    system = True

    def __init__(self, endpoint: ChatEndpoint | OllamaEndpoint) -> None:
        self.endpoint = endpoint

    @property
    def remarks(self) -> list[str]:
        told = self.endpoint.remark if isinstance(self.endpoint, ChatEndpoint) else None
        return [] if told is None else [told]

    def write(self, asked: Sequence[list[Message]], max_new_tokens: int) -> list[Generated]:
        """Its answers at temperature 0."""
        return self.endpoint.generate(judge_pointwise.chat_requests(asked, max_new_tokens))
