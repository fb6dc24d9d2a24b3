"""Report of `judge` and of `bem`: scores of single responses, or of pairs."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.document import (
    Card,
    Chart,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Section,
    Source,
)
from jaxscore.report.html.histogram import counts, histogram
from jaxscore.report.html.intervals import Group, intervals
from jaxscore.report.markdown import NOTHING, interval, number, table, text
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    three,
    verdict,
    with_failures,
    within_noise,
)

PROMPT = 10_000  # characters of a turn of the prompt
OUTCOMES = {1.0: "won", 0.5: "tied", 0.0: "lost"}
HOW = {
    "logits": "The judge's next-token distribution after the prompt, over the first token of each "
    "label. Score: Σ worth · probability over the labels. **Outside**: mean probability of the "
    "rest of the vocabulary; near 1, the judge would not have answered with a label at all.",
    "sequence": "The probability of each whole label after the prompt, over the labels. Score: "
    "Σ worth · probability. **Outside**: mean probability of anything else; near 1, the judge "
    "would not have answered with a label at all.",
    "text": "The judge wrote an answer; the value of the one label in it is the score. {labels} "
    "An answer with none or several has -100 in the column and is outside the mean.",
    "bem": "A classifier's probability that the response is equivalent to a reference, the best "
    "of a record's references.",
    "pairwise": "The judge read both responses and wrote which is better. {order} {labels} Rates "
    "are over the records whose answers name one label, with Wilson's 95% interval of a share; "
    "other records have -100 in the column. **First preferred**: how many of the answers for one "
    "response are for the one that stood first, 50 % if the place does not matter.",
}
LABELS = {
    "word": "Labels are whole words, and the longest wins: Incorrect is not Correct.",
    "substring": "A label counts wherever it occurs (--label-match substring).",
}
INTERVALS = {
    "wilson": "The interval is Wilson's 95% interval of a share; below two records there is none.",
    "bootstrap": "The interval holds 95% of {n_bootstrap} bootstrap means that resample records; "
    "below two records, or if all values are equal, there is none.",
}
ORDERS = {
    True: "Each pair was asked in both orders: a win or a loss is what both answers say, and "
    "answers that disagree are a tie.",
    False: "Which of the two stood first was drawn by the seed.",
}


def report(source: Source) -> Document:
    """Return the report of one metric of one set of records."""
    record = source.record
    settings, is_pairwise = record["settings"], record["kind"] == "pairwise"
    subject = settings.get("folder", settings.get("model", "responses"))
    return Document(
        system="judge",
        title=f"{record['metric']}: {subject}",
        verdict=verdict(source, f"{model_of(record)}: {source.headline}."),
        cards=_rates(record) if is_pairwise else _means(record),
        charts=_pair_charts(record) if is_pairwise else _score_charts(record),
        items=_items(source),
        sections=[*_labels(record), *_asked(record), *closing(record, "records")],
        about=_about(record),
    )


def _about(record: Mapping[str, Any]) -> list[str]:
    """Explain the source of the scores and their interval."""
    settings, score_source = record["settings"], record["kind"]
    labels = LABELS[settings.get("label_match", "word")]
    how = HOW[score_source].format(order=ORDERS[bool(settings.get("both_orders"))], labels=labels)
    if score_source == "pairwise":
        return [how]
    interval_by = INTERVALS[record["summary"]["interval_by"]]
    return [how, interval_by.format(n_bootstrap=settings["n_bootstrap"])]


def _labels(record: Mapping[str, Any]) -> list[Section]:
    if not (labels := record["summary"].get("labels")):
        return []
    rows = [
        [text(label), f"{values['worth']:g}", str(values["n"]), number(values["probability"], 4)]
        for label, values in labels.items()
    ]
    return [Section("Labels", [table(["Label", "Worth", "Chosen", "Mean share"], rows)])]


def _asked(record: Mapping[str, Any]) -> list[Section]:
    """Return the section with the judge's prompt; empty for BEM, which has none."""
    if not (turns := record.get("asked")):
        return []
    rows = [[text(turn["role"]), text(turn["content"], PROMPT)] for turn in turns]
    hint = "Each record's own texts stand where the names in braces are."
    return [Section("What the judge is asked", [hint, table(["Turn", "Text"], rows, left=2)])]


def _means(record: Mapping[str, Any]) -> list[Card]:
    summary, score_source = record["summary"], record["kind"]
    mean = Estimate(summary["n"], summary["mean"], *summary["interval"])
    cards = [estimate_card("Mean", mean, "records")]
    if summary.get("outside") is not None:
        outside = Estimate(summary["n"], summary["outside"], None, None)
        cards.append(
            Card("Outside", three(summary["outside"]), "mean probability on no label", outside)
        )
    if score_source == "text":
        cards += [
            Card("No label", str(summary["n_none"]), "outside the mean"),
            Card("Several labels", str(summary["n_several"]), "outside the mean"),
        ]
    return [*cards, Card("Failed", str(summary["n_failed"]))]


def _rates(record: Mapping[str, Any]) -> list[Card]:
    summary = record["summary"]
    return [
        *(
            Card(name.capitalize(), _percent(rate["percent"]), _spread(rate["interval"]))
            for name, rate in summary["rates"].items()
        ),
        Card("Both orders agree", _percent(summary["agree"])),
        Card("First preferred", _percent(summary["first"]), "50 % if the place does not matter"),
        Card(
            "Records", str(summary["n"]), f"{summary['n_unknown']} more name no label, or several"
        ),
        Card("Failed", str(summary["n_failed"])),
    ]


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} %"


def _spread(bounds: Iterable[float | None]) -> str:
    low, high = bounds
    return f"95% interval {interval(low, high, 1)}"


def _score_charts(record: Mapping[str, Any]) -> list[Chart]:
    summary = record["summary"]
    decided = [row for row in record["records"] if row["known"]]
    charts = []
    if scores := counts([row["score"] for row in decided]):
        svg = histogram(
            scores, title="Scores", units="records", label="score", mean=summary["mean"]
        )
        charts.append(Chart("Distribution of scores", svg))
    outside = [row["outside"] for row in decided if row.get("outside") is not None]
    if outside_counts := counts(outside):
        label = "probability on no label"
        mean = summary.get("outside")
        svg = histogram(outside_counts, title="Outside", units="records", label=label, mean=mean)
        hint = "Near 1 the judge would not have answered with a label."
        charts.append(Chart("Probability outside the labels", svg, hint))
    labels = [
        Group(label, values["n"], None, None, str(values["n"]), values["n"])
        for label, values in summary.get("labels", {}).items()
    ]
    if bars := intervals(labels, title="Labels", label="records", units="records"):
        charts.append(Chart("How often each label is chosen", bars))
    return charts


def _pair_charts(record: Mapping[str, Any]) -> list[Chart]:
    summary = record["summary"]
    groups = []
    for name, rate in summary["rates"].items():
        if rate["percent"] is not None:
            low, high = rate["interval"]
            shown = _percent(rate["percent"])
            groups.append(Group(name, rate["percent"], low, high, shown, summary["n"]))
    svg = intervals(groups, title="Rates", label="percent", units="records")
    return [] if svg is None else [Chart("Rates", svg, "Lines are Wilson's 95% intervals.")]


def _items(source: Source) -> Items:
    record = source.record
    rows = [row for row in record["records"] if row["known"] is not None]
    rows.sort(key=lambda row: (not row["known"], row["score"]))

    def texts(name: str) -> list[str]:
        return [row.get(name) or "" for row in rows]

    def has(name: str) -> bool:
        return any(row.get(name) is not None for row in rows)

    columns = [
        Column("Question", "text", texts("question")),
        Column("q_id", "text", [str(row["q_id"]) for row in rows]),
        Column("Response", "text", texts("response")),
    ]
    if record["kind"] == "pairwise":
        columns.append(Column("Outcome", "category", [_outcome(row) for row in rows]))
    else:
        scores = [
            number(row["score"] if row["known"] else None, 4) + sections.marked(row) for row in rows
        ]
        hint = "≈: rounding could change the likeliest label"
        columns.append(Column("Score", "number", scores, hint))
    if has("outside"):
        outside = [number(row.get("outside"), 4) for row in rows]
        columns.append(Column("Outside", "number", outside, "probability on no label"))
    if any(row.get("truncated") for row in rows):
        cut = [str(row.get("truncated", 0)) for row in rows]
        hint = "tokens of the prompt left out at the left"
        columns.append(Column("Truncated", "number", cut, hint))
    items = Items(
        units="records",
        order="worst first",
        n_all=source.n_items,
        columns=columns,
        fields=[
            Field("References", ["; ".join(row["label"]) for row in rows]),
            Field("Response", texts("response")),
            Field("Opponent", texts("opponent")),
            Field("Best reference", texts("best")),
            Field("The judge wrote", ["\n".join(row.get("texts") or ()) for row in rows]),
        ],
        tables=[
            Rows(
                "Labels",
                ["Label", "Share of the labels", "Probability"],
                "",
                [_probabilities(row) for row in rows],
            ),
        ],
        within_noise=within_noise(record, rows),
    )
    return with_failures(items, record["failures"])


def _outcome(row: Mapping[str, Any]) -> str:
    return OUTCOMES.get(row["score"], NOTHING) if row["known"] else "no label, or several"


def _probabilities(row: Mapping[str, Any]) -> list[Row]:
    """Return each label's share (they sum to 1) and probability (they do with the outside's)."""
    shares, outside = row.get("probability") or {}, row.get("outside")
    inside = 1 - (outside or 0.0)
    rows = [
        Row([label, number(share, 4), number(share and share * inside, 4)], share)
        for label, share in shares.items()
    ]
    return rows and [*rows, Row(["(outside)", NOTHING, number(outside, 4)])]
