"""`divergence` as one call: texts and settings in, how far two models lie apart out."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.io.printable import one_line
from jaxscore.lm import require_local
from jaxscore.systems.divergence import records
from jaxscore.systems.divergence.summary import Totals
from jaxscore.systems.evaluation import (
    CommonSettings,
    Evaluation,
    Failure,
    check_at_least,
    check_found,
    check_setting,
)
from jaxscore.systems.score import given_items
from jaxscore.systems.score.requests_file import Line
from jaxscore.systems.score.scored_items import scored_items
from jaxscore.systems.score.system import BOUNDARIES, SHOWN
from jaxscore.systems.scoring_run import JOINT_OR_SEPARATE, ScoringRun
from jaxscore.text.decoder import TextDecoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings of `divergence`.

    Attributes:
        boundary: "joint" or "separate": where a continuation starts.
        summary_only: leave the per-token arrays out.
        n_requests: how many items there are, where it is known: for the time left. No report
            has it among its settings.
    """

    boundary: str = "joint"
    summary_only: bool = False
    n_requests: int | None = None

    def __post_init__(self) -> None:
        """Check all values; see `CommonSettings`."""
        super().__post_init__()
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))
        check_setting("summary_only", self.summary_only, (True, False))
        if self.n_requests is not None:
            check_at_least("n_requests", self.n_requests, 0)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that say nothing of the result."""
        every = super().record()
        del every["n_requests"]
        return every


def evaluate(
    lm: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Compare two models on each text.

    Args:
        lm: a `LocalLM` that compares two models.
        items: as of `score`: `requests_file.Line`s, or what `Scorer.score` takes. An item that
            cannot be used fails alone.
        on_item: takes each record as it comes, its per-token numbers as NumPy arrays in which NaN
            stands for a token without a probability; no record is then kept.

    Raises:
        InputError: there are no items, or the model is no pair of models.
    """
    lm = require_local("divergence", lm, "compares_models")
    run = ScoringRun(
        lm,
        boundary=settings.boundary,
        policies=BOUNDARIES,
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        advice=JOINT_OR_SEPARATE,
    )
    totals = Totals(TextDecoder(lm.encoder.tokenizer).shown)
    n_items = 0
    failures: list[Failure] = []
    kept: list[dict[str, Any]] = []
    take = kept.append if on_item is None else on_item
    lines = given_items.read(items, records.RESULT_FIELDS)
    for line, scored in scored_items(run, lines, settings.n_requests):
        n_items += 1
        values = {} if scored.error else records.values_of(scored)
        record = records.record(
            scored,
            values,
            line.extra,
            summary_only=settings.summary_only,
            arrays=on_item is not None,
        )
        if scored.error:
            failures.append(Failure(one_line(str(scored.id), SHOWN), scored.error))
        elif isinstance(line, Line):
            totals.add(line, scored, values, record)
        take(record)
    check_found(n_items)
    summary = totals.summary(settings.n_bootstrap, settings.seed)
    return Evaluation(
        summary=summary,
        items=kept,
        n_items=n_items,
        rows=kept,
        details={"summary": summary, "boundary_audit": run.boundary_counts("requests")},
        long={"worst_tokens": totals.worst_tokens(), "worst_texts": totals.worst_texts()},
        headline=headline(summary["kl"], summary["same_argmax"]),
        failures=failures,
        remarks=[*lm.remarks],
        boundary=run.boundary_line(),
        noise=run.noise(),
        audited=settings.audit_noise > 0,
        seconds=run.seconds,
        strips=totals.strips(),
        vocabulary=run.vocabulary,
    )


def headline(kl: Estimate, same_argmax: Estimate) -> str:
    """The mean KL divergence with its interval, and the share of equal argmaxes."""
    if kl.mean is None or same_argmax.mean is None:
        return "no token was scored"
    span = "" if kl.low is None else f", 95% interval {kl.low:.4g} to {kl.high:.4g}"
    return (
        f"mean KL divergence {kl.mean:.4g} nats per token{span}; same argmax at "
        f"{100 * same_argmax.mean:.2f} % of {kl.n:,} tokens"
    )
