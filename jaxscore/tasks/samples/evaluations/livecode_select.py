"""`livecode-select` as one call: the code of the response that the model was most certain of."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.tasks.evaluation import Evaluation, refuse_source
from jaxscore.tasks.samples import livecode, sample_items
from jaxscore.tasks.samples.evaluations import choices


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
    summary = {
        **livecode.counts(results),
        **choices.response_counts(known, settings.best_n),
    }
    seconds = time.perf_counter() - started
    return choices.evaluation(results, summary, livecode.headline(summary), "code_list", seconds)
