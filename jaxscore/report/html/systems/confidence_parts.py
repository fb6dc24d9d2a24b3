"""Parts of the page of `self-certainty` that need gold: how well confidences find right outputs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.confidence_report import FIGURES, quality
from jaxscore.report.document import Card, Chart, Section
from jaxscore.report.html.chart_parts import by_n, calibrated, means
from jaxscore.report.html.charts.curves import Curve, Point, curves
from jaxscore.report.sections import estimate_card, section

CERTAIN, PROBABLE = "self-certainty", "negative perplexity"


def _known(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quality of the confidences; None without gold, and of fewer than two outputs."""
    found: Mapping[str, Any] | None = record.get("quality")
    return found if found is not None and found["n_responses"] > 1 else None


def cards(record: Mapping[str, Any]) -> list[Card]:
    """The figures of self-certainty."""
    found = _known(record)
    if found is None:
        return []
    n = found["n_responses"]
    return [
        estimate_card(title, _estimate(one, n), "outputs with gold")
        for figure, title in FIGURES.items()
        if (one := found["confidences"][CERTAIN][figure])["value"] is not None
    ]


def charts(record: Mapping[str, Any]) -> list[Chart]:
    """The confidences side by side, risk at coverage, reliability, and right choices by N."""
    found = _known(record)
    if found is None:
        return []
    n = found["n_responses"]
    groups = [(name, _estimate(one["auroc"], n), 0.5) for name, one in found["confidences"].items()]
    told = "at 0.5 are no information"
    out = means("AUROC by confidence", groups, "outputs", label="AUROC", reference=told)
    risks = [
        Curve(name, [Point(one.coverage, one.risk) for one in points])
        for name, points in found["risk_coverage"].items()
    ]
    title, x = "Risk at coverage", "share of outputs, the most confident first"
    if svg := curves(risks, title=title, x=x, y="share wrong"):
        out.append(Chart(title, svg, "Lower is better. At the right end all outputs are counted."))
    bins = [dataclasses.asdict(one) for one in found["reliability"]]
    ece = found["confidences"][PROBABLE]["ece"]
    out += calibrated("Reliability of 1/perplexity", {"bins": bins, "ece": ece}, "outputs")
    return out + by_n("The most confident of N outputs", record["best_of_n"], "outputs")


def sections(record: Mapping[str, Any]) -> list[Section]:
    """The tables of the Markdown."""
    return section(quality(record), opened=True)


def _estimate(one: Mapping[str, Any], n: int) -> Estimate:
    return Estimate(n, one["value"], one["low"], one["high"])
