"""The common part of the systems that choose between sampled responses.

    fields of an item ── candidates ──> Candidates ── choose ──> Choice ──> record
                                             └── ways, gold ──> `considered` of the record

A subclass reads the candidates of an item and chooses one of them. This module grades the choice,
makes the record, and summarizes records.
"""

import abc
import collections
import contextlib
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

from jaxscore.errors import InputError, NothingUsable
from jaxscore.io.items import item_label
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.items import Items
from jaxscore.shell.report import Report
from jaxscore.shell.system import LenientSystem, Record, Summary
from jaxscore.systems.selection import Item, read_confidences, read_responses
from jaxscore.systems.selection.answers import (
    FORMS,
    NO_FORM,
    NO_READABLE_ANSWER,
    Answers,
    answer_rules,
    read_answers,
)
from jaxscore.systems.selection.equal_answers import Same
from jaxscore.systems.selection.grading import (
    MAJORITY,
    Chooser,
    grade_choices,
    is_empty,
    read_gold,
    sizes,
)
from jaxscore.systems.selection.ranking import Choice, majority
from jaxscore.systems.selection.report import count_responses, printed_lines, report
from jaxscore.systems.selection.symbolic import TIME_LIMIT, UNVERIFIED, SymbolicComparison

# Fields of a record that are not copied from an item, where an earlier step may have set them.
RESULTS = ("within_noise", "answer_form", "fallback", "choice_notes", "considered")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The responses of an item between which a system chooses.

    Attributes:
        fields: the item's fields.
        responses: the texts; None for null.
        confidences: the self-certainties in nats per token; None if unknown.
        answers: the answers of the responses; None if answers are not compared.
        noise: the rounding error of a confidence in nats; None if unknown.
    """

    fields: Mapping[str, Any]
    responses: list[str | None]
    confidences: list[float | None] = dataclasses.field(default_factory=list)
    answers: Answers | None = None
    noise: float | None = None

    @property
    def texts(self) -> list[str | None]:
        """The texts by which responses are compared; None for a response without one."""
        return self.responses if self.answers is None else self.answers.texts


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """The state shared by the choices of a run.

    Attributes:
        settings: the system's settings.
        first: the fields of the first item.
        symbolic: the symbolic comparison of the current item's answers.
    """

    settings: Any
    first: Mapping[str, Any]
    symbolic: SymbolicComparison

    def same(self, candidates: Candidates) -> Same | None:
        """Return the comparison of answers of other spellings, or None if the item needs none."""
        answers = candidates.answers
        return None if answers is None else self.symbolic.comparison(answers.rules)


class Selection(LenientSystem):
    """A system that chooses one response of each item.

    Attributes:
        way: the name of the way of choosing in tables.
        decided_by: the intended criterion, for the headline.
        fallbacks: reason why it did not decide -> explanation.
        responses_field: the item's field with the responses to choose from.
        field: the record's field with the chosen response in a list.
    """

    item = Item
    way: ClassVar[str]
    decided_by: ClassVar[str]
    fallbacks: ClassVar[Mapping[str, str]] = {}
    responses_field: ClassVar[str] = "output"
    field: ClassVar[str] = "output"

    @abc.abstractmethod
    def candidates(self, fields: Mapping[str, Any], context: Context) -> Candidates:
        """Return the candidates of an item.

        Raises:
            InputError: there are none.
        """

    @abc.abstractmethod
    def choose(self, candidates: Candidates, context: Context) -> Choice:
        """Choose one of the candidates.

        Raises:
            InputError: a setting makes every choice impossible.
        """

    @abc.abstractmethod
    def chosen_record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        """Return the record of an item, without the fields that all these systems have."""

    @abc.abstractmethod
    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of an item without a response, before its `error`."""

    def ways(self, candidates: Candidates, choice: Choice, context: Context) -> dict[str, Chooser]:
        """Return the graded ways of choosing, including `way`, without the majority vote."""
        return {}

    def further_ways(self, settings: Any) -> Sequence[str]:
        """Return the ways with a separate table."""
        return ()

    def counts_forms(self, settings: Any) -> bool:
        """Return True if the summary counts the forms of answers."""
        return True

    def label(self, index: int, record: Mapping[str, Any]) -> str:
        """Return the name of an item in messages, from its index and its record."""
        return item_label(index, dict(record))

    def needs(self, settings: Any) -> tuple[str, ...]:
        return ()

    def check(self, items: Items, settings: Any) -> None:
        """Check that an item is usable and, if requested, that one has gold.

        Raises:
            NothingUsable: none is; names the first item.
        """
        items.require_usable()
        error = None
        with contextlib.closing(self.score(None, items, settings)) as records:
            for record in records:
                if "error" not in record:
                    break
                error = error or record["error"]
            else:
                name = next(items.entries()).name
                raise NothingUsable(f"no item can be used; {name}: {error}")
        gold = getattr(settings, "gold", None)
        if gold is not None and all(is_empty(fields.get(gold)) for fields in items):
            first = next(iter(items))
            raise NothingUsable(
                f'no item has gold in field "{gold}"; the first item has the fields '
                f"{', '.join(map(repr, first)) or 'none'}"
            )

    def score(
        self, lm: Any, items: Sequence[Any], settings: Any
    ) -> Generator[dict[str, Any], None, None]:
        """Choose a response of each item, and grade it if the settings name the gold.

        If no response of any item has a readable answer, no choice is graded: a wrong form is not
        a wrong answer.
        """
        context = None
        ungraded: list[dict[str, Any]] | None = []  # until a response has a readable answer
        if getattr(settings, "gold", None) is None:
            ungraded = None
        with SymbolicComparison(getattr(settings, "time_limit", TIME_LIMIT)) as symbolic:
            for fields in items:
                context = context or Context(settings, fields, symbolic)
                record, is_readable = self._record(fields, context)
                if ungraded is None:
                    yield record
                    continue
                ungraded.append(record)
                if is_readable:
                    yield from ungraded
                    ungraded = None
        for record in ungraded or ():
            yield {**record, "right": None}

    def _record(self, fields: Mapping[str, Any], context: Context) -> tuple[dict[str, Any], bool]:
        """Return the record of an item, and True if its gold is compared with some answer."""
        graded = {} if getattr(context.settings, "gold", None) is None else {"right": None}
        try:
            candidates = self.candidates(fields, context)
        except InputError as problem:
            return {**self.failed_record(fields), "error": str(problem), **graded}, False
        context.symbolic.next_item()
        choice = self.choose(candidates, context)
        if choice.error is not None:
            return {**self.failed_record(fields), "error": choice.error, **graded}, False
        record = self.chosen_record(candidates, choice)
        if choice.fallback is not None:
            record["fallback"] = choice.fallback
        considered: dict[str, Any] = {}
        answers = candidates.answers
        if answers is not None and answers.rules.forms and self.counts_forms(context.settings):
            considered["forms"] = answers.forms
        is_readable = False
        if graded:
            record["right"] = None
            try:
                is_readable = self._grade(record, considered, candidates, choice, context)
            except InputError as problem:
                record["error"] = str(problem)
        if notes := [*choice.notes, *_notes_of_symbolic(context.symbolic)]:
            record["choice_notes"] = notes
        return record | ({"considered": considered} if considered else {}), is_readable

    def _grade(
        self,
        record: dict[str, Any],
        considered: dict[str, Any],
        candidates: Candidates,
        choice: Choice,
        context: Context,
    ) -> bool:
        """Grade a choice, and what other ways take of the first 1, 2, 4, ... responses.

        Returns:
            True if the gold could be compared with at least one answer.

        Raises:
            InputError: the gold cannot be used.
        """
        fields, answers = candidates.fields, candidates.answers
        rules = None if answers is None else answers.rules
        gold = read_gold(
            fields,
            context.settings.gold,
            len(fields[self.responses_field]),
            answers=rules is not None,
            code=rules is not None and rules.code,
        )
        if gold is None:
            return False
        same = context.same(candidates)
        right = gold.right(len(candidates.responses), answers, same)
        if answers is not None and gold.verdicts is None:
            considered["n_unreadable"] = answers.n_unreadable
        ways = self.ways(candidates, choice, context)
        if answers is not None:
            ways = {MAJORITY: majority(candidates.texts, same), **ways}
        considered["right"] = right
        considered["taken"] = {
            way: [take(n) for n in sizes(len(right))] for way, take in ways.items()
        }
        record["right"] = right[choice.index]
        return gold.verdicts is not None or any(text is not None for text in candidates.texts)

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Any) -> Summary:
        """Count decisions and fallbacks, and compute shares of right choices with gold."""
        numbers = self.count(records, settings)
        headline, details, is_unreadable = self.headline(numbers), {}, False
        if getattr(settings, "gold", None) is not None:
            grades = grade_choices(
                records, settings, self.way, self.further_ways(settings), self.field, self.label
            )
            numbers, details = {**numbers, **grades.numbers}, grades.details
            headline, is_unreadable = f"{headline}; {grades.headline}", grades.is_unreadable
        warnings = [NO_READABLE_ANSWER] if is_unreadable else []
        failures = []
        for index, record in enumerate(records):
            if notes := record.get("choice_notes"):
                warnings.append(f"note: {self.label(index, record)}: {'; '.join(notes)}")
            if "error" in record:
                failures.append((self.label(index, record), record["error"]))
        return Summary(
            headline=headline,
            numbers=numbers,
            details=details,
            failures=failures,
            warnings=warnings,
            lines=printed_lines(numbers, details, self.fallbacks),
            is_complete=not is_unreadable,
        )

    def count(self, records: Sequence[Mapping[str, Any]], settings: Any) -> dict[str, Any]:
        """Count decisions, fallbacks, responses and forms of answers."""
        fallbacks: collections.Counter[str] = collections.Counter()
        forms: collections.Counter[str] = collections.Counter()
        n_good = n_chosen = n_by_form = 0
        noise = []
        for record in records:
            n_chosen += bool(record[self.field])
            listed = record.get("considered", {}).get("forms")
            if listed is not None:
                n_by_form += 1
                forms.update(form or NO_FORM for form in listed)
            if "error" not in record:
                n_good += 1
                if "fallback" in record:
                    fallbacks[record["fallback"]] += 1
                if record.get("within_noise") is not None:
                    noise.append(record["within_noise"])
        numbers = {
            "n_items": len(records),
            "n_decided": n_good - fallbacks.total(),
            "n_fallbacks": fallbacks.total(),
            "fallbacks": {name: fallbacks[name] for name in self.fallbacks},
            "n_failed": len(records) - n_good,
            "n_with_noise": len(noise),
            "n_within_noise": sum(noise) if noise else None,
        }
        if hasattr(settings, "best_n"):
            numbers |= count_responses(records, settings.best_n)
        if n_chosen and self.counts_forms(settings):
            if n_by_form:
                numbers["answer_forms"] = {form: forms[form] for form in (*FORMS, NO_FORM)}
            numbers["n_read_as_published"] = n_chosen - n_by_form
            numbers["n_read_by_form"] = n_by_form
        return numbers

    def headline(self, numbers: Mapping[str, Any]) -> str:
        """Return the summary as a line."""
        return (
            f"{numbers['n_decided']} of {counted(numbers['n_items'], 'items')} decided by "
            f"{self.decided_by}, {numbers['n_fallbacks']} by fallback"
        )

    def report(self, run: Report) -> Document | None:
        """Return the report with shares by N and the wrong choices; see `selection.report`."""
        return report(run.source())

    def rows(self, record: Record) -> Sequence[Record]:
        """Return the record with the chosen response as text in place of the list."""
        return [{**record, self.field: next(iter(record[self.field]), None)}]

    def read_answers(
        self, fields: Mapping[str, Any], responses: Sequence[str | None], context: Context
    ) -> Answers:
        """Read the answers of the first responses of an item."""
        settings = context.settings
        gold = None if settings.gold is None else fields.get(settings.gold)
        rules = answer_rules(
            fields, context.first, fields[self.responses_field], settings.answer_rule, gold
        )
        return read_answers(responses, rules)


def _notes_of_symbolic(symbolic: SymbolicComparison) -> list[str]:
    """Return notes on expressions of the item that could not be compared."""
    notes = [UNVERIFIED] if symbolic.is_unverified else []
    if not symbolic.timeouts and not symbolic.exhausted:
        return notes
    taken = "SymPy took its time over all its answers"
    if symbolic.timeouts:
        times = "once" if symbolic.timeouts == 1 else f"{symbolic.timeouts} times"
        taken = f"SymPy ran out of time or memory {times}"
    return [
        *notes,
        f"{taken}, so the rest was compared as text" if symbolic.exhausted else taken,
    ]


def certain_candidates(fields: Mapping[str, Any], best_n: int) -> Candidates:
    """Return the first N responses of an item with their confidences.

    Raises:
        InputError: there are none, or confidences are missing.
    """
    texts = read_responses(fields, "output", best_n)
    return Candidates(fields, texts, read_confidences(fields, best_n, len(texts)))


def repeated(fields: Mapping[str, Any], *replaced: str) -> dict[str, Any]:
    """Return the fields of an item that its record repeats.

    Args:
        replaced: further fields that the record replaces.
    """
    return {name: value for name, value in fields.items() if name not in (*RESULTS, *replaced)}


def answer_form(answers: Answers | None, choice: Choice) -> dict[str, Any]:
    """Return the form of the chosen answer, unless the item is read as published."""
    if answers is None or answers.rules.forms is None:
        return {}
    return {"answer_form": answers.forms[choice.index]}
