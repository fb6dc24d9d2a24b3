"""What a judge found in one folder, as it goes into its files and its report."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxscore.engine.noise import Noise
from jaxscore.metrics import margins
from jaxscore.metrics.bootstrap import estimate
from jaxscore.metrics.margins import Decisions
from jaxscore.tasks.rag import bem as bem_task
from jaxscore.tasks.rag import judge_pairwise, judge_pointwise
from jaxscore.tasks.rag.bem import Match
from jaxscore.tasks.rag.evaluator_file import Question
from jaxscore.tasks.rag.experiment_folder import RagOutput, Record
from jaxscore.tasks.rag.judge_pairwise import OUTCOMES, PairVerdict
from jaxscore.tasks.rag.judge_pointwise import Verdict

OUTSIDE_TOLD = 0.5  # mean probability that is on no label, from which on people are told


@dataclasses.dataclass(frozen=True)
class Findings:
    """Of one folder.

    Attributes:
        kind: "logits", "sequence", "text", "pairwise" or "bem": how the score came about.
        column: record's index -> score, without those that failed.
        means: ending of the metric's name -> value for the metrics file.
        summary, records: what the report shows. A record's `known` is False where an answer was
            of no use, and None where the judge could not be asked.
        failures: (name, why) of the records that the judge could not be asked about.
        remarks: what people should know before they trust the means.
    """

    kind: str
    column: dict[int, float]
    means: dict[str, float | None]
    summary: dict[str, Any]
    records: list[dict[str, Any]]
    failures: list[tuple[str, str]]
    remarks: list[str]


@dataclasses.dataclass(frozen=True)
class Draws:
    """Of the bootstrap."""

    n: int
    seed: int


def pointwise(
    kind: str, question: Question, verdicts: Sequence[Verdict], output: RagOutput, draws: Draws
) -> Findings:
    """Verdicts on single responses."""
    summary = judge_pointwise.summarise(question, verdicts)
    known = [one.score for one in verdicts if one.score is not None and one.known]
    remarks = []
    if summary.outside is not None and summary.outside > OUTSIDE_TOLD:
        remarks.append(
            f"the judge gives the labels {1 - summary.outside:.2g} of its probability on average; "
            "it would mostly begin its answer otherwise"
        )
    if unread := summary.n_none + summary.n_several:
        remarks.append(
            f"{summary.n_none} answers name no label and {summary.n_several} name several; these "
            f"{unread} are outside the mean" + ("" if known else ", which is over nothing and 0")
        )
    return Findings(
        kind=kind,
        column={one.record.index: one.score for one in verdicts if one.score is not None},
        means={"": summary.mean},
        summary={
            **_mean(known, draws),
            "mean": summary.mean,
            "outside": summary.outside,
            "labels": {name: dataclasses.asdict(one) for name, one in summary.labels.items()},
            "n_none": summary.n_none,
            "n_several": summary.n_several,
            "n_failed": summary.n_failed + len(output.failures),
        },
        records=[
            {
                **_record(one.record),
                "score": one.score,
                "known": None if one.error is not None else one.known,
                "probability": one.probability,
                "outside": one.outside,
                "texts": [] if one.text is None else [one.text],
            }
            for one in verdicts
        ],
        failures=[
            (output.name(one.record), one.error) for one in verdicts if one.error is not None
        ],
        remarks=remarks,
    )


def mark(found: Findings, noise: Noise) -> list[Decisions]:
    """Add `within_noise` to the records whose labels' probabilities were read.

    It says whether rounding could turn which label is the likeliest: the logarithms of their
    probabilities are apart as the labels' log-probabilities are, since the softmax between them
    takes the same number off each.
    """
    statistic = "label_logprob" if found.kind == "logits" else "sum_logprob"
    spread = noise.spread[statistic].largest
    read = [record for record in found.records if record["probability"]]
    for record in read:
        logs = [math.log(p) if p > 0 else -math.inf for p in record["probability"].values()]
        record["within_noise"] = margins.within(margins.lead(logs), spread)
    marks = [record["within_noise"] for record in read]
    return [margins.count("likeliest label", statistic, spread, marks)]


def pairwise(verdicts: Sequence[PairVerdict], output: RagOutput, draws: Draws) -> Findings:
    """Verdicts on pairs of responses."""
    summary = judge_pairwise.summarise(verdicts)
    known = [one.score for one in verdicts if one.known]
    intervals = {
        name: _mean([100.0 * (score == value) for score in known], draws)["interval"]
        for name, value in OUTCOMES.items()
    }
    remarks = []
    if summary.n_unknown:
        remarks.append(
            f"of {summary.n_unknown} records an answer names no label, or several; they are "
            "outside the rates" + ("" if known else ", which are over nothing and 0")
        )
    return Findings(
        kind="pairwise",
        column={one.pair.record.index: one.score for one in verdicts if one.score is not None},
        means={f"_{name}": rate for name, rate in summary.rates.items()},
        summary={
            "n": summary.n_known,
            "rates": {
                name: {"percent": rate, "interval": intervals[name]}
                for name, rate in summary.rates.items()
            },
            "agree": summary.agree,
            "first": summary.first,
            "n_unknown": summary.n_unknown,
            "n_failed": summary.n_failed + len(output.failures),
        },
        records=[
            {
                **_record(one.pair.record),
                "opponent": one.pair.opponent,
                "score": one.score,
                "known": None if one.error is not None else one.known,
                "switched": list(one.pair.switched),
                "answers": list(one.answers),
                "texts": list(one.texts),
            }
            for one in verdicts
        ],
        failures=[
            (output.name(one.pair.record), one.error) for one in verdicts if one.error is not None
        ],
        remarks=remarks,
    )


def bem(matches: Sequence[Match], output: RagOutput, draws: Draws) -> Findings:
    """A classifier's probabilities of equivalence."""
    summary = bem_task.summarise(matches)
    remarks = []
    if summary.n_trimmed:
        remarks.append(
            f"{summary.n_trimmed} records are longer than the classifier's positions; the ends of "
            "their longest texts were left out"
        )
    return Findings(
        kind="bem",
        column={one.record.index: one.score for one in matches},
        means={"": summary.mean},
        summary={
            **_mean([one.score for one in matches], draws),
            "n_equivalent": summary.n_equivalent,
            "n_trimmed": summary.n_trimmed,
            "n_failed": len(output.failures),
        },
        records=[
            {
                **_record(one.record),
                "score": one.score,
                "known": True,
                "by_reference": list(one.by_reference),
                "best": one.best,
            }
            for one in matches
        ],
        failures=[],
        remarks=remarks,
    )


def _record(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "q_id": record.q_id,
        "question": record.question,
        "label": record.label,
        "response": record.response,
    }


def _mean(values: Sequence[float | None], draws: Draws) -> dict[str, Any]:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    one = estimate(numbers, draws.n, draws.seed)
    return {"n": one.n, "mean": one.mean, "interval": [one.low, one.high]}
