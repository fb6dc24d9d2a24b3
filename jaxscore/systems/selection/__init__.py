"""Items, settings, records and comparison of the systems that choose between responses.

Items have sampled responses in the format of the published scripts (arXiv 2502.18581).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.shell.fields import Decision, Metric, Paired
from jaxscore.shell.flags import flag
from jaxscore.shell.settings import Settings
from jaxscore.systems.selection.answers import AUTO, RULE_HELP, Rule
from jaxscore.systems.selection.ranking import NO_ANSWER

ASKED = Paired(lambda record: record.get("model_input", record.get("input")))


class Item(TypedDict, total=False):
    """Sampled responses to one question. A record repeats these fields and all others.

    Attributes:
        output: the responses; for `usc-select` the reply that names one.
        responses: the responses that the reply chooses from.
        confidence_list: the self-certainty of each response in nats per token.
        confidence_settings: `noise` is the rounding error of a confidence in nats.
        generator: the model that wrote the responses.
        dataset, task, subtask: the names that select the rules for reading and comparing answers.
        question_id: the id in LiveCodeBench.
    """

    id: str | int
    output: Annotated[list[str | None], ASKED]
    responses: list[str | None]
    confidence_list: list[float | None]
    confidence_settings: dict[str, Any]
    generator: str
    dataset: str
    task: str
    subtask: str
    question_id: str | int


def read_responses(
    fields: Mapping[str, Any], field: str, best_n: int | None = None
) -> list[str | None]:
    """Return the first `best_n` responses; None in place of anything but text.

    Raises:
        InputError: not a list of responses, or an empty one.
    """
    values = _list(fields, field)[:best_n]
    if not values:
        raise InputError(f'field "{field}" is empty, expected at least one response')
    return [value if isinstance(value, str) else None for value in values]


def read_confidences(
    fields: Mapping[str, Any], best_n: int | None, n_responses: int
) -> list[float | None]:
    """Return the confidence of each response; None for one that is null or not finite.

    Raises:
        InputError: not a list of numbers, or of another length, or without any number.
    """
    values = _list(fields, "confidence_list", "; `self-certainty` makes it")[:best_n]
    if len(values) != n_responses:
        raise InputError(
            f'field "confidence_list" has {len(values)} values for {n_responses} responses, '
            "expected one for each"
        )
    out: list[float | None] = []
    for rank, value in enumerate(values, start=1):
        if value is None or value in ("Infinity", "-Infinity"):
            out.append(None)
        elif isinstance(value, float):
            out.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            out.append(float(value) if abs(value) < 1 << 1023 else None)
        else:
            raise InputError(
                f'field "confidence_list", value {rank}: found {json_kind(value)}, expected a '
                "number"
            )
    if all(value is None for value in out):
        raise InputError('field "confidence_list" holds no number')
    return out


def read_noise(fields: Mapping[str, Any]) -> float | None:
    """Return the rounding error of the item's confidences in nats; None if unknown.

    Raises:
        InputError: it is not a number of nats.
    """
    settings = fields.get("confidence_settings")
    value = settings.get("noise") if isinstance(settings, dict) else None
    if value is None:
        return None
    if value == "Infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise InputError(
            f'field "confidence_settings", entry "noise": found {str(value)[:20]!r}, expected '
            "nats, 0 or more"
        )
    return float(value)


def _list(fields: Mapping[str, Any], field: str, remedy: str = "") -> list[Any]:
    if field not in fields:
        there = ", ".join(map(repr, fields)) or "none"
        raise InputError(f'no field "{field}", expected a list{remedy}; there are {there}')
    value = fields[field]
    if not isinstance(value, list):
        raise InputError(f'field "{field}" is {json_kind(value)}, expected a list{remedy}')
    return value


def list_oddities(texts: Sequence[str | None], values: Sequence[float | None] = ()) -> list[str]:
    """Return notes on responses that are not text and confidences that are not numbers."""
    missing = [str(k) for k, text in enumerate(texts, start=1) if text is None]
    unknown = [str(k) for k, value in enumerate(values, start=1) if value is None]
    return [
        *([f"response {', '.join(missing)} is not text, so it is unanswered"] * bool(missing)),
        *([f"confidence {', '.join(unknown)} is not a number, so it ranks last"] * bool(unknown)),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradedSettings(Settings):
    """Settings of a system whose choices can be graded."""

    gold: str | None = flag(
        None,
        metavar="FIELD",
        expected="the name of a field",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each response: report how often the choice is right, and the first sample, a "
        "majority vote and an oracle",
    )
    n_bootstrap: int = flag(
        1000,
        least=1,
        metavar="N",
        help="with --gold: draws for the 95% intervals of differences (default 1000)",
        is_advanced=True,
    )
    seed: int = flag(0, help="with --gold: of those draws (default 0)", is_advanced=True)

    def record(self) -> dict[str, Any]:
        """Return the settings for a report; those of grading only with gold."""
        values = super().record()
        if self.gold is None:
            for name in ("gold", "n_bootstrap", "seed"):
                del values[name]
        return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSettings(GradedSettings):
    """Settings of a system that reads the answers of responses."""

    answer_rule: Rule = flag(AUTO, help=RULE_HELP)

    @property
    def rule_ending(self) -> str:
        """The end of the output's default name, distinct for each rule."""
        return "" if self.answer_rule == AUTO else f"-{self.answer_rule}"


def first_n(default: int) -> Any:
    """Declare the setting `best_n`."""
    return flag(
        default,
        name="best-N",
        least=1,
        metavar="N",
        help=f"consider the first N responses of each item (default {default}); an item with fewer "
        "has all of its considered",
    )


def _first_of(field: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda record: str(record[field][0]) if record[field] else None


class Considered(TypedDict, total=False):
    """Facts on an item's considered responses, in their order, for the summary.

    Attributes:
        forms: the forms of the answers, unless the item is read as published.
        right: with gold, the verdict on each response.
        n_unreadable: with gold that is compared, the number of responses without a readable answer.
        taken: with gold, way of choosing -> its choice, from 0, among the first 1, 2, 4, ... and
            among all responses; None if it takes none.
    """

    forms: list[str | None]
    right: list[bool]
    n_unreadable: int
    taken: dict[str, list[int | None]]


class Chosen(TypedDict, total=False):
    """Fields of a record of each of these systems.

    Attributes:
        right: with gold, the verdict on the chosen response.
        fallback: the reason why confidences, votes or the reply did not decide.
        choice_notes: notes on irregularities of the item.
    """

    right: Annotated[bool | None, Decision("the chosen response is right", is_right=True)]
    fallback: str
    choice_notes: list[str]
    considered: Considered


class Record(Chosen, total=False):
    """An item with the chosen response in place of its responses."""

    output: Annotated[
        list[str | None],
        ASKED,
        Decision(
            "chosen response", value=_first_of("output"), within="within_noise", name="output"
        ),
    ]
    answer_form: str | None


class CertainRecord(Record, total=False):
    """An item with the chosen response and its self-certainty."""

    confidence: Annotated[
        float | None,
        Metric(
            "self-certainty of the chosen response",
            value=lambda record: (
                None if record["confidence"] == NO_ANSWER else record["confidence"]
            ),
        ),
    ]
    within_noise: bool


class CodeRecord(Chosen, total=False):
    """The code of a chosen response in LiveCodeBench's format."""

    question_id: str | int
    code_list: Annotated[
        list[str], Decision("chosen response", value=_first_of("code_list"), name="output")
    ]
