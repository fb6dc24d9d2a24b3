"""`livecode-parse` as one call: the code of each item's first response."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.systems.evaluation import Evaluation, refuse_source
from jaxscore.systems.samples import livecode, sample_items
from jaxscore.systems.samples.evaluations import choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.Settings):
    """`livecode-parse` has no settings."""


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """The code of each first response."""
    refuse_source("livecode-parse", source)
    started = time.perf_counter()
    results = livecode.evaluate_parse(sample_items.read(items))
    summary = livecode.counts(results)
    seconds = time.perf_counter() - started
    return choices.evaluation(results, summary, livecode.headline(summary), "code_list", seconds)
