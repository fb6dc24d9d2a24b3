"""`score` as one call: texts and settings in, per-token numbers out."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.printable import one_line
from jaxscore.requests import Request
from jaxscore.tasks.evaluation import (
    Evaluation,
    Failure,
    ScoringSettings,
    check_at_least,
    check_found,
    check_setting,
)
from jaxscore.tasks.score import given_items, requests_file
from jaxscore.tasks.score.given_items import Unread
from jaxscore.tasks.score.requests_file import Line
from jaxscore.tasks.scoring_run import ScoringRun
from jaxscore.text.encoder import Boundary

BOUNDARIES: dict[str, Boundary] = {"joint": "joint", "separate": "separate"}
SHOWN = 60  # characters of an id in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ScoringSettings):
    """Settings of `score`.

    Attributes:
        boundary: "joint" or "separate": where a continuation starts.
        summary_only: leave the per-token arrays out.
        audit_boundary: count the requests that the other boundary would change.
        n_requests: how many items there are, where it is known: for the time left. No report
            has it among its settings.
    """

    boundary: str = "joint"
    summary_only: bool = False
    audit_boundary: bool = True
    n_requests: int | None = None

    def __post_init__(self) -> None:
        """Check all values; see `ScoringSettings`."""
        super().__post_init__()
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))
        for name in ("summary_only", "audit_boundary"):
            check_setting(name, getattr(self, name), (True, False))
        if self.n_requests is not None:
            check_at_least("n_requests", self.n_requests, 0)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that say nothing of the result."""
        every = super().record()
        del every["n_requests"]
        return every


def evaluate(
    source: Any,
    items: Iterable[Any],
    settings: Settings,
    on_item: Callable[[Mapping[str, Any]], None] | None = None,
) -> Evaluation:
    """Score each text.

    Args:
        source: a `Scorer`.
        items: `requests_file.Line`s, or what `Scorer.score` takes: an item that cannot be used
            fails alone. A dict may have other fields, which its record repeats.
        on_item: takes each record as it comes, its per-token values as NumPy arrays in which NaN
            stands for a token without a probability; no record is then kept.

    Raises:
        InputError: there are no items, or the source is no `Scorer`.
    """
    from jaxscore.scorer import Scorer  # here: importing it imports JAX

    if not isinstance(source, Scorer):
        raise InputError(
            f"a source that is {type(source).__name__}, expected a Scorer, as "
            "Scorer.from_pretrained makes it"
        )
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
    waiting: deque[Line | Unread] = deque()
    take = kept.append if on_item is None else on_item

    def requests() -> Iterator[Request]:
        for line in given_items.read(items):
            waiting.append(line)
            if isinstance(line, Line):
                yield line.request

    def fail(id: str | int, error: str) -> None:
        failures.append(Failure(one_line(str(id), SHOWN), error))

    def next_line() -> Line | None:
        """The next line that is scored, after the unusable items before it; None after the last."""
        while waiting:
            line = waiting.popleft()
            if isinstance(line, Line):
                return line
            totals.n_requests += 1
            fail(line.id, line.error)
            take(requests_file.failed(*line))
        return None

    for scored in run.stream(requests(), n_requests=settings.n_requests):
        line = next_line()
        assert line is not None
        if scored.error:
            fail(scored.id, scored.error)
        record = requests_file.record(
            scored, line.extra, summary_only=settings.summary_only, arrays=on_item is not None
        )
        totals.add(record)
        take(record)
    next_line()
    check_found(totals.n_requests)
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

    def add(self, record: Mapping[str, Any]) -> None:
        self.n_requests += 1
        if record.get("sum_logprob") is not None:
            self.n_tokens += record["n_scored"]
            self.logprob += record["sum_logprob"]

    def summary(self) -> dict[str, Any]:
        """The mean over all scored tokens; None where no token was scored."""
        mean = self.logprob / self.n_tokens if self.n_tokens else None
        return {"n_requests": self.n_requests, "n_scored": self.n_tokens, "mean_logprob": mean}

    def headline(self) -> str:
        mean = self.summary()["mean_logprob"]
        if mean is None:
            return "no token was scored"
        return f"mean log-probability {mean:.4f} nats per token, {self.n_tokens:,} tokens"
