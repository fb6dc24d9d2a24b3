"""`judge`: how right is a response, says a language model that is asked (BERGEN, LLMeval).

Three ways to read its answer:

    labels     the next-token distribution at the prompt's end, over the first token of each
               label; score = Σ worth(label) · p(label)
    sequences  the same with whole labels: p = softmax of each label's summed log-probability,
               for labels that share their first token. A long label has more to lose.
    texts      what it writes; a label counts when it occurs in that, and the score is its worth.
               None, or several: `UNKNOWN`, outside the mean
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question
from jaxscore.systems.rag.records import Record
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import ChatRequest, LabelRequest, Request
from jaxscore.types.results import Generated, LabelScores, ScoredRequest

SEQUENCE_BOUNDARY: Boundary = "separate"  # of whole labels, see `jaxscore.text.encoder`


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of one record.

    Attributes:
        score: `UNKNOWN` where its answer names no label or several, None where it could not be
            asked.
        probability: label -> probability over the labels; empty where text was read.
        outside: the probability that it would have begun otherwise; None where text was read.
        text: what it wrote; None where probabilities were read.
        error: why it could not be asked.
        truncated: tokens of its prompt that were left out at the left, 0 unless asked for; of
            whole labels the most that one of them needed.
    """

    record: Record
    score: float | None
    probability: dict[str, float]
    outside: float | None
    text: str | None
    error: str | None = None
    truncated: int = 0

    @property
    def known(self) -> bool:
        return self.score is not None and self.score != UNKNOWN


@dataclasses.dataclass(frozen=True)
class Label:
    """One label over all records.

    Attributes:
        n: records for which it is the most probable, or the one in the text.
        probability: its mean; None where text was read.
    """

    worth: float
    n: int
    probability: float | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """Of all verdicts on a folder.

    Attributes:
        mean: over those that are known; None where there are none.
        outside: mean probability that the judge would not have begun with a label; None where
            text was read.
        n_none, n_several: answers that name no label, and that name several.
    """

    n_known: int
    mean: float | None
    outside: float | None
    labels: dict[str, Label]
    n_none: int
    n_several: int
    n_failed: int


def conversations(
    question: Question, records: Iterable[Record], *, system: bool
) -> list[list[Message]]:
    """What the judge is asked about each record.

    Args:
        system: whether it takes a system turn.
    """
    return [
        question.prompt.messages(
            {
                **question.values,
                "question": record.question,
                "answer": str(record.label),  # as Python prints a list: published scores had it so
                "prediction": record.response,
            },
            system=system,
        )
        for record in records
    ]


def label_requests(prompts: Sequence[str], label_ids: tuple[int, ...]) -> list[LabelRequest]:
    """For `Scorer.label`; the ids are those of `TextEncoder.first_ids`, in the file's order."""
    return [LabelRequest(k, prompt, label_ids) for k, prompt in enumerate(prompts)]


def sequence_requests(prompts: Sequence[str], question: Question) -> list[Request]:
    """For `Scorer.score` with `SEQUENCE_BOUNDARY`: each label after each prompt."""
    return [
        Request(f"{k}: {label}", prompt, label)
        for k, prompt in enumerate(prompts)
        for label in question.options
    ]


def chat_requests(asked: Sequence[list[Message]], max_new_tokens: int) -> list[ChatRequest]:
    """Greedy answers, for `LM.generate`."""
    return [ChatRequest(k, messages, max_new_tokens) for k, messages in enumerate(asked)]


def by_labels(
    question: Question, records: Sequence[Record], scores: Sequence[LabelScores]
) -> list[Verdict]:
    """Verdicts from the next-token distribution over the labels."""
    return [
        Verdict(record, None, {}, None, None, one.error)
        if one.error is not None
        else _weighed(question, record, one.probability, one.outside, one.truncated)
        for record, one in zip(records, scores, strict=True)
    ]


def by_sequences(
    question: Question, records: Sequence[Record], scored: Sequence[ScoredRequest]
) -> list[Verdict]:
    """Verdicts from the probabilities of whole labels.

    `outside` is 1 - Σ exp(sum of log-probabilities), which is right as long as no label is how
    another begins.
    """
    n = len(question.options)
    out = []
    for k, record in enumerate(records):
        own = scored[n * k : n * (k + 1)]
        errors = [one.error or "a label has no tokens" for one in own if one.sum_logprob is None]
        if errors:
            out.append(Verdict(record, None, {}, None, None, errors[0]))
            continue
        logprob = np.array([one.sum_logprob for one in own], np.float64)
        weights = np.exp(logprob - logprob.max())
        outside = max(0.0, 1.0 - float(np.exp(logprob).sum()))
        truncated = max(one.truncated for one in own)
        out.append(_weighed(question, record, weights / weights.sum(), outside, truncated))
    return out


def _weighed(
    question: Question, record: Record, probability: np.ndarray, outside: float, truncated: int
) -> Verdict:
    worth = np.array(list(question.options.values()))
    by_label = dict(zip(question.options, probability.tolist(), strict=True))
    score = float(worth @ probability)
    return Verdict(record, score, by_label, outside, None, truncated=truncated)


def by_texts(
    question: Question, records: Sequence[Record], written: Sequence[Generated]
) -> list[Verdict]:
    """Verdicts from what the judge wrote."""
    return [
        Verdict(record, None, {}, None, None, one.error)
        if one.error is not None
        else Verdict(record, worth(question, one.text), {}, None, one.text)
        for record, one in zip(records, written, strict=True)
    ]


def named(question: Question, text: str) -> list[str]:
    """The labels that occur in a text, by case: "Partially correct" does not name "Correct"."""
    return [label for label in question.options if label in text]


def worth(question: Question, text: str) -> float:
    """What the one label in a text is worth, else `UNKNOWN`."""
    found = named(question, text)
    return question.options[found[0]] if len(found) == 1 else UNKNOWN


def summarise(question: Question, verdicts: Sequence[Verdict]) -> Summary:
    """The mean and how it came about."""
    asked = [verdict for verdict in verdicts if verdict.error is None]
    known = [verdict.score for verdict in asked if verdict.known]
    texts = [verdict.text for verdict in asked if verdict.text is not None]
    outside = [verdict.outside for verdict in asked if verdict.outside is not None]
    probabilities = [verdict.probability for verdict in asked if verdict.probability]
    counts = [len(named(question, text)) for text in texts]
    chosen = [max(one, key=lambda label: one[label]) for one in probabilities]
    chosen += [found[0] for text in texts if len(found := named(question, text)) == 1]

    def mean(values: Sequence[float | None]) -> float | None:
        numbers = [value for value in values if value is not None]
        return math.fsum(numbers) / len(numbers) if numbers else None

    return Summary(
        n_known=len(known),
        mean=mean(known),
        outside=mean(outside),
        labels={
            label: Label(value, chosen.count(label), mean([one[label] for one in probabilities]))
            for label, value in question.options.items()
        },
        n_none=counts.count(0),
        n_several=sum(count > 1 for count in counts),
        n_failed=len(verdicts) - len(asked),
    )
