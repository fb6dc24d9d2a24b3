"""What the systems that choose between responses without a model share."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.samples import sample_items
from jaxscore.systems.samples.answer_rules import AUTO, NO_READABLE_ANSWER, RULES, AnswerRules
from jaxscore.systems.samples.answer_text import FORMS
from jaxscore.systems.samples.evaluations.grades import Grades
from jaxscore.systems.samples.sample_items import Result, Summary
from jaxscore.systems.settings import check_setting, check_whole_number

NO_FORM = "none"  # of a response without a readable answer
MOST_REMARKS = 20  # notes on items that are told; all are in the report's data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a system that computes nothing with a model: none."""

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graded(Settings):
    """Settings of a system whose choices can be graded.

    Attributes:
        gold: the field of the items with the right answer, a list of acceptable ones, or a list
            of verdicts on the responses; None grades nothing.
        n_bootstrap, seed: draws for 95% intervals of differences, and their seed.
    """

    gold: str | None = None
    n_bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: naming the setting and its value.
        """
        check_gold(self.gold)
        check_whole_number("n_bootstrap", self.n_bootstrap, 1)
        check_whole_number("seed", self.seed)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them; those of grading where something is graded."""
        out = dataclasses.asdict(self)
        if self.gold is None:
            out = {name: v for name, v in out.items() if name not in GRADING}
        return out


GRADING = tuple(field.name for field in dataclasses.fields(Graded))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstN(Graded):
    """Settings of a system that considers the first N responses of each item.

    Attributes:
        best_n: N. An item with fewer responses has all of them considered.
    """

    best_n: int

    def __post_init__(self) -> None:
        """Check all values; see `Graded`."""
        super().__post_init__()
        check_whole_number("best_n", self.best_n, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers(Graded):
    """Settings of a system that reads the answers of responses.

    Attributes:
        answer_rule: how they are read, one of `answer_rules.RULES`.
    """

    answer_rule: str = AUTO

    def __post_init__(self) -> None:
        """Check all values; see `Graded`."""
        super().__post_init__()
        check_setting("answer_rule", self.answer_rule, RULES)


def answer_counts(read: Iterable[tuple[AnswerRules, Sequence[str | None]]]) -> dict[str, Any]:
    """How many responses have an answer of which form, and how many items are read as
    published.

    Args:
        read: of each item its rules, and the form of each response's answer.
    """
    counted: collections.Counter[str] = collections.Counter()
    n_published = n_other = 0
    for rules, forms in read:
        n_published += rules.forms is None
        n_other += rules.forms is not None
        counted.update(form or NO_FORM for form in forms)
    return {
        "answer_forms": {form: counted[form] for form in (*FORMS, NO_FORM)},
        "n_read_as_published": n_published,
        "n_read_by_form": n_other,
    }


def check_gold(value: object) -> None:
    """Refuse a setting `gold` that is no name of a field.

    Raises:
        InputError: naming its value.
    """
    if value is not None and (not isinstance(value, str) or not value):
        raise InputError(f"setting gold is {value!r}, expected the name of a field")


def check_number(name: str, value: object) -> None:
    """Refuse a setting that is no finite number.

    Raises:
        InputError: naming the setting and its value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(cast(float, value)):
        raise InputError(f"setting {name} is {value!r}, expected a finite number")


def check_drawing(temperature: object, top_p: object) -> None:
    """Refuse a temperature or a top-p that no token can be drawn with.

    Raises:
        InputError: naming the setting and its value.
    """
    check_number("temperature", temperature)
    check_number("top_p", top_p)
    if cast(float, temperature) < 0:
        raise InputError(f"setting temperature is {temperature}, expected 0 or more")
    if not 0 < cast(float, top_p) <= 1:
        raise InputError(f"setting top_p is {top_p}, expected above 0 up to 1")


def evaluation(
    results: Sequence[Result],
    summary: Mapping[str, Any],
    headline: str,
    what: str,
    seconds: float,
    grades: Grades | None = None,
) -> Evaluation:
    """The results of a system as every system gives them back.

    Args:
        summary: its counts.
        what: the field of a record with the response or code that was chosen, a list of one.
        grades: how often what was chosen is right; None where nobody asked.

    Raises:
        NothingUsable: every item failed.
    """
    sample_items.refuse_if_all_failed((one.name, one.error) for one in results)
    summary = {**summary, **(grades.summary if grades else {})}
    headline = f"{headline}; {grades.headline}" if grades else headline
    found, remarks = sample_items.summarise(results), []
    records = [one.record for one in results]
    if grades and grades.unreadable:
        records = [{**one, "right": None} for one in records]
        remarks = [NO_READABLE_ANSWER]
    return Evaluation(
        summary=summary,
        items=records,
        n_items=found.n_items,
        rows=[_row(one, record, what) for one, record in zip(results, records, strict=True)],
        details={"summary": summary, **(grades.details if grades else {})},
        long={"notes": [{"name": name, "note": note} for name, note in found.notes],
              "items": records},
        headline=headline,
        failures=[Failure(*one) for one in found.failures],
        remarks=[*remarks, *_remarks(found)],
        seconds=seconds,
    )  # fmt: skip


def decisions(found: Summary, fallbacks: Sequence[str]) -> dict[str, Any]:
    """Counts of a system that decides or falls back, with a 0 for a fallback that did not happen.

    `n_within_noise` is None where no item says how far rounding moves a confidence.
    """
    marks = found.within_noise
    return {
        "n_items": found.n_items,
        "n_decided": found.n_decided,
        "n_fallbacks": sum(found.fallbacks.values()),
        "fallbacks": {name: found.fallbacks.get(name, 0) for name in fallbacks},
        "n_failed": len(found.failures),
        "n_with_noise": len(marks),
        "n_within_noise": sum(marks) if marks else None,
    }


def response_counts(items: Sequence[sample_items.Item], best_n: int) -> dict[str, Any]:
    """N, and how many responses the items have that it is applied to."""
    lists = [one.fields.get("output") for one in items]
    lengths = [len(one) for one in lists if isinstance(one, list) and one]
    return {
        "best_n": best_n,
        "fewest_responses": min(lengths, default=None),
        "most_responses": max(lengths, default=None),
        "n_with_more": sum(length > best_n for length in lengths),
    }


def decided_by(what: str, summary: Mapping[str, Any]) -> str:
    """The headline of a system that decides or falls back."""
    decided, n_items = summary["n_decided"], summary["n_items"]
    return f"{decided} of {n_items} items decided by {what}, {summary['n_fallbacks']} by fallback"


def _row(result: Result, record: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The item's name, what was chosen, and the single values of its record."""
    single = {
        name: value
        for name, value in record.items()
        if name not in ("item", what, "error") and not isinstance(value, list | dict)
    }
    chosen = None if result.error else record[what][0]
    return {"item": result.name, **single, what: chosen, "error": result.error}


def _remarks(found: Summary) -> list[str]:
    told = [f"note: {name}: {note}" for name, note in found.notes[:MOST_REMARKS]]
    left = len(found.notes) - len(told)
    return [*told, f"and {left} more notes"] if left else told
