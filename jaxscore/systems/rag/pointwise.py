"""Pointwise judgements: a language model rates the correctness of a response (BERGEN's LLMeval).

Three ways to read its answer:

    labels      the next-token distribution at the prompt's end, over the first token of each
                label; score = Σ worth(label) · p(label)
    sequences   the same with whole labels: p = softmax of each label's summed log-probability,
                for labels that share their first token. Long labels are at a disadvantage.
    texts       the label in the written answer, see `Question.labels_in`; the score is its
                worth. Without a label or with several: `UNKNOWN`, outside the mean
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import Record
from jaxscore.systems.rag import Findings, Item, mean_of, score_of, summary_of
from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question
from jaxscore.text.chat_template import Message
from jaxscore.types.requests import Request
from jaxscore.types.results import Generated, LabelScores, ScoredRequest

WARNED_ABOVE = 0.5  # mean probability outside the labels above which there is a warning


def render_conversations(
    question: Question, items: Iterable[Item], *, system: bool
) -> list[list[Message]]:
    """Return the judge's prompt for each record.

    Args:
        system: True if the judge takes a system turn.
    """
    return [
        question.messages(
            {
                "question": item.question,
                "answer": str([*item.label]),  # a list's repr, as in the published prompts
                "prediction": item.response,
            },
            system=system,
        )
        for item in items
    ]


def sequence_requests(prompts: Sequence[str], question: Question) -> list[Request]:
    """Return each label after each prompt."""
    return [
        Request(f"{k}: {label}", prompt, label)
        for k, prompt in enumerate(prompts)
        for label in question.options
    ]


def by_labels(question: Question, scores: Sequence[LabelScores]) -> list[Record]:
    """Return verdicts from the next-token distribution over the labels."""
    return [
        verdict(None, error=score.error)
        if score.error is not None
        else _weighed(question, score.probability, score.outside, score.truncated)
        for score in scores
    ]


def by_sequences(question: Question, scored: Sequence[ScoredRequest]) -> list[Record]:
    """Return verdicts from the log-probabilities of `sequence_requests`.

    `outside` is 1 - Σ exp(sum of log-probabilities), which is exact unless a label is a prefix of
    another.
    """
    n = len(question.options)
    out = []
    for first in range(0, len(scored), n):
        labels = scored[first : first + n]
        errors = [x.error or "a label has 0 tokens" for x in labels if x.sum_logprob is None]
        if errors:
            out.append(verdict(None, error=errors[0]))
            continue
        logprob = np.array([label.sum_logprob for label in labels], np.float64)
        weights = np.exp(logprob - logprob.max())
        outside = max(0.0, 1.0 - float(np.exp(logprob).sum()))
        truncated = max(label.truncated for label in labels)
        out.append(_weighed(question, weights / weights.sum(), outside, truncated))
    return out


def _weighed(question: Question, probability: np.ndarray, outside: float, truncated: int) -> Record:
    worth = np.array(list(question.options.values()))
    by_label = dict(zip(question.options, probability.tolist(), strict=True))
    return verdict(
        float(worth @ probability), probability=by_label, outside=outside, truncated=truncated
    )


def by_texts(question: Question, answers: Sequence[Generated]) -> list[Record]:
    """Return verdicts from the judge's written answers."""
    return [
        verdict(None, texts=[answer.text], error=answer.error)
        if answer.error is not None
        else verdict(question.worth(answer.text), texts=[answer.text])
        for answer in answers
    ]


def verdict(
    score: float | None,
    *,
    probability: Mapping[str, float] | None = None,
    outside: float | None = None,
    texts: Sequence[str] = (),
    truncated: int = 0,
    **error: str,
) -> Record:
    """Return the fields of a record's judgement.

    Args:
        score: the score; `UNKNOWN` if the answer names no label or several, None if the request
            failed.
        probability: label -> probability over the labels; None if text was read.
        outside: the probability of any other answer; None if text was read.
        texts: the written answers; empty if probabilities were read.
        truncated: tokens left out at the left of the prompt; for whole labels the maximum.
        error: the reason why the request failed.
    """
    return {
        "score": score,
        "known": None if score is None else score != UNKNOWN,
        "probability": probability or {},
        "outside": outside,
        "texts": list(texts),
        "truncated": truncated,
        **error,
    }


def compute_findings(
    question: Question, records: Sequence[Record], settings: IntervalSettings, score_source: str
) -> Findings:
    """Return the mean with its interval, and counts of the labels.

    Args:
        score_source: the `kind` of the judgements; "text" overrides it if a record has a text.
    """
    answers = [(record["known"], record["texts"][0]) for record in records if record["texts"]]
    score_source = "text" if answers else score_source
    scores = [score_of(record) for record in records if record["known"]]
    is_share = score_source == "text" and set(question.options.values()) <= {0.0, 1.0}
    mean = mean_of(scores, settings.n_bootstrap, settings.seed, is_share=is_share)
    named = [question.labels_in(text) for is_known, text in answers if is_known is not None]
    n_none = sum(not labels for labels in named)
    n_several = sum(len(labels) > 1 for labels in named)
    outside = _mean([record["outside"] for record in records if record["outside"] is not None])
    warnings = []
    if outside is not None and outside > WARNED_ABOVE:
        warnings.append(
            f"the judge gives the labels {1 - outside:.2g} of its probability on average; "
            "it would mostly begin its answer otherwise"
        )
    if unread := n_none + n_several:
        warnings.append(
            f"{n_none} answers name no label and {n_several} name several; these "
            f"{unread} are outside the mean"
            + ("" if scores else ", which is null: no record is in it")
        )
    return Findings(
        score_source=score_source,
        estimates={"mean": mean},
        summary={
            **summary_of(mean, is_share=is_share),
            "outside": outside,
            "labels": _labels(question, records, named),
            "n_none": n_none,
            "n_several": n_several,
        },
        warnings=warnings,
    )


def likeliest(probability: Mapping[str, float | None]) -> str:
    """Return the first of the most probable labels; None stands for NaN, which JSON lacks."""
    return max(probability, key=lambda label: _number(probability[label]))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _labels(
    question: Question, records: Iterable[Record], named: Sequence[Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return each label's worth, the number of records that chose it, and its mean probability."""
    probabilities = [record["probability"] for record in records if record["probability"]]
    chosen = [likeliest(probability) for probability in probabilities]
    chosen += [labels[0] for labels in named if len(labels) == 1]
    return {
        label: {
            "worth": worth,
            "n": chosen.count(label),
            "probability": _mean([_number(probability[label]) for probability in probabilities]),
        }
        for label, worth in question.options.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
