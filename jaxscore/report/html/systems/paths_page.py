"""Document of `paths`."""

from collections import Counter
from typing import Any

from jaxscore.report import sections
from jaxscore.report.document import Chart, Column, Document, Field, Items, Row, Rows, Source
from jaxscore.report.html.charts.histogram import counts, histogram
from jaxscore.report.html.charts.intervals import Group, intervals
from jaxscore.report.html.charts.scatter import Labels, Logs, scatter
from jaxscore.report.markdown import significant
from jaxscore.report.paths_report import MEANS
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    strips_of,
    verdict,
    with_failures,
)


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    record = source.record
    settings = record["settings"]
    return Document(
        system="paths",
        title=f"Path Evaluation: {model_of(record)}",
        verdict=verdict(source),
        cards=[
            estimate_card(title, record["summary"][name], "paths") for name, title in MEANS.items()
        ],
        charts=_charts(record),
        items=_items(source),
        sections=closing(record, "paths"),
        about=[
            f"Intervals hold 95% of {settings['n_bootstrap']} bootstrap means that resample "
            "questions, since paths of one question are not independent. Relative improvement "
            "leaves out paths whose baseline is 0.",
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "answers"),
        ],
    )


def _charts(record: Any) -> list[Chart]:
    paths = record["paths"]
    pairs = Counter((one["baseline_prob"], one["retrieved_prob"]) for one in paths)
    gains = counts([one["absolute_improvement"] for one in paths])
    out = []
    labels = Labels("probability without the path", "with the path", "paths")
    if svg := scatter(
        pairs, title="Without and with", labels=labels, logs=Logs(True, True), diagonal=True
    ):
        n_zero = sum(n for pair, n in pairs.items() if not min(pair) > 0)
        left_out = f" {n_zero} paths with a probability of 0 are left out." if n_zero else ""
        told = f"Above the diagonal the path helps.{left_out}"
        out.append(Chart("Probability without and with the path", svg, told))
    if gains is not None:
        svg = histogram(
            gains,
            title="Improvement",
            what="paths",
            label="absolute improvement",
            mean=record["summary"]["absolute"].mean,
            signed=True,
        )
        out.append(Chart("Improvement of the probability", svg, "Below 0 the path does harm."))
    groups = [
        Group(
            f"{one['entities']} entities",
            gain.mean,
            gain.low,
            gain.high,
            significant(gain.mean),
            gain.n,
        )
        for one in record["by_length"]
        if (gain := one["gain"]).mean is not None
    ]
    if svg := intervals(groups, title="By length", label="mean improvement", what="paths"):
        out.append(Chart("Mean improvement by length of the path", svg))
    return out


def _items(source: Source) -> Items:
    paths = source.record["paths"]

    def column(name: str) -> list[str]:
        return [significant(one[name]) for one in paths]

    gains = [significant(one["absolute_improvement"]) + sections.marked(one) for one in paths]
    items = Items(
        what="paths",
        order="least gain first",
        n_all=len(paths) + len(source.record["failures"]),
        columns=[
            Column("Question", "text", [one["question"] for one in paths]),
            Column("Path", "text", [" → ".join(one["path"]) for one in paths]),
            Column("Without", "number", column("baseline_prob"), "probability without the path"),
            Column("With", "number", column("retrieved_prob"), "probability with the path"),
            Column("Gain", "number", gains, "≈: rounding could change its sign"),
            Column("Entities", "number", [str(len(one["path"])) for one in paths]),
        ],
        fields=[
            Field("Path", [" → ".join(one["path"]) for one in paths]),
            Field("Answer", [one["answer"] for one in paths]),
        ],
        tables=[
            Rows(
                "Probability of the answer under each system prompt",
                ["System prompt", "Without", "With"],
                "",
                [_prompts(one) for one in paths],
            )
        ],
        strips=strips_of(source),
        within_noise=[one.get("within_noise") for one in paths] if "noise" in source.record else [],
    )
    return with_failures(items, source.record["failures"])


def _prompts(one: Any) -> list[Row]:
    """Each system prompt, where there are several; one has the item's own numbers."""
    if len(one["prompt_results"]) < 2:
        return []
    return [
        Row(
            [
                result["system_prompt"],
                significant(result["baseline_prob"]),
                significant(result["retrieved_prob"]),
            ],
            result["retrieved_prob"],
        )
        for result in one["prompt_results"]
    ]
