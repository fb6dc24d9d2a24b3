"""BEM as one call: records in, P(equivalent) of each response out."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Evaluation, check_found
from jaxscore.systems.rag import judge_findings, records
from jaxscore.systems.rag.bem import Bem
from jaxscore.systems.rag.evaluation import evaluation
from jaxscore.systems.rag.judge_findings import Draws
from jaxscore.systems.settings import IntervalSettings

METRIC = "BEM"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(IntervalSettings):
    """Settings of `bem`.

    Attributes:
        metric: what the score is called.
    """

    metric: str = METRIC

    def __post_init__(self) -> None:
        """Check all values; see `IntervalSettings`."""
        super().__post_init__()
        if self.truncate:
            raise InputError(
                "truncate (--truncate) is for a causal model's prompts; BEM leaves out the ends "
                "of texts that are too long by itself"
            )
        if self.audit_noise:
            raise InputError(
                "audit_noise (--audit-noise) audits a causal model's probabilities; leave it out "
                "with BEM"
            )

    def record(self) -> dict[str, Any]:
        """The settings that decide the result."""
        return {"seed": self.seed, "n_bootstrap": self.n_bootstrap}


def evaluate(source: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Compare each response with its references.

    Args:
        source: a `Bem`.
        items: `Records`, or objects as `eval_<split>_out.json` has them.

    Raises:
        InputError: the source is no `Bem`, or there are no records.
    """
    if not isinstance(source, Bem):
        raise InputError(f"a classifier that is {type(source).__name__}, expected a Bem")
    given = records.read(items, question=True)
    check_found(len(given.rows), "records")
    started = time.perf_counter()
    matches, unread = source.match(given.records)
    seconds = time.perf_counter() - started
    failures = [(given.name(record), reason) for record, reason in unread]
    given = dataclasses.replace(given, failures=given.failures + failures)
    found = judge_findings.bem(matches, given, Draws(settings.n_bootstrap, settings.seed))
    return evaluation(found, given, metric=settings.metric, seconds=seconds)
