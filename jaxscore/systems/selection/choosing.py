"""What the systems that choose between sampled responses share: settings, records, and the run.

Each system is a `Selection`: it reads the candidates of an item and chooses one of them. Here every
item is read, chosen from, graded by its gold if that is known, and made a record.
"""

import abc
import collections
import dataclasses
import functools
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from jaxscore.errors import InputError, NothingUsable
from jaxscore.io.items import NAME_FIELDS, item_label, read_lenient_rows
from jaxscore.report import text_table
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.selection import items
from jaxscore.systems.selection.answers import (
    AUTO,
    NO_READABLE_ANSWER,
    RULE_HELP,
    Answers,
    answer_rules,
    count_forms,
    form_lines,
    read_answers,
)
from jaxscore.systems.selection.grading import (
    ENOUGH,
    Chooser,
    Grader,
    Marks,
    Same,
    percent,
    sizes,
)
from jaxscore.systems.selection.ranking import NO_ANSWER, Choice
from jaxscore.systems.selection.report import report
from jaxscore.systems.selection.symbolic import TIME_LIMIT, SymbolicComparison
from jaxscore.systems.settings import Settings, setting
from jaxscore.systems.system import Compared, Decision, Metric, System

MOST_REMARKS = 20  # notes on items that are printed; all are in the report's data


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradedSettings(Settings):
    """Settings of a system whose choices can be graded."""

    gold: str | None = setting(
        None,
        metavar="FIELD",
        expected="the name of a field",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each response: tell how often the choice is right, beside the first sample, a "
        "majority vote and an oracle, and write it to a report",
    )
    n_bootstrap: int = setting(
        1000,
        least=1,
        metavar="N",
        help="with --gold: draws for the 95% intervals of differences (default 1000)",
        advanced=True,
    )
    seed: int = setting(0, help="with --gold: of those draws (default 0)", advanced=True)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; those of grading if something is graded."""
        values = super().record()
        if self.gold is None:
            for name in ("gold", "n_bootstrap", "seed"):
                del values[name]
        return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSettings(GradedSettings):
    """Settings of a system that reads the answers of responses."""

    answer_rule: Literal["auto", "published", "json", "answer", "boxed", "number"] = setting(
        AUTO, help=RULE_HELP
    )

    @property
    def rule_ending(self) -> str:
        """End of the output's default name, so that another rule does not replace its result."""
        return "" if self.answer_rule == AUTO else f"-{self.answer_rule}"


HELP_OF_GOLD = """\
--gold FIELD grades the choices. FIELD of each item holds {holds}. Items get `right` (null without \
gold); the share of right choices among the first 1, 2, 4, ... N responses is printed beside the \
first sample's{beside}, and is in OUT_report.md, OUT_report.json and, for a browser, \
OUT_report.html (OUT.report.md where OUT does not end in .json)."""
HELP_OF_ANSWERS = (
    " If no response has a readable answer, there is no share, and the exit code is 1."
)
EXIT_CODES = """
exit code: 0 all decided or by fallback, 1 some items failed (they hold
           `error`) or nothing could be graded, 2 unusable input or no usable
           item; nothing is written.
"""


def help_of_gold(beside: str) -> str:
    """The end of the help of a system that reads answers.

    Args:
        beside: the ways of choosing that are graded too.
    """
    holds = (
        "the right answer, a list of acceptable answers, or a list of true or false for each "
        "response"
    )
    text = HELP_OF_GOLD.format(holds=holds, beside=beside) + HELP_OF_ANSWERS
    return f"{textwrap.fill(text, 80)}\n{EXIT_CODES}"


def first_n(default: int) -> Any:
    """Declare the setting `best_n`."""
    return setting(
        default,
        name="best-N",
        least=1,
        metavar="N",
        help=f"consider the first N responses of each item (default {default}); an item with fewer "
        "has all of its considered",
    )


def _first_of(field: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda record: str(record[field][0]) if record[field] else None


class Graded(TypedDict, total=False):
    """Fields of a record if the choices are graded."""

    right: Annotated[bool | None, Decision("the chosen response is right", is_right=True)]


class Record(Graded, total=False):
    """An item with the chosen response in place of its responses."""

    output: Annotated[
        list[str | None],
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


class CodeRecord(Graded, total=False):
    """The code of a chosen response, as LiveCodeBench grades it."""

    question_id: str | int
    code_list: Annotated[
        list[str], Decision("chosen response", value=_first_of("code_list"), name="output")
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """What a system knows of the responses of an item between which it chooses.

    Attributes:
        fields: of the item.
        responses: None for one that is null.
        n_all: responses of the item, those after the first N too.
        confidences: nats per token; None for one that is not known.
        answers: of the responses; None if they have none to compare.
        noise: how far rounding moves a confidence, in nats; None if it is not known.
    """

    fields: Mapping[str, Any]
    responses: list[str | None]
    n_all: int
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
        """Of the responses of an item one of which was chosen; None if they have none."""
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
        field: of a record, with the chosen response in a list.
    """

    way: ClassVar[str]
    decided_by: ClassVar[str]
    fallbacks: ClassVar[Mapping[str, str]] = {}
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
    def record(
        self, fields: Mapping[str, Any], candidates: Candidates | None, choice: Choice | None
    ) -> dict[str, Any]:
        """The record of an item, without a response if `choice` is None or has an error."""

    def ways(self, candidates: Candidates, choice: Choice) -> dict[str, Chooser]:
        """Ways of choosing that are graded, `way` among them."""
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

    def read_answers(
        self, fields: Mapping[str, Any], field: str, responses: Sequence[str | None]
    ) -> Answers:
        """The answers of the first responses of an item; `field` has all."""
        gold = None if self.settings.gold is None else fields.get(self.settings.gold)
        rule = self.settings.answer_rule
        rules = answer_rules(fields, self.first, fields[field], rule, gold)
        return read_answers(responses, rules)

    def same(self, candidates: Candidates) -> Same | None:
        """Whether two unequal answers of an item are equal by SymPy; None if that is not asked."""
        answers = candidates.answers
        return self.symbolic.equal if answers is not None and answers.rules.symbolic else None


def certain_candidates(fields: Mapping[str, Any], best_n: int) -> Candidates:
    """The first N responses of an item with their confidences.

    Raises:
        InputError: it has none, or no confidence of each.
    """
    responses = items.responses(fields, "output", best_n)
    confidences = items.confidences(fields, best_n, len(responses))
    return Candidates(fields, responses, len(fields["output"]), confidences)


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
        summary |= _count_responses(entries, settings.best_n)
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
        remarks=[*([NO_READABLE_ANSWER] if is_unreadable else []), *_remarks(notes)],
        lines=_lines(summary, details, selection.fallbacks),
        counts=_counts(summary),
        is_complete=not is_unreadable,
        seconds=time.perf_counter() - started,
    )


def choose_all(
    selection: Selection, entries: Sequence[Entry[dict[str, Any]]]
) -> tuple[list[Result], Grader | None]:
    """Choose a response of each item, and grade it if the settings name the gold."""
    read = [_read(selection, entry) for entry in entries]
    lengths = [len(found.responses) for found in read if isinstance(found, Candidates)]
    selection.most = max(lengths, default=1)
    grader = None
    if (gold := getattr(selection.settings, "gold", None)) is not None:
        grader = Grader(gold, Marks(sizes(selection.most)))
    pairs = zip(entries, read, strict=True)
    return [_result(selection, entry, found, grader) for entry, found in pairs], grader


def _read(selection: Selection, entry: Entry[dict[str, Any]]) -> Candidates | str:
    """The candidates of an item, or why it has none."""
    try:
        return selection.read(entry.item or {})
    except InputError as problem:
        return str(problem)


def _result(
    selection: Selection,
    entry: Entry[dict[str, Any]],
    read: Candidates | str,
    grader: Grader | None,
) -> Result:
    fields, choice = entry.item or {}, None
    candidates = read if isinstance(read, Candidates) else None
    error = read if isinstance(read, str) else None
    if candidates is not None:
        selection.symbolic.next_item()
        choice = selection.choose(candidates)
        error = choice.error
    record = selection.record(fields, candidates, None if error else choice)
    result = Result(entry.name, record, candidates, choice)
    if error is not None:
        record["error"] = error
    if grader is not None:
        record["right"] = None
        try:
            if error is None:
                record["right"] = _grade(selection, fields, result, grader)
        except InputError as problem:
            record["error"] = str(problem)
    return result


def _grade(
    selection: Selection, fields: Mapping[str, Any], result: Result, grader: Grader
) -> bool | None:
    """Whether the chosen response is right; None without gold."""
    candidates, choice = result.candidates, result.choice
    assert candidates is not None
    assert choice is not None
    right = grader.right(
        result.name,
        fields,
        candidates.n_all,
        candidates.texts,
        None if candidates.answers is None else candidates.answers.rules,
        selection.same(candidates),
    )
    if right is None:
        return None
    grader.marks.add(right, selection.ways(candidates, choice))
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


def _count_responses(entries: Sequence[Entry[dict[str, Any]]], best_n: int) -> dict[str, Any]:
    """N, and how many responses the items have that it is applied to."""
    lists = [(entry.item or {}).get("output") for entry in entries]
    lengths = [len(texts) for texts in lists if isinstance(texts, list) and texts]
    return {
        "best_n": best_n,
        "fewest_responses": min(lengths, default=None),
        "most_responses": max(lengths, default=None),
        "n_with_more": sum(length > best_n for length in lengths),
    }


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


def _remarks(notes: Mapping[str, str]) -> list[str]:
    shown = [f"note: {name}: {note}" for name, note in notes.items()]
    more = len(shown) - MOST_REMARKS
    return [*shown[:MOST_REMARKS], *([f"and {more} more notes"] if more > 0 else [])]


def _counts(summary: Mapping[str, Any]) -> dict[str, int]:
    """Counts of the manifest, besides that of failures."""
    counts = {name: n for name, n in summary.items() if name.startswith("n_")}
    counts |= {f"n_fallbacks_{name}": n for name, n in summary.get("fallbacks", {}).items()}
    return {name: n for name, n in counts.items() if n is not None and name != "n_failed"}


def _lines(
    summary: Mapping[str, Any], details: Mapping[str, Any], fallbacks: Mapping[str, str]
) -> list[str]:
    """What a choice was made between, what did not decide it, and how often it is right."""
    lines = [_line_of_n(summary)] if "best_n" in summary else []
    lines += [
        f"fallback, {count} of {summary['n_items']} items: {fallbacks[name]}"
        for name, count in summary.get("fallbacks", {}).items()
        if count
    ]
    if summary.get("n_unanswered"):
        lines.append(f"{summary['n_unanswered']} items have no extractable answer in any response")
    lines += form_lines(summary)
    if n := summary.get("n_with_noise"):
        within = summary["n_within_noise"]
        lines.append(f"{within} of {n} within the noise: rounding could turn their answer")
    return [*lines, *_accuracy_lines(details)]


def _line_of_n(summary: Mapping[str, Any]) -> str:
    fewest, most = summary["fewest_responses"], summary["most_responses"]
    n, more = summary["best_n"], summary["n_with_more"]
    each = f"{most} responses each" if fewest == most else f"{fewest} to {most} responses"
    left = "all of them are considered"
    if more:
        left = f"{more} of them have more than {n}, and what is after the first {n} is left out"
    return f"N = {n}: the {summary['n_items']} items have {each}; {left}"


def _accuracy_lines(details: Mapping[str, Any]) -> list[str]:
    """Shares of right choices: by N, and of a vote by power for the largest N."""
    rows = details.get("accuracy", [])
    if not rows or rows[0]["accuracy"].n < ENOUGH:
        return []
    ways = list(dict.fromkeys(row["way"] for row in rows))
    found = {(row["best_n"], row["way"]): percent(row["accuracy"]) for row in rows}
    numbers = list(dict.fromkeys(row["best_n"] for row in rows))
    lines = [[str(n), *(found.get((n, way), "") for way in ways)] for n in numbers]
    out = [
        f"share of right choices, {rows[0]['accuracy'].n} items, with 95% intervals",
        text_table.table([["N", *ways], *lines]),
    ]
    powers = [row for row in details.get("by_power", []) if row["best_n"] == numbers[-1]]
    if powers:
        shares = [[row["way"], percent(row["accuracy"])] for row in powers]
        out.append(text_table.table([["", f"N = {numbers[-1]}"], *shares]))
    return out


def compared(*signature: str, without: tuple[str, ...] = ()) -> tuple[Compared, ...]:
    """How runs of a system are compared, with those of the other systems of this folder."""
    return (
        Compared(
            signature=signature,
            without=without,
            text=lambda record: record.get("model_input", record.get("input")),
            id=NAME_FIELDS,
            name=lambda record, place: item_label(place, dict(record)),
            fixed=(),
            name_of_runs="a chosen response",
        ),
    )


def declare(kind: type[Selection], **declared: Any) -> System:
    """The declaration of a system of this folder."""
    defaults: dict[str, Any] = {
        "what": "items",
        "item": items.Item,
        "read_rows": read_lenient_rows,
        "report": report,
        "reports_with": "gold",
    }
    return System(**defaults | {"evaluate": functools.partial(evaluate_selection, kind)} | declared)
