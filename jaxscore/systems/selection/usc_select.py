"""`usc-select`: the response that a model called the most consistent.

Universal self-consistency (Chen et al., arXiv 2311.17311) shows a model several responses,
numbered from 0, and asks which agrees most with the others. Here its reply is read.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from jaxscore.errors import InputError
from jaxscore.systems import selection
from jaxscore.systems.drawn_tokens import without_ids
from jaxscore.systems.entries import Entry
from jaxscore.systems.selection import (
    AnswerSettings,
    Record,
    compared,
    help_of_gold,
)
from jaxscore.systems.selection.answers import AUTO, BOX
from jaxscore.systems.selection.choosing import (
    Candidates,
    Result,
    Selection,
    answer_form,
    declare,
    without,
)
from jaxscore.systems.selection.grading import Chooser
from jaxscore.systems.selection.ranking import Choice
from jaxscore.systems.settings import setting
from jaxscore.systems.system import ArrayOutput

HELP = """\
For each question keep the response that the model's reply calls the most
consistent (universal self-consistency, arXiv 2311.17311).

input, a JSON array as `usc-generate` writes it; responses are numbered from 0:
  [{"id": 0, "output": ["The most consistent response is Response 1"],
    "responses": ["{\\"answer\\": 41}", "{\\"answer\\": 42}", "{\\"answer\\": 42}"]}]

The last `Response k` of the reply counts. Without one, or with a k that does
not exist, response 0 is kept. --dataset-type close is for questions with a
fixed answer: where the chosen response has no extractable answer, the first
response with one is kept instead.

output, the same items with
  output        the chosen response, in a list
  fallback      why, where the reply did not decide; counted apart:
    none_named    the reply names no response
    out_of_range  the reply names a response that does not exist
    no_answer     the response that the reply names has no extractable answer
                  (--dataset-type close)
  answer_form   with --dataset-type close, of an item that is not read as
                published, as in `select`
  Beside OUT lies OUT.run.json. The default name has -close with --dataset-type
  close and -firstN with --limit N.

""" + help_of_gold(", a majority vote's and an oracle's")
CHOSEN = re.compile(r"Response\s+(\d+)")
NONE_NAMED, OUT_OF_RANGE, NO_ANSWER = "none_named", "out_of_range", "no_answer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings):
    """Settings of `usc-select`."""

    dataset_type: Literal["open", "close"] = setting(
        "open",
        help="close: the answers are extractable, so one without is not kept (default open)",
    )

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.gold is None and self.answer_rule != AUTO and self.dataset_type != "close":
            raise InputError(
                f"setting answer_rule is {self.answer_rule} with dataset_type {self.dataset_type} "
                "and no gold: no answer is read; take dataset_type close or name the field with "
                "the right answer"
            )


class UscRecord(Record, total=False):
    """An item with the chosen response in place of the reply."""

    fallback: str


def named_response(reply: str) -> int | None:
    """The number of the last `Response k` in a reply, or None if it names none."""
    numbers = CHOSEN.findall(reply)
    if not numbers:
        return None
    try:
        return int(numbers[-1])
    except ValueError:  # more digits than Python reads
        return sys.maxsize


class NamedByReply(Selection):
    """The response that the reply names, or response 0.

    If answers are extractable, a choice without a readable answer gives way to the first response
    with one, if any has: all of them are considered, where the published script considers eight.
    In the published reading boxes are no answers here, as in that script.
    """

    way = "the model's reply"
    decided_by = "the reply"
    source = "responses"
    fallbacks: ClassVar[Mapping[str, str]] = {
        NONE_NAMED: "the reply names no response",
        OUT_OF_RANGE: "the reply names a response that does not exist",
        NO_ANSWER: "the response that the reply names has no extractable answer",
    }

    @property
    def is_closed(self) -> bool:
        """Whether the right answers are extractable."""
        return self.settings.dataset_type == "close"

    @property
    def counts_answers(self) -> bool:
        return self.settings.gold is not None

    def read(self, fields: Mapping[str, Any]) -> Candidates:
        [reply] = selection.responses(fields, "output", 1)
        if reply is None:
            raise InputError('field "output": the reply is no text')
        texts = selection.responses(fields, "responses")
        answers = None
        if self.is_closed or self.settings.gold is not None:
            answers = self.read_answers(fields, texts)
        return Candidates(fields, texts, answers=answers)

    def choose(self, candidates: Candidates) -> Choice:
        texts, answers = candidates.responses, candidates.answers
        index = named_response(candidates.fields["output"][0])
        fallback = why = None
        if index is None:
            index, fallback, why = 0, NONE_NAMED, "the reply names no response"
        elif index >= len(texts):
            why = f"the reply names response {index} of {len(texts)}"
            index, fallback = 0, OUT_OF_RANGE
        usable = [True] * len(texts)
        if self.is_closed and answers is not None:
            boxes = answers.rules.forms is not None
            usable = [form is not None and (boxes or form != BOX) for form in answers.forms]
            if not usable[index] and any(usable):
                fallback = fallback or NO_ANSWER
                why = why or f"response {index}, which the reply names, has no extractable answer"
                index = usable.index(True)
        if texts[index] is None:
            error = f'field "responses": number {index} is chosen and is no text'
            return Choice(index, error=error)
        notes = [f"{why}, so response {index} is taken"] if why else []
        return Choice(index, answered=usable[index], fallback=fallback, notes=notes)

    def ways(self, candidates: Candidates, choice: Choice) -> dict[str, Chooser]:
        """The reply, which has no choice for a smaller N."""
        return {self.way: lambda n: choice.index if n == self.most else None}

    def record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        return {
            **without(without_ids(candidates.fields), "fallback"),
            "output": [candidates.responses[choice.index]],
            **answer_form(candidates.answers, choice),
            **({} if choice.fallback is None else {"fallback": choice.fallback}),
        }

    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**without(without_ids(fields), "fallback"), "output": []}

    def summary(self, results: Sequence[Result]) -> dict[str, Any]:
        """Counts of decisions, and of items without any answer."""
        n = None
        if self.is_closed:
            n = sum(r.is_usable and not r.choice.answered for r in results if r.choice is not None)
        return {**super().summary(results), "n_unanswered": n}


def _ending(settings: Settings, entries: Sequence[Entry[dict[str, Any]]]) -> str:
    kind = "" if settings.dataset_type == "open" else f"-{settings.dataset_type}"
    return f"-usc{kind}{settings.rule_ending}"


SYSTEM = declare(
    NamedByReply,
    name="usc-select",
    help=HELP,
    settings=Settings,
    record=UscRecord,
    array=ArrayOutput("-usc[-close][-firstN]", _ending),
    compared=compared("output", "model_input", without=("confidence_list",)),
)
