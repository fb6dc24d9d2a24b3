"""What a judge found in some records, as its files have it.

A judgement has a `kind`, how its scores came about:

    logits     probabilities of the labels' first tokens
    sequence   probabilities of whole labels
    text       the label in a written answer
    pairwise   a written answer says which of two responses is better
    bem        a classifier's probability
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.rag.records import Item, record_of

SHARES = ("outside", "agree", "first")  # of a summary, beside its counts
FLAT = ("index", "q_id", "question", "response", "opponent", "score", "known", "outside", "best")


@dataclasses.dataclass(frozen=True)
class Findings:
    """Verdicts on some records.

    Attributes:
        estimates: "mean", or "win", "tie" and "lose" as shares: the numbers of the summary.
        summary: what the report says, as JSON.
        fields: of each record, behind those that it repeats. `known` is False if an answer names
            no label or several, and None if the judge could not be asked.
        errors: why the judge could not be asked, by record.
        remarks: what people should know before they trust the means.
    """

    kind: str
    estimates: Mapping[str, Estimate]
    summary: Mapping[str, Any]
    fields: list[dict[str, Any]]
    errors: Sequence[str | None]
    remarks: Sequence[str]


def evaluation(
    found: Findings,
    judged: Sequence[Entry[Item]],
    failures: Sequence[Failure],
    *,
    metric: str,
    n_items: int,
    asked: Sequence[Mapping[str, str]] = (),
    **more: Any,
) -> Evaluation:
    """Findings in the shape of every system.

    Args:
        judged: the entry of each record.
        failures: entries that were not judged.
        asked: the judge's prompt, see `Question.template`; empty of BEM, which has none.
    """
    every = [
        *failures,
        *(
            Failure(entry.name, error)
            for entry, error in zip(judged, found.errors, strict=True)
            if error is not None
        ),
    ]
    records = [
        {**record_of(entry), **fields} for entry, fields in zip(judged, found.fields, strict=True)
    ]
    summary = {**found.summary, "n_failed": len(every)}
    details = {"metric": metric, "kind": found.kind, "summary": summary}
    return Evaluation(
        summary={
            **found.estimates,
            **{k: v for k, v in summary.items() if k.startswith("n_") or k in SHARES},
        },
        items=records,
        n_items=n_items,
        rows=[{k: v for k, v in record.items() if k in FLAT} for record in records],
        details={**details, "asked": [*asked]} if asked else details,
        long={"records": records},
        headline=_headline(found.kind, summary),
        failures=every,
        remarks=found.remarks,
        **more,
    )


def mean_of(
    values: Sequence[float], n_bootstrap: int, seed: int, *, is_share: bool = False
) -> Estimate:
    """The mean of scores, exact in any order, with its interval; a share has Wilson's."""
    if not values:
        return Estimate(0, None, None, None)
    if is_share:
        found = proportion([value == 1.0 for value in values])
    else:
        finite = [value for value in values if math.isfinite(value)]
        found = estimate(finite, n_bootstrap, seed)
    return dataclasses.replace(found, mean=math.fsum(values) / len(values))


def summary_of(mean: Estimate, *, is_share: bool = False) -> dict[str, Any]:
    """A mean and its interval as the summary has them."""
    return {
        "n": mean.n,
        "mean": mean.mean,
        "interval": [mean.low, mean.high],
        "interval_by": "wilson" if is_share else "bootstrap",
    }


def _headline(kind: str, summary: Mapping[str, Any]) -> str:
    if kind == "pairwise":
        if not summary["n"]:
            return "no pair was judged"
        rates = (f"{name} {one['percent']:.1f} %" for name, one in summary["rates"].items())
        return f"{', '.join(rates)} over {summary['n']} records"
    if summary["mean"] is None:
        return "no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{summary['mean']:.5f}{span} over {summary['n']} records{rest}"


def metric_means(metric: str, details: Mapping[str, Any]) -> dict[str, float | None]:
    """What the metrics file has of a metric; rates are percentages."""
    summary = details["summary"]
    if details["kind"] == "pairwise":
        return {f"{metric}_{name}": one["percent"] for name, one in summary["rates"].items()}
    return {metric: summary["mean"]}
