"""`select` as one call: the response of each item that the model was most certain of."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.systems.evaluation import Evaluation, refuse_source
from jaxscore.systems.samples import sample_items, selection
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.evaluations.candidates import CandidateGrades
from jaxscore.systems.samples.selection import Candidates, select
from jaxscore.systems.samples.symbolic import SymbolicComparison

CERTAIN = "most certain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.FirstN, choices.Answers):
    """Settings of `select`; N is 4 as in the published script."""

    best_n: int = 4


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """The most certain of each item's first N responses with an extractable answer."""
    refuse_source("select", source)
    started = time.perf_counter()
    known = selection.read(items, settings.best_n, settings.answer_rule, settings.gold)
    results, grades = selection.evaluate_select(known), None
    if settings.gold is not None:
        with SymbolicComparison() as symbolic:
            graded = CandidateGrades(known, settings, symbolic)
            for place, one in enumerate(known):
                symbolic.next_item()
                results[place] = graded.grade(one, results[place], {CERTAIN: _most_certain})
        grades = graded.found(CERTAIN)
    found = sample_items.summarise(results)
    summary = {
        **choices.decisions(found, [*selection.FALLBACKS]),
        **choices.response_counts([one.given for one in known], settings.best_n),
        **choices.answer_counts(selection.forms(known)),
    }
    return choices.evaluation(
        results,
        summary,
        choices.decided_by("confidence", summary),
        "output",
        time.perf_counter() - started,
        grades,
    )


def _most_certain(one: Candidates, n: int) -> int:
    return select(one.confidences[:n], one.answers[:n]).index
