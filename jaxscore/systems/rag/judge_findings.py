"""What a judge found in a set of records, as it goes into its files and its report."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.analysis.margins import Decisions
from jaxscore.engine.rounding_audit import Noise
from jaxscore.systems.rag import bem as bem_task
from jaxscore.systems.rag import judge_pairwise, judge_pointwise
from jaxscore.systems.rag.bem import Match
from jaxscore.systems.rag.evaluator_file import Question
from jaxscore.systems.rag.judge_pairwise import PairVerdict
from jaxscore.systems.rag.judge_pointwise import Verdict
from jaxscore.systems.rag.records import Record, Records

OUTSIDE_TOLD = 0.5  # mean probability that is on no label, from which on people are told
WILSON, BOOTSTRAP = "wilson", "bootstrap"


@dataclasses.dataclass(frozen=True)
class Findings:
    """Of one set of records.

    Attributes:
        kind: "logits", "sequence", "text", "pairwise" or "bem": how the score came about.
        estimates: "mean", or "win", "tie" and "lose" as shares: the numbers of the summary.
        summary, records: what the report shows, as JSON has it. A record's `known` is False
            where an answer names no label or several, and None where the judge could not be
            asked.
        failures: (name, why) of the records that the judge could not be asked about.
        remarks: what people should know before they trust the means.
    """

    kind: str
    estimates: dict[str, Estimate]
    summary: dict[str, Any]
    records: list[dict[str, Any]]
    failures: list[tuple[str, str]]
    remarks: list[str]


@dataclasses.dataclass(frozen=True)
class Draws:
    """Of the bootstrap."""

    n: int
    seed: int


def column(records: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Record's index -> score, without the records that failed."""
    return {one["index"]: one["score"] for one in records if one["score"] is not None}


def means(kind: str, summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Ending of the metric's name -> value for the metrics file; rates are percentages."""
    if kind == "pairwise":
        return {f"_{name}": one["percent"] for name, one in summary["rates"].items()}
    return {"": summary["mean"]}


def pointwise(
    kind: str, question: Question, verdicts: Sequence[Verdict], given: Records, draws: Draws
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
            f"{unread} are outside the mean"
            + ("" if known else ", which is null: no record is in it")
        )
    cut = any(one.truncated for one in verdicts)
    shares = kind == "text" and set(question.options.values()) <= {0.0, 1.0}
    mean = proportion([one == 1.0 for one in known]) if shares else _bootstrap(known, draws)
    mean = dataclasses.replace(mean, mean=summary.mean)
    return Findings(
        kind=kind,
        estimates={"mean": mean},
        summary={
            **_spread(mean, WILSON if shares else BOOTSTRAP),
            "outside": summary.outside,
            "labels": {name: dataclasses.asdict(one) for name, one in summary.labels.items()},
            "n_none": summary.n_none,
            "n_several": summary.n_several,
            "n_failed": summary.n_failed + len(given.failures),
        },
        records=[
            {
                **_record(one.record),
                "score": one.score,
                "known": None if one.error is not None else one.known,
                "probability": one.probability,
                "outside": one.outside,
                "texts": [] if one.text is None else [one.text],
                **({"truncated": one.truncated} if cut else {}),
            }
            for one in verdicts
        ],
        failures=[(given.name(one.record), one.error) for one in verdicts if one.error is not None],
        remarks=remarks,
    )


def mark(found: Findings, noise: Noise) -> list[Decisions]:
    """Add `within_noise` to the records whose labels' probabilities were read.

    It says whether rounding could turn which label is the likeliest: the logarithms of their
    probabilities are apart as the labels' log-probabilities are, since the softmax between them
    subtracts the same number from each.
    """
    statistic = "label_logprob" if found.kind == "logits" else "sum_logprob"
    spread = noise.spread[statistic].largest
    read = [record for record in found.records if record["probability"]]
    for record in read:
        logs = [math.log(p) if p > 0 else -math.inf for p in record["probability"].values()]
        record["within_noise"] = margins.within(margins.lead(logs), spread)
    marks = [record["within_noise"] for record in read]
    return [margins.count("likeliest label", statistic, spread, marks)]


def pairwise(verdicts: Sequence[PairVerdict], given: Records) -> Findings:
    """Verdicts on pairs of responses."""
    summary = judge_pairwise.summarise(verdicts)
    remarks = []
    if summary.n_unknown:
        remarks.append(
            f"of {summary.n_unknown} records an answer names no label, or several; they are "
            "outside the rates"
            + ("" if summary.n_known else ", which are null: no record is in them")
        )
    return Findings(
        kind="pairwise",
        estimates=summary.rates,
        summary={
            "n": summary.n_known,
            "rates": {
                name: {
                    "percent": judge_pairwise.percent(round(one.n * (one.mean or 0.0)), one.n),
                    "interval": [_percent(one.low), _percent(one.high)],
                }
                for name, one in summary.rates.items()
            },
            "agree": summary.agree,
            "first": summary.first,
            "n_unknown": summary.n_unknown,
            "n_failed": summary.n_failed + len(given.failures),
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
            (given.name(one.pair.record), one.error) for one in verdicts if one.error is not None
        ],
        remarks=remarks,
    )


def bem(matches: Sequence[Match], given: Records, draws: Draws) -> Findings:
    """A classifier's probabilities of equivalence."""
    summary = bem_task.summarise(matches)
    remarks = []
    if summary.n_trimmed:
        remarks.append(
            f"{summary.n_trimmed} records are longer than the classifier's positions; the ends of "
            "their longest texts were left out"
        )
    mean = _bootstrap([one.score for one in matches], draws)
    mean = dataclasses.replace(mean, mean=summary.mean)
    return Findings(
        kind="bem",
        estimates={"mean": mean},
        summary={
            **_spread(mean, BOOTSTRAP),
            "n_equivalent": summary.n_equivalent,
            "n_trimmed": summary.n_trimmed,
            "n_failed": len(given.failures),
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


def headline(found: Findings) -> str:
    """The result in one line."""
    summary = found.summary
    if found.kind == "pairwise":
        if not summary["n"]:
            return "no pair was judged"
        rates = {name: one["percent"] for name, one in summary["rates"].items()}
        told = ", ".join(f"{name} {rate:.1f} %" for name, rate in rates.items())
        return f"{told} over {summary['n']} records"
    if summary["mean"] is None:
        return "no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{summary['mean']:.5f}{span} over {summary['n']} records{rest}"


def _record(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "q_id": record.q_id,
        "question": record.question,
        "label": record.label,
        "response": record.response,
    }


def _bootstrap(values: Sequence[float | None], draws: Draws) -> Estimate:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return estimate(numbers, draws.n, draws.seed)


def _spread(one: Estimate, method: str) -> dict[str, Any]:
    return {"n": one.n, "mean": one.mean, "interval": [one.low, one.high], "interval_by": method}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share
