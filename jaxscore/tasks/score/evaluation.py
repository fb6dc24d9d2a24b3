"""`score` as one call: texts and settings in, per-token numbers out."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jaxscore.printable import one_line
from jaxscore.requests import Request
from jaxscore.results import ScoredRequest
from jaxscore.tasks.evaluation import CommonSettings, Evaluation, Failure, check_setting
from jaxscore.tasks.score import requests_file
from jaxscore.tasks.scoring_run import ScoringRun
from jaxscore.text.encoder import Boundary

BOUNDARIES: dict[str, Boundary] = {"joint": "joint", "separate": "separate"}
SHOWN = 60  # characters of an id in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings of `score`.

    Attributes:
        boundary: "joint" or "separate": where a continuation starts.
        summary_only: leave the per-token arrays out.
        audit_boundary: count the requests that the other boundary would change.
        n_requests: how many items there are, where it is known: for the time left.
    """

    boundary: str = "joint"
    summary_only: bool = False
    audit_boundary: bool = True
    n_requests: int | None = None

    def __post_init__(self) -> None:
        """Check all values; see `CommonSettings`."""
        super().__post_init__()
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))


def evaluate(
    source: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Score each text.

    Args:
        items: `requests_file.Line`s, or objects as the input file has them.
        on_item: takes each record as it comes; no record is then kept.
    """
    run = ScoringRun(
        source,
        boundary=settings.boundary,
        policies=BOUNDARIES,
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        audit_boundary=settings.audit_boundary,
    )
    totals = _Totals()
    failures: list[Failure] = []
    kept: list[dict[str, Any]] = []
    waiting: deque[requests_file.Line] = deque()

    def requests() -> Iterator[Request]:
        for k, item in enumerate(items, start=1):
            known = isinstance(item, requests_file.Line)
            line = item if known else requests_file.line(item, k, f"item {k}")
            waiting.append(line)
            yield line.request

    for scored in run.stream(requests(), n_requests=settings.n_requests):
        line = waiting.popleft()
        if scored.error:
            failures.append(Failure(one_line(str(scored.id), SHOWN), scored.error))
        totals.add(scored)
        record = requests_file.record(scored, line.extra, summary_only=settings.summary_only)
        if on_item is None:
            kept.append(record)
        else:
            on_item(record)
    return Evaluation(
        summary=totals.summary(),
        items=kept,
        n_items=totals.n_requests,
        rows=kept,
        details={
            "summary": totals.summary(),
            "boundary_audit": run.boundary_counts("requests"),
        },
        long={"items": kept},
        headline=totals.headline(),
        failures=failures,
        boundary=run.boundary_line(),
        noise=run.noise(),
        audited=settings.audit_noise > 0,
        seconds=run.seconds,
    )


@dataclasses.dataclass
class _Totals:
    """Sums over all requests, so that none has to be kept."""

    n_requests: int = 0
    n_tokens: int = 0
    logprob: float = 0.0

    def add(self, scored: ScoredRequest) -> None:
        self.n_requests += 1
        if scored.sum_logprob is not None:
            self.n_tokens += scored.n_scored
            self.logprob += scored.sum_logprob

    def summary(self) -> dict[str, Any]:
        """The mean over all scored tokens; None where no token was scored."""
        mean = self.logprob / self.n_tokens if self.n_tokens else None
        return {"n_requests": self.n_requests, "n_scored": self.n_tokens, "mean_logprob": mean}

    def headline(self) -> str:
        mean = self.summary()["mean_logprob"]
        if mean is None:
            return "no token was scored"
        return f"mean log-probability {mean:.4f} nats per token, {self.n_tokens:,} tokens"
