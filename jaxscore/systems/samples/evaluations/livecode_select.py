"""`livecode-select` as one call: the code of the response that the model was most certain of."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.systems.evaluation import Evaluation, refuse_source
from jaxscore.systems.samples import grading, livecode, sample_items
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.evaluations.grades import Grades, grades
from jaxscore.systems.samples.grading import Grader, Marks
from jaxscore.systems.samples.sample_items import Item, Result

CERTAIN = "most certain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.FirstN):
    """Settings of `livecode-select`; N is 16 as in the published script."""

    best_n: int = 16


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """The code of the most certain of each item's first N responses."""
    refuse_source("livecode-select", source)
    started = time.perf_counter()
    known = sample_items.read(items)
    results = livecode.evaluate_select(known, settings.best_n)
    found = None if settings.gold is None else _grade(known, results, settings, settings.gold)
    summary = {
        **livecode.counts(results),
        **choices.response_counts(known, settings.best_n),
    }
    seconds = time.perf_counter() - started
    return choices.evaluation(
        results, summary, livecode.headline(summary), "code_list", seconds, found
    )


def _grade(known: Sequence[Item], results: list[Result], settings: Settings, gold: str) -> Grades:
    """Put `right` into each record; code has no answers to compare, so verdicts alone count."""
    most = sample_items.most_responses(known, "output", settings.best_n)
    grader = Grader(gold, Marks(grading.sizes(most)))
    for place, (item, result) in enumerate(zip(known, results, strict=True)):
        if result.error is not None:
            results[place] = grader.grade(result, item.fields, 0, [], None, {})
            continue
        responses = sample_items.responses(item, "output", settings.best_n)
        confidences = sample_items.confidences(item, settings.best_n, len(responses))
        results[place] = grader.grade(
            result,
            item.fields,
            len(item.fields["output"]),
            responses,
            None,
            {CERTAIN: functools.partial(_most_certain, confidences)},
        )
    first = known[0].fields if known else {}
    return grades(grader, CERTAIN, first, settings.n_bootstrap, settings.seed)


def _most_certain(confidences: Sequence[float | None], n: int) -> int:
    return livecode.most_certain(confidences[:n])
