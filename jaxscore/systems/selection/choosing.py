"""Chooses a response of each item, as each of these systems does.

Each system is a `Selection`: it reads the candidates of an item and chooses one of them. Here every
item is read, chosen from, graded by its gold if that is known, and made a record.
"""

import abc
import collections
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxscore.errors import InputError, NothingUsable
from jaxscore.io.items import read_lenient_rows
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.remarks import Remark
from jaxscore.systems.selection import Item, confidences, responses
from jaxscore.systems.selection.answers import (
    NO_READABLE_ANSWER,
    Answers,
    answer_rules,
    count_forms,
    read_answers,
)
from jaxscore.systems.selection.grading import (
    MAJORITY,
    Chooser,
    Grader,
    Marks,
    Same,
    sizes,
)
from jaxscore.systems.selection.ranking import Choice, majority
from jaxscore.systems.selection.report import (
    count_responses,
    manifest_counts,
    printed_lines,
    report,
)
from jaxscore.systems.selection.symbolic import TIME_LIMIT, SymbolicComparison
from jaxscore.systems.system import System


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """What a system knows of the responses of an item between which it chooses.

    Attributes:
        fields: of the item.
        responses: None for one that is null.
        confidences: nats per token; None for one that is not known.
        answers: of the responses; None if they have none to compare.
        noise: how far rounding moves a confidence, in nats; None if it is not known.
    """

    fields: Mapping[str, Any]
    responses: list[str | None]
    confidences: list[float | None] = dataclasses.field(default_factory=list)
    answers: Answers | None = None
    noise: float | None = None

    @property
    def texts(self) -> list[str | None]:
        """What responses are compared by; None for one without."""
        return self.responses if self.answers is None else self.answers.texts


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What became of an item; `choice` is None if it has no candidates."""

    name: str
    record: dict[str, Any]
    candidates: Candidates | None
    choice: Choice | None

    @property
    def is_usable(self) -> bool:
        """Whether a response was chosen, and could be graded if that was requested."""
        return "error" not in self.record

    @property
    def answers(self) -> Answers | None:
        """Answers of the responses among which one was chosen, or None if there was no choice."""
        if self.candidates is None or self.choice is None or self.choice.error is not None:
            return None
        return self.candidates.answers


class Selection(abc.ABC):
    """How a system chooses.

    Attributes:
        most: responses that a usable item has at most.
        way: its name in tables.
        decided_by: what should decide, for the headline.
        fallbacks: why it did not, and what people read of it.
        source: field of an item, with all responses between which it chooses.
        field: of a record, with the chosen response in a list.
    """

    way: ClassVar[str]
    decided_by: ClassVar[str]
    fallbacks: ClassVar[Mapping[str, str]] = {}
    source: ClassVar[str] = "output"
    field: ClassVar[str] = "output"

    def __init__(
        self, settings: Any, first: Mapping[str, Any], symbolic: SymbolicComparison
    ) -> None:
        """Args:
        first: fields of the first item.
        symbolic: compares answers of the present item.
        """
        self.settings, self.first, self.symbolic = settings, first, symbolic
        self.most = 1

    @property
    def further_ways(self) -> Sequence[str]:
        """Ways with a table of their own."""
        return ()

    @abc.abstractmethod
    def read(self, fields: Mapping[str, Any]) -> Candidates:
        """The candidates of an item.

        Raises:
            InputError: it has none.
        """

    @abc.abstractmethod
    def choose(self, candidates: Candidates) -> Choice:
        """Choose one of them.

        Raises:
            InputError: a setting makes every choice impossible.
        """

    @abc.abstractmethod
    def record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        """The record of an item."""

    @abc.abstractmethod
    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The record of an item without a response, before its `error`."""

    def ways(self, candidates: Candidates, choice: Choice) -> dict[str, Chooser]:
        """Ways of choosing that are graded, `way` among them, beside the majority vote."""
        return {}

    @property
    def counts_answers(self) -> bool:
        """Whether the summary says how many answers have which form."""
        return True

    def summary(self, results: Sequence[Result]) -> dict[str, Any]:
        """Counts of decisions and fallbacks."""
        choices = [result.choice for result in results if result.is_usable and result.choice]
        fallbacks = collections.Counter(
            choice.fallback for choice in choices if choice.fallback is not None
        )
        noise = [choice.within_noise for choice in choices if choice.within_noise is not None]
        return {
            "n_items": len(results),
            "n_decided": len(choices) - fallbacks.total(),
            "n_fallbacks": fallbacks.total(),
            "fallbacks": {name: fallbacks[name] for name in self.fallbacks},
            "n_failed": sum(not result.is_usable for result in results),
            "n_with_noise": len(noise),
            "n_within_noise": sum(noise) if noise else None,
        }

    def headline(self, summary: Mapping[str, Any]) -> str:
        """The summary in one line."""
        decided, n_items = summary["n_decided"], summary["n_items"]
        return (
            f"{decided} of {n_items} items decided by {self.decided_by}, {summary['n_fallbacks']} "
            "by fallback"
        )

    def read_answers(self, fields: Mapping[str, Any], responses: Sequence[str | None]) -> Answers:
        """The answers of the first responses of an item."""
        gold = None if self.settings.gold is None else fields.get(self.settings.gold)
        rule = self.settings.answer_rule
        rules = answer_rules(fields, self.first, fields[self.source], rule, gold)
        return read_answers(responses, rules)

    def same(self, candidates: Candidates) -> Same | None:
        """Whether two unequal answers of an item are equal by SymPy; or None without SymPy."""
        answers = candidates.answers
        return self.symbolic.equal if answers is not None and answers.rules.symbolic else None


def certain_candidates(fields: Mapping[str, Any], best_n: int) -> Candidates:
    """The first N responses of an item with their confidences.

    Raises:
        InputError: it has none, or no confidence of each.
    """
    texts = responses(fields, "output", best_n)
    return Candidates(fields, texts, confidences(fields, best_n, len(texts)))


def without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of an item but one, which its record replaces."""
    return {field: value for field, value in fields.items() if field != name}


def answer_form(answers: Answers | None, choice: Choice) -> dict[str, Any]:
    """The form of the chosen answer, unless the item is read as published."""
    if answers is None or answers.rules.forms is None:
        return {}
    return {"answer_form": answers.forms[choice.index]}


def evaluate_selection(
    kind: type[Selection], lm: None, entries: Sequence[Entry[dict[str, Any]]], settings: Any
) -> Evaluation:
    """Choose a response of each item.

    Raises:
        NothingUsable: every item failed, or none has gold.
    """
    started = time.perf_counter()
    first = entries[0].item or {}
    with SymbolicComparison(getattr(settings, "time_limit", TIME_LIMIT)) as symbolic:
        selection = kind(settings, first, symbolic)
        results, grader = choose_all(selection, entries)
    if not any(result.is_usable for result in results):
        raise NothingUsable(f"no item can be used; {results[0].name}: {results[0].record['error']}")
    summary = selection.summary(results)
    details: dict[str, Any] = {}
    if hasattr(settings, "best_n"):
        summary |= count_responses(entries, settings.best_n)
    if selection.counts_answers and (answers := [r.answers for r in results if r.answers]):
        summary |= count_forms(answers)
    headline = selection.headline(summary)
    if grader is not None:
        grader.check(first)
        shares, details, right = grader.report(
            selection.way, selection.further_ways, settings.n_bootstrap, settings.seed
        )
        summary, headline = {**summary, **shares}, f"{headline}; {right}"
    is_unreadable = grader is not None and grader.is_unreadable
    if is_unreadable:
        for result in results:
            result.record["right"] = None
    records = [result.record for result in results]
    notes = {r.name: "; ".join(r.choice.notes) for r in results if r.choice and r.choice.notes}
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(results),
        rows=[_row(result, selection.field) for result in results],
        details={"summary": summary, **details},
        long={
            "notes": [{"name": name, "note": note} for name, note in notes.items()],
            "items": records,
        },
        headline=headline,
        failures=[Failure(r.name, r.record["error"]) for r in results if not r.is_usable],
        remarks=[
            *([Remark(NO_READABLE_ANSWER, if_all=True)] if is_unreadable else []),
            *(Remark(f"note: {name}: {note}", of_shard=True) for name, note in notes.items()),
        ],
        lines=printed_lines(summary, details, selection.fallbacks),
        counts=manifest_counts(summary),
        is_complete=not is_unreadable,
        seconds=time.perf_counter() - started,
    )


def choose_all(
    selection: Selection, entries: Sequence[Entry[dict[str, Any]]]
) -> tuple[list[Result], Grader | None]:
    """Choose a response of each item, and grade it if the settings name the gold."""
    read: list[Candidates | str] = []  # an error if an item has none
    for entry in entries:
        try:
            read.append(selection.read(entry.item or {}))
        except InputError as problem:
            read.append(str(problem))
    lengths = [len(found.responses) for found in read if isinstance(found, Candidates)]
    selection.most = max(lengths, default=1)
    grader = None
    if (gold := getattr(selection.settings, "gold", None)) is not None:
        grader = Grader(gold, Marks(sizes(selection.most)))
    pairs = zip(entries, read, strict=True)
    return [_result(selection, entry, found, grader) for entry, found in pairs], grader


def _result(
    selection: Selection,
    entry: Entry[dict[str, Any]],
    read: Candidates | str,
    grader: Grader | None,
) -> Result:
    candidates = choice = None
    error: str | None
    if isinstance(read, str):
        error = read
    else:
        selection.symbolic.next_item()
        candidates, choice = read, selection.choose(read)
        error = choice.error
    if candidates is None or choice is None or error is not None:
        record = {**selection.failed_record(entry.item or {}), "error": error}
    else:
        record = selection.record(candidates, choice)
    result = Result(entry.name, record, candidates, choice)
    if grader is not None:
        record["right"] = None
        try:
            if error is None:
                record["right"] = _grade(selection, result, grader)
        except InputError as problem:
            record["error"] = str(problem)
    return result


def _grade(selection: Selection, result: Result, grader: Grader) -> bool | None:
    """Whether the chosen response is right; None without gold."""
    candidates, choice = result.candidates, result.choice
    assert candidates is not None
    assert choice is not None
    fields = candidates.fields
    right = grader.grade(
        result.name,
        fields,
        len(fields[selection.source]),
        candidates.texts,
        None if candidates.answers is None else candidates.answers.rules,
        selection.same(candidates),
    )
    if right is None:
        return None
    ways = selection.ways(candidates, choice)
    if candidates.answers is not None:
        ways = {MAJORITY: majority(candidates.texts, selection.same(candidates)), **ways}
    grader.marks.add(right, ways)
    if not right[choice.index]:
        grader.wrong.append(
            {
                "name": result.name,
                "confidence": result.record.get("confidence"),
                "n_right": sum(right),
                "n_responses": len(right),
                "chosen": result.record[selection.field][0],
                "gold": fields.get(grader.field),
            }
        )
    return right[choice.index]


def _row(result: Result, field: str) -> dict[str, Any]:
    """The item's name, what was chosen, and the single values of its record."""
    single = {
        name: value
        for name, value in result.record.items()
        if name not in ("item", field, "error") and not isinstance(value, list | dict)
    }
    error = result.record.get("error")
    chosen = None if error else result.record[field][0]
    return {"item": result.name, **single, field: chosen, "error": error}


def declare(kind: type[Selection], **declared: Any) -> System:
    """The declaration of a system of this folder."""
    defaults: dict[str, Any] = {
        "what": "items",
        "item": Item,
        "read_rows": read_lenient_rows,
        "report": report,
        "reports_with": "gold",
    }
    return System(**defaults | {"evaluate": functools.partial(evaluate_selection, kind)} | declared)
