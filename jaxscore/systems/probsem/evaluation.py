"""ProbSem as one call: a suite and settings in, an `Evaluation` out."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import require
from jaxscore.systems import answer_sample
from jaxscore.systems.answer_sample import Sample
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.probsem import fewshot, query_scores
from jaxscore.systems.probsem.query_scores import Suite
from jaxscore.systems.prompt_settings import AnswerSettings, remarks
from jaxscore.systems.prompting import Prompting
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import check_setting
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

DISABLED = "accuracy is disabled, since every context expects -1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings):
    """Settings of `probsem`; the accuracy has Wilson's interval, which draws nothing.

    Attributes:
        normalize: whether a query's `logp` is the mean over its tokens instead of their sum.
        temperature: divides the log-probabilities.
        boundary: "joint", "separate" or "upstream": where a query starts.
    """

    boundaries = query_scores.BOUNDARIES
    normalize: bool = False
    temperature: float = 1.0
    boundary: str = "joint"

    def __post_init__(self) -> None:
        """Check all values; see `AnswerSettings`."""
        super().__post_init__()
        check_setting("normalize", self.normalize, (True, False))
        check_setting("boundary", self.boundary, tuple(query_scores.BOUNDARIES))
        number = isinstance(self.temperature, int | float)
        if not number or isinstance(self.temperature, bool) or not 0 < self.temperature < math.inf:
            raise InputError(
                f"setting temperature is {self.temperature!r}, expected a number above 0"
            )


def evaluate(lm: Any, suite: Any, settings: Settings) -> Evaluation:
    """Score every query after every context.

    Args:
        lm: an `LM` that scores.
        suite: a `Suite`, or an object as the JSON file has it with the prompt's text as
            `prompt`. A context that is unusable fails alone.

    Raises:
        InputError: an unusable suite, or settings that the model cannot do.
    """
    known = suite if isinstance(suite, query_scores.Suite) else query_scores.read(suite)
    lm = require("probsem", lm, "scores")
    settings.check_model(lm.capabilities)
    shots = settings.with_examples(functools.partial(fewshot.read, known)).drawn()

    def written(boundary: str) -> tuple[Prompting, list[Request]]:
        """How a run with a boundary makes prompts, and its requests."""
        layout = query_scores.Layout(boundary == "upstream", settings.answer_separator)
        prompting = settings.prompting(lm, fewshot.examples(known, shots, layout))
        return prompting, query_scores.requests(known, prompting, layout)

    prompting, requests = written(settings.boundary)
    n_left_out = prompting.n_left_out(one.text for one in known.contexts)
    run = ScoringRun(
        lm,
        boundary=settings.boundary,
        policies=prompting.policies(query_scores.BOUNDARIES),
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        advice=query_scores.ADVICE,
    )
    how: dict[str, Any] = {"normalize": settings.normalize, "temperature": settings.temperature}
    rewritten = {}
    if lm.capabilities.is_local:  # the audit of the other boundaries reads them
        others = {name: written(name)[1] for name in query_scores.BOUNDARIES}
        rewritten = {name: other for name, other in others.items() if other != requests}
    scored = run.score(requests, _sample(known, settings, prompting), rewritten)
    results = query_scores.evaluate(known, scored, boundary=settings.boundary, **how)
    noise = run.noise()
    decisions = [] if noise is None else query_scores.mark(results, noise, **how)
    accuracy = query_scores.accuracy(results)
    n_open = query_scores.n_without_answer(results)
    n_scored = sum("error" not in result for result in results)
    return Evaluation(
        summary={"accuracy": accuracy, "n_scored": n_scored, "n_without_answer": n_open},
        items=results,
        n_items=len(known.contexts) + len(known.unusable),
        rows=_rows(results),
        details={
            "accuracy": accuracy,
            "n_without_answer": n_open,
            "answer_blank": run.blank,
            "boundary_audit": run.boundary_counts("queries"),
        },
        long={"contexts": results},
        headline=headline(accuracy, n_scored, n_open),
        failures=query_scores.failures(known, results),
        remarks=[*query_scores.remarks(known), *remarks(n_left_out), *run.remarks],
        findings=run.findings,
        boundary=run.boundary_line(),
        noise=noise,
        audited=settings.audit_noise > 0,
        decisions=decisions,
        seconds=run.seconds,
        prompting=settings.facts(prompting, n_left_out),
        strips=query_scores.strips(known, requests, scored),
        vocabulary=run.vocabulary,
    )


def _sample(suite: Suite, settings: Settings, prompting: Prompting) -> Sample:
    """Contexts that are scored in other ways too."""
    chosen = answer_sample.spread(len(suite.contexts))
    sampled = dataclasses.replace(suite, contexts=tuple(suite.contexts[k] for k in chosen))

    def measure(scored: Sequence[ScoredRequest], boundary: str) -> dict[str, list[float | None]]:
        results = query_scores.evaluate(
            sampled,
            scored,
            boundary=boundary,
            normalize=settings.normalize,
            temperature=settings.temperature,
        )
        passed = [result.get("passed") for result in results]
        logp = [result.get("logp") for result in results]
        return {
            "accuracy": [None if one is None else float(one) for one in passed],
            "mean logp": [one and math.fsum(one) / len(one) for one in logp],
        }

    why = settings.why_no_blanks()
    blanks: list[Request | None] = []
    if not why:
        asked = query_scores.requests(
            sampled, prompting, query_scores.Layout(settings.boundary == "upstream", " ")
        )
        blanks = answer_sample.unless_blank(asked, [one.continuation[1:] for one in asked])
    return Sample(
        what="contexts",
        places=answer_sample.places([len(suite.queries)] * len(suite.contexts), chosen),
        measure=measure,
        blanks=blanks,
        why_no_blanks=why,
        with_blank="With a blank before the query, in place of the line end,",
        statistic="mean_logprob" if settings.normalize else "sum_logprob",
    )


def _rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One flat record per query of each context that was scored."""
    return [
        {
            "context": result["context"],
            "text": result["text"],
            "query": query,
            "expected": k == result["expected"],
            "logp": logp,
            "score": score,
            "n_tokens": n_tokens,
        }
        for result in results
        if "error" not in result
        for k, (query, logp, score, n_tokens) in enumerate(
            zip(*(result[name] for name in ("queries", "logp", "scores", "n_tokens")), strict=True)
        )
    ]


def headline(accuracy: Estimate | None, n_scored: int, n_without_answer: int = 0) -> str:
    """The accuracy with its interval and what it leaves out, or why there is none."""
    if not n_scored:
        return "no context was scored"
    if accuracy is None:
        return f"{n_scored} contexts scored; {DISABLED}"
    if accuracy.mean is None:
        return f"{n_scored} contexts scored, none of those that say which query is expected"
    span = ""
    if accuracy.low is not None and accuracy.high is not None:
        span = f", 95% interval {accuracy.low:.3f} to {accuracy.high:.3f}"
    left_out = f"; {n_without_answer} expect -1 and are left out" if n_without_answer else ""
    return f"accuracy {accuracy.mean:.3f}{span}, {accuracy.n} contexts{left_out}"
