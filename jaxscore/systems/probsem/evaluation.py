"""ProbSem as one call: a suite and settings in, an `Evaluation` out."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import require
from jaxscore.systems.audits import Answers
from jaxscore.systems.evaluation import Evaluation
from jaxscore.systems.probsem import fewshot, query_scores
from jaxscore.systems.probsem.query_scores import Context
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

    def prompting_of(boundary: str) -> Prompting:
        layout = query_scores.Layout(boundary == "upstream", settings.answer_separator)
        return settings.prompting(lm, fewshot.examples(known, shots, layout))

    by_boundary = {name: prompting_of(name) for name in query_scores.BOUNDARIES}
    prompting = by_boundary[settings.boundary]

    def requests_of(context: Context, boundary: str, separator: str | None) -> list[Request]:
        return query_scores.requests(
            dataclasses.replace(known, contexts=(context,)),
            by_boundary[boundary],
            query_scores.Layout(boundary == "upstream", separator),
        )

    def measure(
        context: Context, scored: Sequence[ScoredRequest], boundary: str
    ) -> dict[str, float | None]:
        one = dataclasses.replace(known, contexts=(context,))
        [result] = query_scores.evaluate(one, scored, boundary=boundary, **how)
        passed, logp = result.get("passed"), result.get("logp")
        return {
            "accuracy": None if passed is None else float(passed),
            "mean logp": logp and math.fsum(logp) / len(logp),
        }

    n_left_out = prompting.n_left_out(one.text for one in known.contexts)
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(query_scores.BOUNDARIES),
        advice=query_scores.ADVICE,
    )
    how: dict[str, Any] = {"normalize": settings.normalize, "temperature": settings.temperature}
    answers = Answers(
        what="contexts",
        units=known.contexts,
        requests=requests_of,
        measure=measure,
        separator=settings.answer_separator,
        depends_on_boundary=True,
        why_no_blanks=settings.why_no_blanks(),
        with_blank="With a blank before the query, in place of the line end,",
        statistic="mean_logprob" if settings.normalize else "sum_logprob",
    )
    pairs = [pair for own in run.score_answers(answers) for pair in own]
    requests, scored = [request for request, _ in pairs], [result for _, result in pairs]
    results = query_scores.evaluate(known, scored, boundary=settings.boundary, **how)
    decisions = [] if run.noise is None else query_scores.mark(results, run.noise, **how)
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
            "boundary_audit": run.boundaries.counts("queries"),
        },
        long={"contexts": results},
        headline=headline(accuracy, n_scored, n_open),
        failures=query_scores.failures(known, results),
        remarks=[*query_scores.remarks(known), *remarks(n_left_out), *run.remarks],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=query_scores.strips(known, requests, scored),
        **run.measured(),
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
