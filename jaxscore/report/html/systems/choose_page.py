"""Page of `choose`."""

from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.choose_report import INTRODUCTION, RULES, heading, surety
from jaxscore.report.html.chart_parts import by_category, calibrated, means
from jaxscore.report.html.page import Card, Chart, Column, Field, Items, Page, Row, Rows
from jaxscore.report.html.parts import (
    closing,
    estimate_card,
    model_of,
    sentence,
    three,
    with_failures,
    yes_no,
)
from jaxscore.report.html.source import Source
from jaxscore.report.markdown import number, text

CHANCE = "chance"
REFERENCE = (CHANCE, "are what a choice at random would get")


def page(source: Source) -> Page:
    """The page of a run; the record is that of its report."""
    record = source.record
    summary, settings = record["summary"], record["settings"]
    judged = summary["n_with_gold"] > 0
    told = INTRODUCTION.format(
        premise=text(repr(settings["pmi_context"])), n_bootstrap=settings["n_bootstrap"]
    )
    return Page(
        system="choose",
        title=f"Multiple choice: {model_of(record)}",
        verdict=sentence(source.headline),
        cards=_cards(summary["overall"], record) if judged else [],
        charts=_charts(record) if judged else [],
        items=_items(source),
        sections=closing(record, "items"),
        about=[
            " ".join(told.split()),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "options"),
        ],
    )


def _cards(overall: Mapping[str, Estimate], record: Mapping[str, Any]) -> list[Card]:
    return [
        *(estimate_card(title, overall[f"acc{rule}"], "items") for rule, title in RULES.items()),
        estimate_card("Skill, by acc", overall["skill"], "items"),
        estimate_card("Brier", overall["brier"], "items"),
        Card("Chance", three(overall[CHANCE].mean), "1 / number of options"),
        Card("Expected calibration error", three(record["calibration"]["ece"])),
    ]


def _charts(record: Mapping[str, Any]) -> list[Chart]:
    summary = record["summary"]
    overall = summary["overall"]
    rules = [(f"acc{rule}", overall[f"acc{rule}"], overall[CHANCE].mean) for rule in RULES]
    out = means("Accuracy by rule", rules, "items", reference=REFERENCE[1])
    if record["calibration"]["bins"]:
        title = "Reliability of the options' probabilities"
        out += calibrated(title, record["calibration"], "options")
    if len(summary["by_category"]) > 1:
        out += by_category(summary, "acc", "acc by category", "items", REFERENCE)
    return out


def _items(source: Source) -> Items:
    given = source.record["items"]
    items = sorted((one for one in given if "error" not in one), key=surety)
    right = [one["probability"][one["gold"]] if "gold" in one else None for one in items]
    verdicts = [
        Column(rule, "flag", [yes_no(one.get(rule)) for one in items])
        for rule in (f"acc{ending}" for ending in RULES)
    ]
    found = Items(
        what="items",
        order="wrong ones first, the least probable right option first",
        n_all=source.n_items,
        columns=[
            Column("Item", "text", [heading(one) for one in items]),
            Column("Category", "category", [one["category"] for one in items]),
            *verdicts,
            Column("Right option", "number", [number(p, 4) for p in right], "its probability"),
            Column("Chosen", "text", [one["options"][one["choice"]] for one in items]),
            Column(
                "Its probability", "number",
                [number(one["probability"][one["choice"]], 4) + sections.marked(one)
                 for one in items],
                "of the option with the highest sum; ≈: rounding could change which one it is",
            ),
        ],
        fields=[Field("Context", [one["context"] for one in items])],
        tables=[
            Rows(
                "Options",
                ["Option", "Sum, nats", "Per byte", "PMI", "Probability"],
                "gold",
                [_options(one) for one in items],
            )
        ],
        within_noise=[one.get("within_noise") for one in items]
        if "noise" in source.record
        else [],
    )  # fmt: skip
    return with_failures(found, source.record["failures"])


def _options(item: Mapping[str, Any]) -> list[Row]:
    n = len(item["options"])
    pmi = item["pmi"] or [None] * n
    return [
        Row(
            [
                item["options"][k],
                number(item["sum_logprob"][k], 4),
                number(item["sum_logprob"][k] / item["n_bytes"][k], 4),
                number(pmi[k], 4),
                number(item["probability"][k], 4),
            ],
            item["probability"][k],
            item.get("gold") == k,
        )
        for k in range(n)
    ]
