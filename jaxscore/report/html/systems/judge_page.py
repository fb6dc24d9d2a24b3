"""Document of `judge`: scores of single responses, or of pairs."""

from collections.abc import Mapping
from typing import Any

from jaxscore.report import markdown, sections
from jaxscore.report.document import Card, Chart, Column, Document, Field, Items, Row, Rows, Source
from jaxscore.report.html.charts.histogram import counts, histogram
from jaxscore.report.html.charts.intervals import Group, intervals
from jaxscore.report.judge_report import (
    explained_pairs,
    explained_scores,
    percent,
    spread,
    subject,
)
from jaxscore.report.markdown import NOTHING, number
from jaxscore.report.sections import closing, model_of, section, three, with_failures

PROMPT = 10_000  # characters of a turn of the prompt
OUTCOMES = {1.0: "won", 0.5: "tied", 0.0: "lost"}


def page(source: Source) -> Document:
    """The page of one metric of one set of records; the record is that of its report."""
    record = source.record
    pairwise = record["kind"] == "pairwise"
    return Document(
        system="judge",
        title=f"{record['metric']}: {subject(record['settings'])}",
        verdict=f"{model_of(record)}: {source.headline}.",
        cards=_rates(record) if pairwise else _means(record),
        charts=_pair_charts(record) if pairwise else _score_charts(record),
        items=_items(source),
        sections=[*section(_asked(record)), *closing(record, "records")],
        about=explained_pairs(record) if pairwise else explained_scores(record),
    )


def _asked(record: Mapping[str, Any]) -> list[str]:
    """The judge's prompt; nothing of BEM, which has none."""
    if not (turns := record.get("asked")):
        return []
    rows = [[markdown.text(one["role"]), markdown.text(one["content"], PROMPT)] for one in turns]
    told = "Each record's own texts stand where the names in braces are."
    return ["## What the judge is asked", told, markdown.table(["Turn", "Text"], rows, left=2)]


def _means(record: Mapping[str, Any]) -> list[Card]:
    summary = record["summary"]
    low, high = summary["interval"]
    span = "" if low is None else f"95% interval {three(low)} to {three(high)}\n"
    out = [Card("Mean", three(summary["mean"]), f"{span}{summary['n']:,} records")]
    if summary.get("outside") is not None:
        told = "mean probability on no label"
        out.append(Card("Outside", three(summary["outside"]), told))
    if record["kind"] == "text":
        out += [
            Card("No label", str(summary["n_none"]), "outside the mean"),
            Card("Several labels", str(summary["n_several"]), "outside the mean"),
        ]
    return [*out, Card("Failed", str(summary["n_failed"]))]


def _rates(record: Mapping[str, Any]) -> list[Card]:
    summary = record["summary"]
    rates = [
        Card(name.capitalize(), percent(one["percent"]), f"95% interval {spread(one['interval'])}")
        for name, one in summary["rates"].items()
    ]
    return [
        *rates,
        Card("Both orders agree", percent(summary["agree"])),
        Card("First preferred", percent(summary["first"]), "50 % where the place does not matter"),
        Card(
            "Records", str(summary["n"]), f"{summary['n_unknown']} more name no label, or several"
        ),
    ]


def _score_charts(record: Mapping[str, Any]) -> list[Chart]:
    known = [one for one in record["records"] if one["known"]]
    out = []
    if scores := counts([one["score"] for one in known]):
        mean = record["summary"]["mean"]
        svg = histogram(scores, title="Scores", what="records", label="score", mean=mean)
        out.append(Chart("Distribution of scores", svg))
    outside = [one["outside"] for one in known if one.get("outside") is not None]
    if found := counts(outside):
        mean = record["summary"].get("outside")
        label = "probability on no label"
        svg = histogram(found, title="Outside", what="records", label=label, mean=mean)
        told = "Near 1 the judge would not have answered with a label."
        out.append(Chart("Probability outside the labels", svg, told))
    labels = [
        Group(label, one["n"], None, None, str(one["n"]), one["n"])
        for label, one in record["summary"].get("labels", {}).items()
    ]
    if svg_ := intervals(labels, title="Labels", label="records", what="records"):
        out.append(Chart("How often each label is chosen", svg_))
    return out


def _pair_charts(record: Mapping[str, Any]) -> list[Chart]:
    summary = record["summary"]
    groups = []
    for name, one in summary["rates"].items():
        if one["percent"] is not None:
            low, high = one["interval"]
            shown = percent(one["percent"])
            groups.append(Group(name, one["percent"], low, high, shown, summary["n"]))
    svg = intervals(groups, title="Rates", label="percent", what="records")
    return [] if svg is None else [Chart("Rates", svg, "Lines are Wilson's 95% intervals.")]


def _items(source: Source) -> Items:
    record = source.record
    judged = [one for one in record["records"] if one["known"] is not None]
    judged.sort(key=lambda one: (not one["known"], one["score"]))
    pairwise = record["kind"] == "pairwise"

    def texts(name: str) -> list[str]:
        return [one.get(name) or "" for one in judged]

    columns = [
        Column("Question", "text", texts("question")),
        Column("q_id", "text", [str(one["q_id"]) for one in judged]),
        Column("Response", "text", texts("response")),
    ]
    if pairwise:
        columns.append(Column("Outcome", "category", [_outcome(one) for one in judged]))
    else:
        scores = [number(one["score"] if one["known"] else None, 4) for one in judged]
        marked = [f"{s}{sections.marked(one)}" for s, one in zip(scores, judged, strict=True)]
        columns.append(
            Column("Score", "number", marked, "≈: rounding could change the likeliest label")
        )
    if any(one.get("outside") is not None for one in judged):
        outside = [number(one.get("outside"), 4) for one in judged]
        columns.append(Column("Outside", "number", outside, "probability on no label"))
    if any(one.get("truncated") for one in judged):
        cut = [str(one.get("truncated", 0)) for one in judged]
        columns.append(
            Column("Truncated", "number", cut, "tokens of the prompt left out at the left")
        )
    items = Items(
        what="records",
        order="worst first",
        n_all=source.n_items,
        columns=columns,
        fields=[
            Field("References", ["; ".join(one["label"]) for one in judged]),
            Field("Response", texts("response")),
            Field("Opponent", texts("opponent")),
            Field("Best reference", texts("best")),
            Field("The judge wrote", ["\n".join(one.get("texts") or ()) for one in judged]),
        ],
        tables=[
            Rows("Labels", ["Label", "Probability"], "", [_labels(one) for one in judged]),
        ],
        within_noise=[one.get("within_noise") for one in judged] if "noise" in record else [],
    )
    return with_failures(items, record["failures"])


def _outcome(one: Mapping[str, Any]) -> str:
    return OUTCOMES.get(one["score"], NOTHING) if one["known"] else "no label, or several"


def _labels(one: Mapping[str, Any]) -> list[Row]:
    rows = [Row([label, f"{p:.4f}"], p) for label, p in (one.get("probability") or {}).items()]
    return rows and [*rows, Row(["(outside)", f"{one['outside']:.4f}"])]
