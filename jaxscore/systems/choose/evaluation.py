"""Multiple choice as one call: items and settings in, an `Evaluation` out."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.errors import InputError
from jaxscore.lm import require
from jaxscore.systems.choose import choices
from jaxscore.systems.choose.items import Item, Unread, read
from jaxscore.systems.chronologic.by_category import Column, summarise
from jaxscore.systems.chronologic.calibrate import calibration
from jaxscore.systems.evaluation import CommonSettings, Evaluation, Failure, check_setting
from jaxscore.systems.scoring_run import JOINT_OR_SEPARATE, ScoringRun
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest

BOUNDARIES: dict[str, Boundary] = {"joint": "joint", "separate": "separate"}
PREMISE = "Answer:"
COLUMNS = {
    **{f"acc{rule}": Column(f"acc{rule}", share=True) for rule in choices.RULES},
    "chance": Column("chance"),
    **{f"skill{rule}": Column(f"skill{rule}") for rule in choices.RULES},
    "brier": Column("brier"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """Settings of `choose`.

    Attributes:
        boundary: "joint" or "separate": where an option starts.
        pmi_context: the premise, a text without the question, after which each option is scored
            too; its log-probability there is taken off for the PMI.
    """

    boundary: str = "joint"
    pmi_context: str = PREMISE

    def __post_init__(self) -> None:
        """Check all values; see `CommonSettings`."""
        super().__post_init__()
        check_setting("boundary", self.boundary, tuple(BOUNDARIES))
        if not isinstance(self.pmi_context, str):
            raise InputError(f"setting pmi_context is {self.pmi_context!r}, expected a text")


def evaluate(lm: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Score each option of each item whole, after the context and after the premise.

    Args:
        lm: an `LM` that scores.
        items: `Item`s, or objects as the input file has them. One that is unusable fails alone.

    Raises:
        InputError: no usable item, or settings that the model cannot do.
    """
    lm = require("choose", lm, "scores")
    known = read(items)
    usable = [one for one in known if isinstance(one, Item)]
    run = ScoringRun(
        lm,
        boundary=settings.boundary,
        policies=BOUNDARIES,
        truncate=settings.truncate,
        seed=settings.seed,
        audit_noise=settings.audit_noise,
        advice=JOINT_OR_SEPARATE,
    )
    texts = list(dict.fromkeys(option for one in usable for option in one.options))
    n_requests = len(texts) + sum(len(one.options) for one in usable)
    scored = run.stream(_requests(usable, texts, settings.pmi_context), n_requests=n_requests)
    premises = {text: _after_premise(one) for text, one in zip(texts, scored, strict=False)}
    records = [
        choices.unread(one)
        if isinstance(one, Unread)
        else choices.record(one, list(itertools.islice(scored, len(one.options))), premises)
        for one in known
    ]
    next(scored, None)  # ends the measured time
    noise = run.noise()
    decisions = [] if noise is None else choices.mark(records, noise)
    good = [one for one in records if "error" not in one]
    judged = [one for one in good if "gold" in one]
    summary = {
        "n_scored": len(good),
        "n_with_gold": len(judged),
        "ties": choices.n_ties(records),
        **summarise(judged, COLUMNS, settings.n_bootstrap, settings.seed, "category"),
    }
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(known),
        rows=[{k: v for k, v in one.items() if not isinstance(v, list)} for one in records],
        details={
            "summary": summary,
            "boundary_audit": run.boundary_counts("options"),
            "calibration": calibration(
                [one["probability"] for one in judged],
                [choices.truth(one["options"], one["gold"]) for one in judged],
            ),
        },
        long={"items": records},
        headline=headline(summary),
        failures=[
            Failure(item.name, one["error"])
            for item, one in zip(known, records, strict=True)
            if "error" in one
        ],
        remarks=remarks(usable, records, premises),
        boundary=run.boundary_line(),
        noise=noise,
        audited=settings.audit_noise > 0,
        decisions=decisions,
        seconds=run.seconds,
    )


def _requests(items: Sequence[Item], texts: Sequence[str], premise: str) -> Iterator[Request]:
    """Each distinct option after the premise, then the options of each item."""
    for k, text in enumerate(texts, start=1):
        yield Request(f"premise.{k}", premise, text)
    for number, item in enumerate(items, start=1):
        for k, option in enumerate(item.options, start=1):
            yield Request(f"{number}.{k}", item.context, option)


def _after_premise(one: ScoredRequest) -> float | None:
    return one.sum_logprob if choices.complaint(one) is None else None


def remarks(
    items: Sequence[Item],
    records: Sequence[Mapping[str, Any]],
    premises: Mapping[str, float | None],
) -> list[str]:
    """What is legal and still worth telling, each with how many items it is of."""
    ids = Counter(item.id for item in items)
    repeated = sum(len(set(item.options)) < len(item.options) for item in items)
    without_gold = sum(item.gold is None for item in items)
    without_pmi = sum("error" not in one and one["pmi"] is None for one in records)
    told = [
        (without_gold, "say no gold option; they are in no accuracy"),
        (without_pmi, "have an option without a probability after the premise, so no PMI"),
        (
            repeated,
            "have the same option more than once; the first one is chosen, and each that equals "
            "the gold option is right",
        ),
        (sum(n for n in ids.values() if n > 1), "share their id with another item"),
    ]
    return [f"{n} of {len(items)} items {what}" for n, what in told if n]


def headline(summary: Mapping[str, Any]) -> str:
    """The accuracies, the first with its interval, and the chance level."""
    if not summary["n_scored"]:
        return "no item was scored"
    means: Mapping[str, Estimate] = summary["overall"]
    acc, chance = means["acc"], means["chance"]
    if acc.mean is None or chance.mean is None:
        return f"{summary['n_scored']} items scored, none with a gold option"
    span = ""
    if acc.low is not None and acc.high is not None:
        span = f" (95% interval {acc.low:.4f} to {acc.high:.4f})"
    others = "".join(
        f", {name} {mean:.4f}"
        for name in ("acc_norm", "acc_pmi")
        if (mean := means[name].mean) is not None
    )
    return f"acc {acc.mean:.4f}{span}{others}, chance {chance.mean:.4f}, {acc.n} items"
