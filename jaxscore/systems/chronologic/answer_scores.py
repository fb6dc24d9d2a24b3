"""Probabilities of the answers that a text of a given time would give (ChronoLogic).

Each answer is scored by its mean log-probability after the question, a softmax turns the scores of
a question into probabilities, and the Brier score is their distance from the truth.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Column
from jaxscore.analysis.forecasts import brier, softmax, uniform_brier
from jaxscore.errors import InputError
from jaxscore.shell.fields import PAIRED, Decision, Metric, Paired, Result
from jaxscore.shell.prompts import PLAIN, ExampleItem, Prompting
from jaxscore.shell.system import SHOWN, name_of
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

COLUMNS = {
    "brier": Column("brier"),
    "uniform_brier": Column("uniform_brier"),
    "top_accuracy": Column("top_correct", share=True),
}
NO_CATEGORY = "(none)"
SEPARATOR = " "  # the published one after `ANSWER:`; part of the context


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question(ExampleItem):
    """A question with its answers.

    Attributes:
        main_question: the question's text.
        metadata_frame: the text before the question, possibly empty.
        question_category: a freely chosen name.
        answer_strings: the answers, at least one.
        answer_probabilities: the truth of each answer, 0 to 1.
        answer_types: the type of each answer, such as "negation"; None if unknown.
    """

    main_question: str
    metadata_frame: str | None = ""
    question_category: str | None = NO_CATEGORY
    answer_strings: tuple[str, ...]
    answer_probabilities: tuple[float, ...]
    answer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check the lists, and replace null by the defaults."""
        for name in ("answer_strings", "answer_types"):
            for k, value in enumerate(getattr(self, name) or (), start=1):
                if not isinstance(value, str):
                    raise InputError(
                        f'field "{name}", entry {k} is {str(value)[:20]}, expected a string'
                    )
        for k, value in enumerate(self.answer_probabilities, start=1):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= 1:
                raise InputError(
                    f'field "answer_probabilities", entry {k} is {str(value)[:20]!r}, '
                    "expected a number from 0 to 1"
                )
        n_answers = len(self.answer_strings)
        if not n_answers:
            raise InputError("answer_strings is empty; expected at least one answer")
        for name in ("answer_probabilities", "answer_types"):
            if (values := getattr(self, name)) is not None and len(values) != n_answers:
                raise InputError(
                    f"{name} has {len(values)} entries and answer_strings {n_answers}; expected "
                    "one for each answer"
                )
        for name, value in {
            "metadata_frame": self.metadata_frame or "",
            "question_category": self.question_category or NO_CATEGORY,
            "answer_probabilities": tuple(map(float, self.answer_probabilities)),
            "answer_types": None if self.answer_types is None else tuple(self.answer_types),
        }.items():
            object.__setattr__(self, name, value)

    @property
    def is_right(self) -> list[bool]:
        """True for each answer with truth 1, so that choosing it is right."""
        return right_answers(self.answer_probabilities)

    def check_example(self) -> None:
        """Check that there is a right answer to show."""
        if not any(self.is_right):
            raise InputError("no answer has probability 1, so none can be shown as right")

    def context(self, metadata: bool = True) -> str:
        """Return the text before an answer, identical to the published script's."""
        frame = f"{self.metadata_frame}\n" if metadata and self.metadata_frame else ""
        return f"{frame}QUESTION: {self.main_question}\nANSWER: "


def right_answers(truth: Sequence[float]) -> list[bool]:
    """Return True for each answer with truth 1."""
    return [value == 1.0 for value in truth]


def _scores(record: Mapping[str, Any]) -> list[float]:
    """Return the scores of a stored record, which has infinities as text.

    Raises:
        InputError: their number differs from that of the answers.
    """
    scores = [float(score) for score in record["scores"]]
    if len(scores) != len(record["answers"]):
        expected = len(record["answers"])
        raise InputError(f'field "scores" has {len(scores)} entries, expected {expected}')
    return scores


def _right_probability(record: Mapping[str, Any]) -> float | None:
    is_right = right_answers(record["truth"])
    pairs = zip(record["probabilities"], is_right, strict=True)
    return sum(p for p, right in pairs if right) if any(is_right) else None


def _right_from_wrong(record: Mapping[str, Any]) -> float:
    return margins.right_from_wrong(_scores(record), right_answers(record["truth"]))


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(_scores(record))


def _top_answer(record: Mapping[str, Any]) -> str:
    pairs = zip(record["probabilities"], record["answers"], strict=True)
    return max(pairs, key=lambda pair: pair[0])[1]


class AnswerRecord(TypedDict, total=False):
    """A question of the modes "sample" and "full"; `error` and no scores if an answer failed."""

    line: int | str
    question: Annotated[str, PAIRED]
    question_category: str
    answers: Annotated[list[str], Paired(lambda record: (record["answers"], record["truth"]))]
    answer_types: list[str] | None
    truth: list[float]
    probabilities: Annotated[
        list[float],
        Metric(
            "probability of the right answers of a question",
            "right_probability",
            _right_probability,
        ),
        Decision(
            "most probable answer", False, "mean log-probability", _top_answer, _lead,
            "within_noise", "top_answer", "mean_logprob",
        ),
    ]  # fmt: skip
    scores: Annotated[
        list[float],
        Metric("mean log-probability of an answer, nats per token", "answer_logprob", _scores),
    ]
    n_tokens: list[int]
    brier: Annotated[
        float, Metric("Brier score of a question", is_main=True), Result("mean Brier score")
    ]
    uniform_brier: float
    top_correct: Annotated[
        bool | None,
        Decision(
            "the most probable answer is right", True, "mean log-probability", None,
            _right_from_wrong, "correct_within_noise", spread="mean_logprob",
        ),
    ]  # fmt: skip
    truncated: list[int]
    within_noise: bool
    correct_within_noise: bool | None


def repeated_answers(records: Iterable[Mapping[str, Any]], field: str) -> list[str]:
    """Return warnings about repeated answers of a question, which are valid and share its mass.

    Args:
        field: the records' field with the answers.
    """
    out = []
    for record in records:
        if "error" not in record:
            [(answer, count)] = collections.Counter(record[field]).most_common(1)
            if count > 1:
                out.append(
                    f"{name_of(record, 'line')}: answer {answer[:SHOWN]!r} occurs more than once"
                )
    return out


def without_right_answer(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return warnings about questions without a right answer: valid, as in the published script."""
    out = []
    for record in records:
        if "error" not in record and not any(right_answers(record["truth"])):
            why = "no answer has probability 1"
            if not any(record["truth"]):
                why = "no answer is correct, so no Brier score of 0 is possible"
            name = name_of(record, "line")
            out.append(f"{name}: {why}; top accuracy leaves the question out")
    return out


def split(prompt: str, answer: str, separator: str | None) -> tuple[str, str]:
    """Return a context and an answer with another separator than the published one.

    Args:
        prompt: the result of `Question.context`.
        separator: the separator, which becomes part of the answer; None changes nothing.
    """
    if separator is None:
        return prompt, answer
    return prompt.removesuffix(SEPARATOR), separator + answer


def requests(
    question: Question,
    *,
    metadata: bool = True,
    prompting: Prompting = PLAIN,
    separator: str | None = None,
) -> list[Request]:
    """Return one request per answer; for `separator` see `split`."""
    key = question.context(metadata)
    context = prompting.context_of(split(key, "", separator)[0], key)
    return [
        Request(str(k), context, prompting.continuation_of(split(key, answer, separator)[1]))
        for k, answer in enumerate(question.answer_strings, start=1)
    ]


def record_of(
    question: Question, results: Sequence[ScoredRequest], boundary: str
) -> dict[str, Any]:
    """Return the record of a question without `line`: `error` and no scores if an answer failed.

    Args:
        results: the result of each of `requests`.
        boundary: the setting; with "upstream" an answer with no token left scores 0.0, as in the
            published script, and with any other its question fails.
    """
    record: dict[str, Any] = {
        "question": question.main_question,
        "question_category": question.question_category,
        "answers": list(question.answer_strings),
        "answer_types": None if question.answer_types is None else list(question.answer_types),
        "truth": list(question.answer_probabilities),
    }
    for k, result in enumerate(results, start=1):
        is_empty = not result.n_scored and boundary != "upstream"
        error = result.error or (
            "found 0 tokens, so its probability is undefined" if is_empty else None
        )
        if error:
            return record | {"error": f"answer {k}: {error}"}
    scores = [0.0 if result.mean_logprob is None else result.mean_logprob for result in results]
    probabilities = softmax(scores)
    is_right = question.is_right
    record |= {
        "scores": scores,
        "probabilities": probabilities.tolist(),
        "n_tokens": [result.n_tokens for result in results],
        "brier": brier(probabilities, question.answer_probabilities),
        "uniform_brier": uniform_brier(question.answer_probabilities),
        # argmax takes the first of equal answers. Without a right answer the verdict is None.
        "top_correct": is_right[int(probabilities.argmax())] if any(is_right) else None,
    }
    if any(result.truncated for result in results):
        record["truncated"] = [result.truncated for result in results]
    return record
