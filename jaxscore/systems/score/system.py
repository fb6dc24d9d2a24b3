"""`score` as one call: texts and settings in, per-token numbers out."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.printable import one_line
from jaxscore.lm import Capabilities, require, require_local
from jaxscore.systems.evaluation import (
    Evaluation,
    Failure,
    check_at_least,
    check_found,
    check_setting,
)
from jaxscore.systems.prompt_settings import PromptSettings, remarks
from jaxscore.systems.score import fewshot, given_items, requests_file
from jaxscore.systems.score.measures import Measures, MeasureSettings
from jaxscore.systems.score.requests_file import Line
from jaxscore.systems.score.scored_items import scored_items
from jaxscore.systems.scoring_run import JOINT_OR_SEPARATE, ScoringRun, check_settings
from jaxscore.text.encoder import Boundary
from jaxscore.types.results import Strip

BOUNDARIES: dict[str, Boundary] = {"joint": "joint", "separate": "separate"}
SHOWN = 60  # characters of an id in a message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(PromptSettings, MeasureSettings):
    """Settings of `score`, see also `MeasureSettings`.

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
        """Check all values; see `PromptSettings`."""
        super().__post_init__()
        MeasureSettings.check(self)
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))
        for name in ("summary_only", "audit_boundary"):
            check_setting(name, getattr(self, name), (True, False))
        if self.n_requests is not None:
            check_at_least("n_requests", self.n_requests, 0)

    def check_model(self, can: Capabilities) -> None:
        """Refuse what a model cannot do.

        Raises:
            InputError: naming the setting.
        """
        check_settings(self, can, self.boundary, BOUNDARIES)
        if self.fields and not can.has_distribution:
            raise InputError(
                f"{', '.join(sorted(self.fields))}: an endpoint does not give what they are "
                "computed from; take a local model, or leave measures and unit out"
            )

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
    """Score each text.

    Args:
        lm: an `LM` that scores. Fields that it does not report are None.
        items: `requests_file.Line`s, or what `Scorer.score` takes: an item that cannot be used
            fails alone. A dict may have other fields, which its record repeats.
        on_item: takes each record as it comes, its per-token values as NumPy arrays in which NaN
            stands for a token without a probability; no record is then kept.

    Raises:
        InputError: there are no items, or settings that the model cannot do.
    """
    lm = require("score", lm, "scores")
    can = lm.capabilities
    settings.check_model(can)
    examples = fewshot.examples(settings.drawn(fewshot.read))
    prompting = settings.prompting(lm, examples)
    run = ScoringRun(
        lm,
        boundary=settings.boundary,
        policies=prompting.policies(BOUNDARIES),
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        audit_boundary=settings.audit_boundary,
        advice=JOINT_OR_SEPARATE,
    )
    wanted = settings.wanted(arrays=not settings.summary_only)
    if can.vocab_size is not None and wanted["top"] > can.vocab_size:
        raise InputError(
            f"setting top_k is {settings.top_k}, but the model has a vocabulary of "
            f"{can.vocab_size}; give a smaller one"
        )
    tokenizer = require_local("score", lm).encoder.tokenizer if can.is_local else None
    measures = Measures(settings, tokenizer)
    results = requests_file.RESULT_FIELDS | settings.fields
    totals = _Totals()
    failures: list[Failure] = []
    kept: list[dict[str, Any]] = []
    strips: list[list[Strip]] = []  # of the records that are kept
    take = kept.append if on_item is None else on_item
    asked = fewshot.Prompted(prompting, run.policy)
    lines = map(asked.line, given_items.read(items, results))
    for line, scored in scored_items(run, lines, settings.n_requests, **wanted):
        record = requests_file.record(
            scored,
            line.extra,
            summary_only=settings.summary_only,
            arrays=on_item is not None,
            unknown=() if can.has_distribution else requests_file.UNKNOWN,
            measured={}
            if scored.error
            else measures.fields(scored, summary_only=settings.summary_only),
        )
        totals.add(record)
        if scored.error:
            failures.append(Failure(one_line(str(scored.id), SHOWN), scored.error))
        take(record)
        if on_item is None:
            strips.append(
                [Strip("", line.request.context, scored)] if isinstance(line, Line) else []
            )
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
        remarks=[*remarks(asked.n_left_out), *measures.remarks()],
        boundary=run.boundary_line(),
        noise=run.noise(),
        audited=settings.audit_noise > 0,
        seconds=run.seconds,
        prompting=settings.facts(prompting, asked.n_left_out),
        strips=strips if on_item is None else (),
        vocabulary=run.vocabulary,
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
