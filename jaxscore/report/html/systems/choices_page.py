"""Document of the commands that choose between sampled responses, of graded choices."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report.choices_report import ENOUGH, accuracy, counted
from jaxscore.report.document import Card, Column, Document, Items, Source
from jaxscore.report.html.chart_parts import by_n
from jaxscore.report.markdown import NOTHING, number
from jaxscore.report.sections import closing, estimate_card, section, sentence, yes_no


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    record = source.record
    by = f": {record['chosen_by']}" if "chosen_by" in record else ""
    rows = record.get("accuracy", [])
    return Document(
        system=source.system,
        title=f"Choices between sampled responses{by}",
        verdict=sentence(source.headline),
        cards=_cards(rows),
        charts=[
            *by_n("Share of right choices", rows, "responses"),
            *by_n("Share of right choices by power", record.get("by_power") or [], "responses"),
        ],
        items=_items(record),
        sections=[*section(accuracy(record), opened=True), *closing(record, "items")],
        about=[counted(record["summary"])],
    )


def _cards(rows: Sequence[Mapping[str, Any]]) -> list[Card]:
    """Of the largest N, each way of choosing."""
    most = max((row["best_n"] for row in rows), default=0)
    return [
        estimate_card(f"{row['way']}, N = {most}", row["accuracy"], "items")
        for row in rows
        if row["best_n"] == most and row["accuracy"].n >= ENOUGH
    ]


def _items(record: Mapping[str, Any]) -> Items:
    wrong = record.get("wrong", [])
    return Items(
        what="wrong choices",
        order="the most confident first",
        n_all=len(wrong),
        columns=[
            Column("Item", "text", [one["name"] for one in wrong]),
            Column("Chosen", "text", [str(one["chosen"] or "") for one in wrong]),
            Column("Gold", "text", [str(one["gold"]) for one in wrong]),
            Column("Confidence", "number", [_confidence(one["confidence"]) for one in wrong]),
            Column("Right", "number", [str(one["n_right"]) for one in wrong], "responses"),
            Column("Responses", "number", [str(one["n_responses"]) for one in wrong]),
            Column("Any right?", "flag", [yes_no(one["n_right"] > 0) for one in wrong]),
        ],
    )


def _confidence(value: Any) -> str:
    return number(value, 4) if isinstance(value, float) else NOTHING
