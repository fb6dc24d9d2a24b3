"""Charts of several systems' pages, with captions; a chart with too little data is left out."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.document import Chart
from jaxscore.report.html.drawing import (
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
    words,
)
from jaxscore.report.html.intervals import Curve, Group, Point, curves, has_spans, intervals
from jaxscore.report.markdown import number
from jaxscore.report.sections import three

DIAGONAL = "On the diagonal, probability and share correct are equal."
INTERVALS = "Lines are 95% intervals"


def calibrated(title: str, calibration: Mapping[str, Any], events: str) -> list[Chart]:
    """Return a reliability diagram.

    Args:
        calibration: `ece` and `bins`.
        events: name of the events, such as "answers".
    """
    svg = reliability(calibration["bins"], calibration["ece"], title=title, events=events)
    reported = f"Expected calibration error {three(calibration['ece'])}. {DIAGONAL}"
    return [] if svg is None else [Chart(title, svg, reported)]


def means(
    title: str,
    named: Iterable[tuple[str, Estimate, float | None]],
    units: str,
    *,
    label: str = "",
    reference: str = "",
) -> list[Chart]:
    """Draw means side by side with their intervals, without those that are None.

    Args:
        named: name, mean, and the value to compare it with, or None.
        units: name of the averaged items, such as "questions".
        label: label of the axis; the title if empty.
        reference: description of the third numbers.
    """
    groups = [
        Group(
            name,
            estimate.mean,
            estimate.low,
            estimate.high,
            three(estimate.mean),
            estimate.n,
            other,
        )
        for name, estimate, other in named
        if estimate.mean is not None
    ]
    svg = intervals(groups, title=title, label=label or title, units=units, reference=reference)
    caption = f"{INTERVALS}{f'; upright strokes {reference}' if reference else ''}."
    return [] if svg is None else [Chart(title, svg, caption)]


def by_category(
    summary: Mapping[str, Any],
    name: str,
    title: str,
    units: str,
    reference: tuple[str, str] | None = None,
) -> list[Chart]:
    """Draw a mean over all items and over each category.

    Args:
        summary: `overall` and `by_category`.
        name: name of the mean.
        reference: name of the mean to compare with, and its description.
    """
    named: list[tuple[str, Mapping[str, Estimate]]] = [("Overall", summary["overall"])]
    if len(summary["by_category"]) > 1:
        named += summary["by_category"].items()
    groups = [
        (category, estimates[name], None if reference is None else estimates[reference[0]].mean)
        for category, estimates in named
    ]
    reported = "" if reference is None else reference[1]
    return means(title, groups, units, reference=reported)


def by_n(title: str, rows: Sequence[Mapping[str, Any]], units: str) -> list[Chart]:
    """Draw the share of right choices against N, a curve for each way of choosing.

    Args:
        rows: see `sections.table_by_n`; rows of fewer than two items are left out.
        units: name of the candidates, such as "responses".
    """
    rows = [row for row in rows if row["accuracy"].n > 1]
    drawn = [
        Curve(
            way,
            [
                Point(row["best_n"], accuracy.mean, accuracy.low, accuracy.high)
                for row in rows
                if row["way"] == way and (accuracy := row["accuracy"]).mean is not None
            ],
        )
        for way in dict.fromkeys(row["way"] for row in rows)
    ]
    svg = curves(drawn, title=title, x=f"first N {units}", y="share right", log=True)
    lines = INTERVALS if has_spans(drawn) else "Tips have 95% intervals"
    reported = f"{lines}, Wilson's. All curves are over the same items."
    return [] if svg is None else [Chart(title, svg, reported)]


WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 60, 410, 12, 226
COUNTS_TOP, COUNTS_BOTTOM = 238, 290


def reliability(
    bins: Sequence[Mapping[str, Any]], ece: float | None, *, title: str, events: str
) -> Markup | None:
    """Draw the reliability diagram over its counts; None below two events.

    Args:
        bins: the fields of `analysis.forecasts.Bin`.
        events: name of the events, such as "answers".
    """
    used = [bin for bin in bins if bin["n"]]
    n_events = sum(bin["n"] for bin in used)
    if n_events < 2:
        return None
    across, up = Axis(0, 1, LEFT, RIGHT), Axis(0, 1, BOTTOM, TOP)
    largest = max(bin["n"] for bin in used)
    tall = Axis(0, largest, COUNTS_BOTTOM, COUNTS_TOP)
    parts = [
        axis_beside(up, LEFT, "share correct", RIGHT),
        line(LEFT, BOTTOM, RIGHT, BOTTOM, "rule"),
        line(across.at(0), up.at(0), across.at(1), up.at(1), "ideal"),
    ]
    points = [(bin["mean_probability"], bin["frequency"], bin) for bin in used]
    for (p, share, _), (q, other, _) in itertools.pairwise(points):
        parts.append(line(across.at(p), up.at(share), across.at(q), up.at(other), "curve"))
    for p, share, bin in points:
        tip = (
            f"{bin['low']:.1f} to {bin['high']:.1f}: {bin['n']} {events}, mean probability "
            f"{number(p, 4)}, share correct {number(share, 4)}"
        )
        x = across.at(p)
        parts += [
            line(x, up.at(p), x, up.at(share), "gap"),
            dot(x, up.at(share), 4.5, "point", tip),
        ]
        left, right, y = across.at(bin["low"]), across.at(bin["high"]), tall.at(bin["n"])
        parts.append(box(left + 1, y, right - left - 2, COUNTS_BOTTOM - y, "bar soft", tip))
    parts += [
        words(LEFT - 6, COUNTS_TOP + 8, str(largest), anchor="end"),
        words(LEFT - 6, COUNTS_BOTTOM, "0", anchor="end"),
        words(12, (COUNTS_TOP + COUNTS_BOTTOM) / 2, events, "name", turn=True),
        axis_below(across, COUNTS_BOTTOM, "probability"),
    ]
    over = sum(bin["n"] for p, share, bin in points if p > share)
    finding = (
        f"{n_events} {events} in {len(used)} bins; expected calibration error {number(ece)}. Bins "
        f"with {over} of the {events} lie below the diagonal, where the model is too sure."
    )
    return picture(title, finding, WIDTH, HEIGHT, *parts)
