"""Report of `paths` for people."""

from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.markdown import NOTHING, significant, table, text

SHOWN = 50  # paths, least gain first; all are in the JSON file
MEANS = {
    "baseline": "Probability without the path",
    "retrieved": "Probability with the path",
    "absolute": "Absolute improvement",
    "relative": "Relative improvement",
}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the report's JSON holds."""
    settings, audit = record["settings"], record["boundary_audit"]
    rows = [[title, *_cells(record["summary"][name])] for name, title in MEANS.items()]
    parts = [
        f"# Path Evaluation: {text(settings['model'])}",
        *sections.findings(record),
        table(["", "Mean", "95% interval", "Paths"], rows),
        f"The interval holds 95% of {settings['n_bootstrap']} bootstrap means that resample "
        "questions, since paths of one question are not independent; - where one question or "
        "equal values cannot tell. Relative improvement leaves out paths whose baseline is 0.",
        *sections.answer_blank(record),
        *sections.boundary(settings["boundary"], audit, "answers"),
        *sections.noise(record),
        *_by_length(record),
        *sections.remarks(record.get("remarks", ())),
        *sections.failures(record["failures"], "paths"),
        *_least_gain_first(record),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def _cells(one: Estimate) -> list[str]:
    """Mean, interval and count. Probabilities of answers are often far below 1 in 10,000."""
    low, high = significant(one.low), significant(one.high)
    return [significant(one.mean), NOTHING if one.low is None else f"{low} to {high}", str(one.n)]


def _by_length(record: Mapping[str, Any]) -> list[str]:
    rows = [[str(one["entities"]), *_cells(one["gain"])] for one in record["by_length"]]
    header = ["Entities", "Mean gain", "95% interval", "Paths"]
    return ["## By length of the path", table(header, rows)] if rows else []


def _least_gain_first(record: Mapping[str, Any]) -> list[str]:
    paths = record["paths"]
    rows = [
        [
            text(one["question"]),
            text(" -> ".join(one["path"])),
            significant(one["baseline_prob"]),
            significant(one["retrieved_prob"]),
            significant(one["absolute_improvement"]) + sections.marked(one),
        ]
        for one in paths[:SHOWN]
    ]
    some = f" (the first {SHOWN} of {len(paths)})" if len(paths) > SHOWN else ""
    header = ["Question", "Path", "Without", "With", "Gain"]
    title = f"## Paths, least gain first{some}"
    return [title, table(header, rows, left=2)] if rows else []
