"""Path Evaluation as one call: items and settings in, an `Evaluation` out."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import require
from jaxscore.systems import answer_sample
from jaxscore.systems.answer_sample import Sample
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.paths import fewshot, path_gain
from jaxscore.systems.prompt_settings import AnswerSettings, remarks
from jaxscore.systems.prompting import Example, Prompting
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import IntervalSettings, check_list, check_setting
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `paths`.

    Attributes:
        boundary: "separate", "joint" or "upstream": where an answer starts.
        system_prompts: each item is evaluated under each, and averaged.
        system_prompt: one alone, in place of `system_prompts`.
    """

    boundaries = path_gain.BOUNDARIES
    boundary: str = "separate"
    system_prompts: tuple[str, ...] = (path_gain.DEFAULT_SYSTEM_PROMPT,)

    def __post_init__(self) -> None:
        """Check all values; see `IntervalSettings`."""
        super().__post_init__()
        check_setting("boundary", self.boundary, tuple(path_gain.BOUNDARIES))
        prompts = check_list("system_prompts", self.system_prompts)
        if not prompts or not all(isinstance(one, str) for one in prompts):
            raise InputError(f"setting system_prompts is {prompts!r}, expected at least one string")
        if self.system_prompt is not None and prompts != (path_gain.DEFAULT_SYSTEM_PROMPT,):
            raise InputError(
                "system_prompt and system_prompts: both say which text stands first; give "
                "one of the two (--system, --system-prompts)"
            )
        object.__setattr__(self, "system_prompts", prompts)

    @property
    def systems(self) -> tuple[str, ...]:
        """The system prompts that each item is evaluated under."""
        return self.system_prompts if self.system_prompt is None else (self.system_prompt,)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        return super().record() | {"system_prompts": list(self.systems)}


def read(items: Iterable[Any]) -> list[path_gain.Item]:
    """Items from objects as the input file has them; an `Item` stays as it is.

    Raises:
        InputError: an item that is no object, or lacks a field; named by its position from 1.
    """
    return [
        item if isinstance(item, path_gain.Item) else path_gain.item(item, k, f"item {k}")
        for k, item in enumerate(items, start=1)
    ]


def evaluate(lm: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Score each path's answer with and without the path.

    Args:
        lm: an `LM` that scores.
        items: `Item`s, or objects as the input file has them.

    Raises:
        InputError: an unusable item, no path at all, or settings that the model cannot do.
    """
    lm = require("paths", lm, "scores")
    settings.check_model(lm.capabilities)
    known = read(items)
    path_gain.check_any_path(known)
    systems = settings.systems
    shots = settings.with_examples(fewshot.read).drawn()
    separator = settings.answer_separator or ""
    examples = fewshot.examples(shots, separator)
    system = next(filter(None, systems), None)
    prompting = settings.prompting(lm, examples[0], system=system)
    n_left_out = prompting.n_left_out(one.question for one in known)
    run = ScoringRun(
        lm,
        boundary=settings.boundary,
        policies=prompting.policies(path_gain.BOUNDARIES),
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        advice=path_gain.ADVICE,
    )
    requests = path_gain.requests(known, systems, prompting, examples, separator)
    scored = run.score(requests, _sample(known, settings, prompting, examples))
    results = path_gain.evaluate(known, systems, scored)
    noise = run.noise()
    decisions = [] if noise is None else path_gain.mark(results, noise)
    summary = path_gain.summarise(results, settings.n_bootstrap, settings.seed)
    ordered = path_gain.least_gain_first(results)
    return Evaluation(
        summary=summary.means,
        items=results,
        n_items=summary.n_items,
        rows=[{k: v for k, v in one.items() if k != "prompt_results"} for one in ordered],
        details={
            "summary": summary.means,
            "by_length": [
                {"entities": n, "gain": gain} for n, gain in summary.gain_by_length.items()
            ],
            "answer_blank": run.blank,
            "boundary_audit": run.boundary_counts("answers"),
        },
        long={"paths": ordered},
        headline=headline(summary.means["absolute"]),
        failures=[Failure(*one) for one in summary.failures],
        remarks=[*remarks(n_left_out), *run.remarks],
        findings=run.findings,
        boundary=run.boundary_line(),
        noise=noise,
        decisions=decisions,
        audited=settings.audit_noise > 0,
        seconds=run.seconds,
        prompting=settings.facts(prompting, n_left_out),
        strips=path_gain.strips(results, requests, scored),
        vocabulary=run.vocabulary,
    )


def _sample(
    items: Sequence[path_gain.Item],
    settings: Settings,
    prompting: Prompting,
    examples: Sequence[tuple[Example, ...]],
) -> Sample:
    """Paths that are scored in other ways too; the examples before them stay as they are."""
    every, systems = list(path_gain.cases(items)), settings.systems
    chosen = answer_sample.spread(len(every))
    paths = [dataclasses.replace(every[k][0], paths=[every[k][1]]) for k in chosen]
    n_requests = 2 * len(systems)

    def measure(scored: Sequence[ScoredRequest], _: str) -> dict[str, list[float | None]]:
        results = path_gain.evaluate(paths, systems, scored)
        gains = [result["path_evaluations"][0]["absolute_improvement"] for result in results]
        return {"mean improvement": gains}

    why = settings.why_no_blanks()
    blanks: list[Request | None] = []
    if not why:
        answers = [one.paths[0][-1] for one in paths for _ in range(n_requests)]
        asked = path_gain.requests(paths, systems, prompting, examples, " ")
        blanks = answer_sample.unless_blank(asked, answers)
    return Sample(
        what="paths",
        places=answer_sample.places([n_requests] * len(every), chosen),
        measure=measure,
        blanks=blanks,
        why_no_blanks=why,
    )


def headline(gain: Estimate) -> str:
    """The mean absolute improvement, with its interval."""
    if gain.mean is None:
        return "no path was scored"
    span = "" if gain.low is None else f", 95% interval {gain.low:.4g} to {gain.high:.4g}"
    return f"mean improvement of the probability {gain.mean:.4g}{span}, {gain.n} paths"
