"""Path Evaluation as one call: items and settings in, an `Evaluation` out."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import require
from jaxscore.systems.audits import Answers
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
        settings,
        policies=prompting.policies(path_gain.BOUNDARIES),
        advice=path_gain.ADVICE,
    )
    pairs = [
        pair
        for own in run.score_answers(_answers(known, settings, prompting, examples))
        for pair in own
    ]
    requests, scored = [request for request, _ in pairs], [result for _, result in pairs]
    results = path_gain.evaluate(known, systems, scored)
    decisions = [] if run.noise is None else path_gain.mark(results, run.noise)
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
            "boundary_audit": run.boundaries.counts("answers"),
        },
        long={"paths": ordered},
        headline=headline(summary.means["absolute"]),
        failures=[Failure(*one) for one in summary.failures],
        remarks=[*remarks(n_left_out), *run.remarks],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=path_gain.strips(results, requests, scored),
        **run.measured(),
    )


def _answers(
    items: Sequence[path_gain.Item],
    settings: Settings,
    prompting: Prompting,
    examples: Sequence[tuple[Example, ...]],
) -> Answers[path_gain.Item]:
    """The answer of each path, without and with it, under each system prompt."""

    def requests(item: path_gain.Item, _: str, separator: str | None) -> list[Request]:
        return path_gain.requests([item], settings.systems, prompting, examples, separator or "")

    def measure(
        item: path_gain.Item, scored: Sequence[ScoredRequest], _: str
    ) -> dict[str, float | None]:
        [result] = path_gain.evaluate([item], settings.systems, scored)
        return {"mean improvement": result["path_evaluations"][0]["absolute_improvement"]}

    return Answers(
        what="paths",
        units=[dataclasses.replace(item, paths=[path]) for item, path in path_gain.cases(items)],
        requests=requests,
        measure=measure,
        separator=settings.answer_separator,
        why_no_blanks=settings.why_no_blanks(),
    )


def headline(gain: Estimate) -> str:
    """The mean absolute improvement, with its interval."""
    if gain.mean is None:
        return "no path was scored"
    span = "" if gain.low is None else f", 95% interval {gain.low:.4g} to {gain.high:.4g}"
    return f"mean improvement of the probability {gain.mean:.4g}{span}, {gain.n} paths"
