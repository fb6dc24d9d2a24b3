"""`usc-select` as one call: the response that the model's own reply names."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.tasks.evaluation import Evaluation, check_setting, refuse_source
from jaxscore.tasks.samples import sample_items, usc_choice
from jaxscore.tasks.samples.evaluations import choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.Settings):
    """Settings of `usc-select`.

    Attributes:
        dataset_type: "close" where answers are extractable: a response without one gives way to
            the first with one. "open" keeps what the reply names.
    """

    dataset_type: str = "open"

    def __post_init__(self) -> None:
        """Check the value.

        Raises:
            InputError: it is neither of the two.
        """
        check_setting("dataset_type", self.dataset_type, usc_choice.DATASET_TYPES)


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """The response that each reply names; items as `usc-generate` writes them."""
    refuse_source("usc-select", source)
    started = time.perf_counter()
    results = usc_choice.evaluate(sample_items.read(items), settings.dataset_type)
    found = sample_items.summarise(results)
    summary = choices.decisions(found, [*usc_choice.FALLBACKS])
    closed = settings.dataset_type == "close"
    summary["n_unanswered"] = found.n_unanswered if closed else None
    return choices.evaluation(
        results,
        summary,
        choices.decided_by("the reply", summary),
        "output",
        time.perf_counter() - started,
    )
