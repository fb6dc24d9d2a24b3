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
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Items
from jaxscore.shell.system import Layout
from jaxscore.systems import selection
from jaxscore.systems.drawn_tokens import without_ids
from jaxscore.systems.selection import AnswerSettings, Record
from jaxscore.systems.selection.answers import AUTO, BOX
from jaxscore.systems.selection.choosing import (
    Candidates,
    Context,
    Selection,
    answer_form,
    repeated,
)
from jaxscore.systems.selection.grading import Chooser
from jaxscore.systems.selection.ranking import Choice

CHOSEN = re.compile(r"Response\s+(\d+)")
NONE_NAMED, OUT_OF_RANGE, NO_ANSWER = "none_named", "out_of_range", "no_answer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings):
    """Settings of `usc-select`."""

    dataset_type: Literal["open", "close"] = flag(
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


def named_response(reply: str) -> int | None:
    """Return the number of the last `Response k` in a reply, or None if it names none."""
    numbers = CHOSEN.findall(reply)
    if not numbers:
        return None
    try:
        return int(numbers[-1])
    except ValueError:  # more digits than Python reads
        return sys.maxsize


def _ending(items: Items, settings: Settings) -> str:
    """Return the end of the default name, with what is not the default."""
    dataset_type = "" if settings.dataset_type == "open" else f"-{settings.dataset_type}"
    return f"-usc{dataset_type}{settings.rule_ending}"


class UscSelect(Selection):
    """For each question keep the response that the model's reply calls the most
    consistent (universal self-consistency, arXiv 2311.17311).

    input, a JSON array as `usc-generate` writes it; responses are numbered from 0:
      [{"id": 0, "output": ["The most consistent response is Response 1"],
        "responses": ["{\\"answer\\": 41}", "{\\"answer\\": 42}", "{\\"answer\\": 42}"]}]

    The last `Response k` of the reply counts. Without one, or with a k that does
    not exist, response 0 is kept. --dataset-type close is for questions with a
    fixed answer: where the chosen response lacks an extractable answer, the first
    response with one is kept instead.

    output, the same items with
      output        the chosen response, in a list
      fallback      why, where the reply did not decide; counted apart:
        none_named    the reply names no response
        out_of_range  the reply names a response that does not exist
        no_answer     the response that the reply names lacks an extractable answer
                      (--dataset-type close)
      answer_form   with --dataset-type close, for an item that is not read as
                    published, as in `select`; null without any answer
      choice_notes, considered   as in `select`
      Next to OUT are OUT.run.json and the report: OUT_report.md, OUT_report.json
      and, for a browser, OUT_report.html (OUT.report.md where OUT does not end in
      .json). The default name has -close with --dataset-type close and -firstN with
      --limit N.

    --gold FIELD grades the choices. FIELD of each item holds the right answer, a
    list of acceptable answers, or a list of true or false for each response. Items
    get `right` (null without gold); the share of right choices among the first 1,
    2, 4, ... N responses is printed next to the first sample's, a majority vote's
    and an oracle's, and is in the report. Answers are read as in `select` and
    compared as in `vote`. Responses without a readable answer count as wrong, and
    are counted next to the shares. If no response has one, shares are undefined,
    and the exit code is 1.

    exit code: 0 all decided or by fallback, 1 some items failed (they hold
               `error`) or nothing could be graded, 2 unusable input or no usable
               item; nothing is written.
    """

    # All responses are considered, where the published script considers eight. In the published
    # reading boxes are not answers here, as in that script.

    name = "usc-select"
    settings, record = Settings, Record
    layout = Layout(is_ascii=True, ending="-usc[-close][-firstN]", ending_of=_ending)
    way = "the model's reply"
    decided_by = "the reply"
    responses_field = "responses"
    fallbacks: ClassVar[Mapping[str, str]] = {
        NONE_NAMED: "the reply names no response",
        OUT_OF_RANGE: "the reply names a response that does not exist",
        NO_ANSWER: "the response that the reply names lacks an extractable answer",
    }

    def counts_forms(self, settings: Settings) -> bool:
        return settings.gold is not None

    def candidates(self, fields: Mapping[str, Any], context: Context) -> Candidates:
        """Read all responses, and their answers if these are needed."""
        [reply] = selection.read_responses(fields, "output", 1)
        if reply is None:
            raise InputError('field "output": the reply is not text')
        texts = selection.read_responses(fields, "responses")
        answers = None
        if _is_closed(context.settings) or context.settings.gold is not None:
            answers = self.read_answers(fields, texts, context)
        return Candidates(fields, texts, answers=answers)

    def choose(self, candidates: Candidates, context: Context) -> Choice:
        """Take the response that the reply names, or else a usable one."""
        texts, answers = candidates.responses, candidates.answers
        index = named_response(candidates.fields["output"][0])
        fallback = why = None
        if index is None:
            index, fallback, why = 0, NONE_NAMED, "the reply names no response"
        elif index >= len(texts):
            why = f"the reply names response {index} of {len(texts)}"
            index, fallback = 0, OUT_OF_RANGE
        usable = [True] * len(texts)
        if _is_closed(context.settings) and answers is not None:
            boxes = answers.rules.forms is not None
            usable = [form is not None and (boxes or form != BOX) for form in answers.forms]
            if not usable[index] and any(usable):
                fallback = fallback or NO_ANSWER
                why = why or f"response {index}, which the reply names, lacks an extractable answer"
                index = usable.index(True)
        if texts[index] is None:
            error = f'field "responses": number {index} is chosen and is not text'
            return Choice(index, error=error)
        notes = [f"{why}, so response {index} is taken"] if why else []
        return Choice(index, answered=usable[index], fallback=fallback, notes=notes)

    def ways(self, candidates: Candidates, choice: Choice, context: Context) -> dict[str, Chooser]:
        """Return the reply's choice, which is undefined for a smaller N."""
        n_responses = len(candidates.responses)
        return {self.way: lambda n: choice.index if n == n_responses else None}

    def chosen_record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        """Return the item with the chosen response in place of the reply."""
        form = answer_form(candidates.answers, choice) if choice.answered else {"answer_form": None}
        output = [candidates.responses[choice.index]]
        return {**repeated(without_ids(candidates.fields)), "output": output, **form}

    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {**repeated(without_ids(fields)), "output": []}

    def count(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
        """Count decisions and items without any answer."""
        n = None
        if _is_closed(settings):
            forms = (r.get("answer_form", "") for r in records if "error" not in r)
            n = sum(form is None for form in forms)
        return {**super().count(records, settings), "n_unanswered": n}


def _is_closed(settings: Settings) -> bool:
    """Return True if the right answers are extractable."""
    return settings.dataset_type == "close"


SYSTEM = UscSelect()
