"""Report of `paths`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, numbers_of
from jaxscore.report import sections
from jaxscore.report.document import (
    Chart,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Section,
    Source,
    n_listed,
)
from jaxscore.report.html.histogram import (
    Labels,
    Logs,
    count_points,
    counts,
    histogram,
    scatter,
)
from jaxscore.report.html.intervals import Group, intervals
from jaxscore.report.markdown import NOTHING, significant, table
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    strips_of,
    verdict,
    with_failures,
    within_noise,
)

MEANS = {
    "baseline": "Probability without the path",
    "retrieved": "Probability with the path",
    "absolute": "Absolute improvement",
    "relative": "Relative improvement",
}


def report(source: Source) -> Document:
    """Return the report of a run."""
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
        sections=[*_by_length(record), *closing(record, "paths")],
        about=[
            f"Intervals hold 95% of {settings['n_bootstrap']} bootstrap means that resample "
            "questions, since paths of one question are not independent; - stands for one question "
            "or equal values. Relative improvement leaves out paths whose baseline is 0.",
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "answers"),
        ],
    )


def _by_length(record: Mapping[str, Any]) -> list[Section]:
    gains: list[tuple[int, Estimate]] = [
        (row["entities"], row["gain"]) for row in record["by_length"]
    ]
    rows = [
        [
            str(n),
            significant(gain.mean),
            NOTHING if gain.low is None else f"{significant(gain.low)} to {significant(gain.high)}",
            str(gain.n),
        ]
        for n, gain in gains
    ]
    header = ["Entities", "Mean gain", "95% interval", "Paths"]
    return [Section("By length of the path", [table(header, rows)])] if rows else []


def _charts(record: Mapping[str, Any]) -> list[Chart]:
    paths = record["paths"]
    numbers = numbers_of(paths, ("baseline_prob", "retrieved_prob", "absolute_improvement"))
    without, with_path = numbers["baseline_prob"], numbers["retrieved_prob"]
    pairs, gains = count_points(without, with_path), counts(numbers["absolute_improvement"])
    charts = []
    labels = Labels("probability without the path", "with the path", "paths")
    if svg := scatter(
        pairs, title="Without and with", labels=labels, logs=Logs(True, True), diagonal=True
    ):
        n_zero = int((~(np.minimum(without, with_path) > 0)).sum())
        left_out = f" {n_zero} paths with a probability of 0 are left out." if n_zero else ""
        caption = f"Above the diagonal the path helps.{left_out}"
        charts.append(Chart("Probability without and with the path", svg, caption))
    if gains is not None:
        svg = histogram(
            gains,
            title="Improvement",
            units="paths",
            label="absolute improvement",
            mean=record["summary"]["absolute"].mean,
            signed=True,
        )
        charts.append(Chart("Improvement of the probability", svg, "Below 0 the path does harm."))
    groups = [
        Group(
            f"{length['entities']} entities",
            gain.mean,
            gain.low,
            gain.high,
            significant(gain.mean),
            gain.n,
        )
        for length in record["by_length"]
        if (gain := length["gain"]).mean is not None
    ]
    if svg := intervals(groups, title="By length", label="mean improvement", units="paths"):
        charts.append(Chart("Mean improvement by length of the path", svg))
    return charts


def _items(source: Source) -> Items:
    every = source.record["paths"]
    paths = every[: n_listed(len(every))]

    def column(name: str) -> list[str]:
        return [significant(path[name]) for path in paths]

    gains = [significant(path["absolute_improvement"]) + sections.marked(path) for path in paths]
    items = Items(
        units="paths",
        order="least gain first",
        n_all=len(every) + len(source.record["failures"]),
        n_beyond=len(every) - len(paths),
        columns=[
            Column("Question", "text", [path["question"] for path in paths]),
            Column("Path", "text", [" → ".join(path["path"]) for path in paths]),
            Column("Without", "number", column("baseline_prob"), "probability without the path"),
            Column("With", "number", column("retrieved_prob"), "probability with the path"),
            Column("Gain", "number", gains, "≈: rounding could change its sign"),
            Column("Entities", "number", [str(len(path["path"])) for path in paths]),
        ],
        fields=[
            Field("Path", [" → ".join(path["path"]) for path in paths]),
            Field("Answer", [path["answer"] for path in paths]),
        ],
        tables=[
            Rows(
                "Probability of the answer under each system prompt",
                ["System prompt", "Without", "With"],
                "",
                [_prompts(path) for path in paths],
            )
        ],
        strips=strips_of(dataclasses.replace(source, strips=source.strips[: len(paths)])),
        within_noise=within_noise(source.record, paths),
    )
    return with_failures(items, source.record["failures"])


def _prompts(path: Mapping[str, Any]) -> list[Row]:
    """Return each system prompt, if there are several; one has the path's own numbers."""
    if len(path["prompt_results"]) < 2:
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
        for result in path["prompt_results"]
    ]
