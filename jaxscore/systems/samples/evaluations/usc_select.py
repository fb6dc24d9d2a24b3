"""`usc-select` as one call: the response that the model's own reply names."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Evaluation, refuse_source
from jaxscore.systems.samples import grading, sample_items, usc_choice
from jaxscore.systems.samples.answer_rules import AUTO, AnswerRules
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.evaluations.grades import Grades, grades
from jaxscore.systems.samples.grading import Grader, Marks
from jaxscore.systems.samples.sample_items import Item, Result
from jaxscore.systems.samples.symbolic import SymbolicComparison
from jaxscore.systems.samples.usc_choice import Reading
from jaxscore.systems.settings import check_setting

REPLY = "the model's reply"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.Answers):
    """Settings of `usc-select`.

    Attributes:
        dataset_type: "close" where answers are extractable: a response without one gives way to
            the first with one. "open" keeps what the reply names.
    """

    dataset_type: str = "open"

    def __post_init__(self) -> None:
        """Check all values; see `choices.Answers`."""
        super().__post_init__()
        if self.gold is None and self.answer_rule != AUTO and self.dataset_type != "close":
            raise InputError(
                f"setting answer_rule is {self.answer_rule} with dataset_type {self.dataset_type} "
                "and no gold: no answer is read; take dataset_type close or name the field with "
                "the right answer"
            )
        check_setting("dataset_type", self.dataset_type, usc_choice.DATASET_TYPES)


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """The response that each reply names; items as `usc-generate` writes them."""
    refuse_source("usc-select", source)
    started = time.perf_counter()
    known = sample_items.read(items)
    found_right = None
    closed, readings = settings.dataset_type == "close", None
    if closed or settings.gold is not None:
        readings = usc_choice.read_answers(known, settings.answer_rule, settings.gold)
    results = usc_choice.evaluate(known, settings.dataset_type, readings)
    if settings.gold is not None:
        found_right = _grade(known, results, readings or [], settings, settings.gold)
    found = sample_items.summarise(results)
    summary = choices.decisions(found, [*usc_choice.FALLBACKS])
    summary["n_unanswered"] = found.n_unanswered if closed else None
    return choices.evaluation(
        results,
        summary,
        choices.decided_by("the reply", summary),
        "output",
        time.perf_counter() - started,
        found_right,
    )


def _grade(
    known: Sequence[Item],
    results: list[Result],
    readings: Sequence[Reading | None],
    settings: Settings,
    gold: str,
) -> Grades:
    """Put `right` into each record. The reply is to all responses, so it has no choice for a
    smaller N."""
    most = sample_items.most_responses(known, "responses")
    grader = Grader(gold, Marks(grading.sizes(most)))
    read: list[tuple[AnswerRules, list[str | None]]] = []
    first = known[0].fields if known else {}
    with SymbolicComparison() as symbolic:
        triples = zip(known, results, readings, strict=True)
        for place, (item, result, reading) in enumerate(triples):
            if result.error is not None or reading is None:
                results[place] = grader.grade(result, item.fields, 0, [], None, {})
                continue
            symbolic.next_item()
            rules, answers = reading.rules, reading.answers
            same = symbolic.equal if rules.symbolic else None
            read.append((rules, reading.forms))
            results[place] = grader.grade(
                result,
                item.fields,
                len(answers),
                answers,
                rules,
                {
                    grading.MAJORITY: grading.majority(answers, same),
                    REPLY: functools.partial(_of_all, most, result.index),
                },
                same,
            )
    found_right = grades(grader, REPLY, first, settings.n_bootstrap, settings.seed)
    summary = {**found_right.summary, **choices.answer_counts(read)}
    return dataclasses.replace(found_right, summary=summary)


def _of_all(most: int, index: int | None, n: int) -> int | None:
    return index if n == most else None
