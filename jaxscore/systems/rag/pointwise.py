"""Rates how right a response is with a language model (BERGEN's LLMeval).

Three ways to read its answer:

    labels      the next-token distribution at the prompt's end, over the first token of each
                label; score = Σ worth(label) · p(label)
    sequences   the same with whole labels: p = softmax of each label's summed log-probability,
                for labels that share their first token. A long label has more to lose.
    texts       the label that occurs in the written answer; the score is its worth. None or
                several: `UNKNOWN`, outside the mean
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.systems.rag import Findings, Item, mean_of, summary_of
from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question
from jaxscore.systems.settings import IntervalSettings
from jaxscore.text.chat_template import Message
from jaxscore.types.requests import Request
from jaxscore.types.results import Generated, LabelScores, ScoredRequest

REMARKED_FROM = 0.5  # mean probability that is on no label, from which on there is a remark


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of one record.

    Attributes:
        score: `UNKNOWN` if its answer names no label or several, None if the request failed.
        probability: label -> probability over the labels; empty if text was read.
        outside: the probability that it would have begun otherwise; None if text was read.
        text: what it wrote; None if probabilities were read.
        error: why the request failed.
        truncated: tokens of its prompt that were left out at the left; of whole labels the most
            that one of them needed.
    """

    score: float | None = None
    probability: Mapping[str, float] = dataclasses.field(default_factory=dict)
    outside: float | None = None
    text: str | None = None
    error: str | None = None
    truncated: int = 0

    @property
    def known(self) -> bool | None:
        """Whether there is a score; None if the request to the judge failed."""
        return None if self.error is not None else self.score != UNKNOWN


def conversations(
    question: Question, items: Iterable[Item], *, system: bool
) -> list[list[Message]]:
    """The judge's prompt for each record.

    Args:
        system: whether it takes a system turn.
    """
    return [
        question.messages(
            {
                "question": item.question,
                "answer": str(item.label),  # as Python prints a list: published scores had it so
                "prediction": item.response,
            },
            system=system,
        )
        for item in items
    ]


def sequence_requests(prompts: Sequence[str], question: Question) -> list[Request]:
    """Each label after each prompt."""
    return [
        Request(f"{k}: {label}", prompt, label)
        for k, prompt in enumerate(prompts)
        for label in question.options
    ]


def by_labels(question: Question, scores: Sequence[LabelScores]) -> list[Verdict]:
    """Verdicts from the next-token distribution over the labels."""
    return [
        Verdict(error=one.error)
        if one.error is not None
        else _weighed(question, one.probability, one.outside, one.truncated)
        for one in scores
    ]


def by_sequences(question: Question, scored: Sequence[ScoredRequest]) -> list[Verdict]:
    """Verdicts from the log-probabilities of `sequence_requests`.

    `outside` is 1 - Σ exp(sum of log-probabilities), which is right as long as no label is how
    another begins.
    """
    n = len(question.options)
    out = []
    for first in range(0, len(scored), n):
        labels = scored[first : first + n]
        errors = [one.error or "a label has no tokens" for one in labels if one.sum_logprob is None]
        if errors:
            out.append(Verdict(error=errors[0]))
            continue
        logprob = np.array([one.sum_logprob for one in labels], np.float64)
        weights = np.exp(logprob - logprob.max())
        outside = max(0.0, 1.0 - float(np.exp(logprob).sum()))
        truncated = max(one.truncated for one in labels)
        out.append(_weighed(question, weights / weights.sum(), outside, truncated))
    return out


def _weighed(
    question: Question, probability: np.ndarray, outside: float, truncated: int
) -> Verdict:
    worth = np.array(list(question.options.values()))
    by_label = dict(zip(question.options, probability.tolist(), strict=True))
    return Verdict(float(worth @ probability), by_label, outside, truncated=truncated)


def by_texts(question: Question, answers: Sequence[Generated]) -> list[Verdict]:
    """Verdicts from what the judge wrote."""
    return [
        Verdict(error=one.error)
        if one.error is not None
        else Verdict(question.worth(one.text), text=one.text)
        for one in answers
    ]


def findings(
    kind: str, question: Question, verdicts: Sequence[Verdict], settings: IntervalSettings
) -> Findings:
    """The mean, how it came about, and the fields of each record."""
    known = [one.score for one in verdicts if one.known and one.score is not None]
    is_share = kind == "text" and set(question.options.values()) <= {0.0, 1.0}
    mean = mean_of(known, settings.n_bootstrap, settings.seed, is_share=is_share)
    named = [question.named(one.text) for one in verdicts if one.text is not None]
    n_none = sum(not labels for labels in named)
    n_several = sum(len(labels) > 1 for labels in named)
    outside = _mean([one.outside for one in verdicts if one.outside is not None])
    remarks = []
    if outside is not None and outside > REMARKED_FROM:
        remarks.append(
            f"the judge gives the labels {1 - outside:.2g} of its probability on average; "
            "it would mostly begin its answer otherwise"
        )
    if unread := n_none + n_several:
        remarks.append(
            f"{n_none} answers name no label and {n_several} name several; these "
            f"{unread} are outside the mean"
            + ("" if known else ", which is null: no record is in it")
        )
    is_cut = any(one.truncated for one in verdicts)
    return Findings(
        kind=kind,
        estimates={"mean": mean},
        summary={
            **summary_of(mean, is_share=is_share),
            "outside": outside,
            "labels": _labels(question, verdicts, named),
            "n_none": n_none,
            "n_several": n_several,
        },
        fields=[
            {
                "score": one.score,
                "known": one.known,
                "probability": one.probability,
                "outside": one.outside,
                "texts": [] if one.text is None else [one.text],
                **({"truncated": one.truncated} if is_cut else {}),
            }
            for one in verdicts
        ],
        errors=[one.error for one in verdicts],
        remarks=remarks,
    )


def _labels(
    question: Question, verdicts: Sequence[Verdict], named: Sequence[Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """By label: its worth, the records for which it was chosen, and its mean probability."""
    read = [one.probability for one in verdicts if one.probability]
    chosen = [max(one, key=lambda label: one[label]) for one in read]
    chosen += [labels[0] for labels in named if len(labels) == 1]
    return {
        label: {
            "worth": worth,
            "n": chosen.count(label),
            "probability": _mean([one[label] for one in read]),
        }
        for label, worth in question.options.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
