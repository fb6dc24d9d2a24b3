"""Document of `probsem`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxscore.report import sections
from jaxscore.report.document import Card, Chart, Column, Document, Field, Items, Row, Rows, Source
from jaxscore.report.html.charts.histogram import counts, histogram
from jaxscore.report.html.charts.intervals import Group, intervals
from jaxscore.report.markdown import number
from jaxscore.report.probsem_report import surety
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    strips_of,
    verdict,
    with_failures,
    yes_no,
)


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    record = source.record
    settings = record["settings"]
    named = [str(settings[name]) for name in ("prompt", "test") if name in settings]
    good = [one for one in record["contexts"] if "error" not in one]
    return Document(
        system="probsem",
        title=f"ProbSem, {', '.join(named)}: {model_of(record)}".replace("ProbSem, :", "ProbSem:"),
        verdict=verdict(source),
        cards=[*_accuracy(record), Card("Contexts", f"{len(good):,}", "scored")],
        charts=_charts(good),
        items=_items(source),
        sections=closing(record, "contexts"),
        about=[
            "Accuracy is the share of contexts whose expected query has the highest score, with "
            "Wilson's score interval; contexts that expect -1 are left out.",
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "queries"),
        ],
    )


def _accuracy(record: Mapping[str, Any]) -> list[Card]:
    accuracy = record["accuracy"]
    if accuracy is None:
        return []
    return [estimate_card("Accuracy", accuracy, "contexts")]


def _charts(good: Any) -> list[Chart]:
    out = []
    expected = [one["scores"][one["expected"]] for one in good if one["passed"] is not None]
    if found := counts(expected, edges=[k / 20 for k in range(21)]):
        label = "score of the expected query"
        mean = sum(expected) / len(expected)
        svg = histogram(found, title=label, what="contexts", label=label, mean=mean)
        out.append(Chart("Score of the expected query", svg))
    chosen: dict[str, int] = {}
    for one in good:
        best = one["queries"][max(range(len(one["scores"])), key=one["scores"].__getitem__)]
        chosen[best] = chosen.get(best, 0) + 1
    most = sorted(chosen.items(), key=lambda pair: -pair[1])
    groups = [Group(query, n, None, None, str(n), n) for query, n in most]
    if svg_ := intervals(groups, title="Highest queries", label="contexts", what="contexts"):
        out.append(Chart("How often each query has the highest score", svg_))
    return out


def _items(source: Source) -> Items:
    every = source.record["contexts"]
    strips = source.strips or [()] * len(every)
    pairs = [(one, own) for one, own in zip(every, strips, strict=True) if "error" not in one]
    pairs.sort(key=lambda pair: surety(pair[0]))
    good = [one for one, _ in pairs]
    shown = dataclasses.replace(source, strips=[own for _, own in pairs])
    has_expected = [one["passed"] is not None for one in good]
    items = Items(
        what="contexts",
        order="worst first",
        n_all=source.n_items,
        columns=[
            Column("Context", "text", [one["context_text"] for one in good]),
            Column("Number", "number", [str(one["context"]) for one in good]),
            Column(
                "Expected", "category",
                [one["queries"][one["expected"]] if has else number(None)
                 for one, has in zip(good, has_expected, strict=True)],
            ),
            Column(
                "Its score", "number",
                [number(one["scores"][one["expected"]] if has else None, 4) + sections.marked(one)
                 for one, has in zip(good, has_expected, strict=True)],
                "≈: rounding could change the verdict",
            ),
            Column("Passed", "flag", [yes_no(one["passed"]) for one in good]),
        ],
        fields=[Field("Text", [one["text"] for one in good])],
        tables=[
            Rows(
                "Queries", ["Query", "logp", "Score", "Tokens"], "expected",
                [_queries(one) for one in good],
            )
        ],
        strips=strips_of(shown),
        within_noise=[one.get("within_noise") for one in good] if "noise" in source.record else [],
    )  # fmt: skip
    return with_failures(items, source.record["failures"])


def _queries(one: Mapping[str, Any]) -> list[Row]:
    columns = (one[name] for name in ("queries", "logp", "scores", "n_tokens"))
    return [
        Row([query, number(logp, 4), number(score, 4), str(n)], score, k == one["expected"])
        for k, (query, logp, score, n) in enumerate(zip(*columns, strict=True))
    ]
