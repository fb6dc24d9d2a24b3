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


def calibrated(title: str, found: Mapping[str, Any], events: str) -> list[Chart]:
    """A reliability diagram.

    Args:
        found: `ece` and `bins`.
        events: what is true or not, such as "answers".
    """
    svg = reliability(found["bins"], found["ece"], title=title, events=events)
    reported = f"Expected calibration error {three(found['ece'])}. {DIAGONAL}"
    return [] if svg is None else [Chart(title, svg, reported)]


def means(
    title: str,
    named: Iterable[tuple[str, Estimate, float | None]],
    what: str,
    *,
    label: str = "",
    reference: str = "",
) -> list[Chart]:
    """Means side by side with their intervals; what has no mean is left out.

    Args:
        named: name, mean, and the value to compare it with, or None.
        what: the means are over, such as "questions".
        label: of the axis; the title if empty.
        reference: what the third numbers are.
    """
    groups = [
        Group(name, one.mean, one.low, one.high, three(one.mean), one.n, other)
        for name, one, other in named
        if one.mean is not None
    ]
    svg = intervals(groups, title=title, label=label or title, what=what, reference=reference)
    caption = f"{INTERVALS}{f'; upright strokes {reference}' if reference else ''}."
    return [] if svg is None else [Chart(title, svg, caption)]


def by_category(
    summary: Mapping[str, Any],
    name: str,
    title: str,
    what: str,
    reference: tuple[str, str] | None = None,
) -> list[Chart]:
    """A mean over all items and over each category.

    Args:
        summary: `overall` and `by_category`.
        name: of the mean.
        reference: name of the mean to compare with, and its description.
    """
    named: list[tuple[str, Mapping[str, Estimate]]] = [("Overall", summary["overall"])]
    if len(summary["by_category"]) > 1:
        named += summary["by_category"].items()
    groups = [
        (category, one[name], None if reference is None else one[reference[0]].mean)
        for category, one in named
    ]
    reported = "" if reference is None else reference[1]
    return means(title, groups, what, reference=reported)


def by_n(title: str, rows: Sequence[Mapping[str, Any]], what: str) -> list[Chart]:
    """The share of right choices against N, a curve for each way of choosing.

    Args:
        rows: as `sections.table_by_n` takes them; fewer than two items draw nothing.
        what: is chosen from, such as "responses".
    """
    rows = [row for row in rows if row["accuracy"].n > 1]
    found = [
        Curve(
            way,
            [
                Point(row["best_n"], one.mean, one.low, one.high)
                for row in rows
                if row["way"] == way and (one := row["accuracy"]).mean is not None
            ],
        )
        for way in dict.fromkeys(row["way"] for row in rows)
    ]
    svg = curves(found, title=title, x=f"first N {what}", y="share right", log=True)
    lines = INTERVALS if has_spans(found) else "Tips have 95% intervals"
    reported = f"{lines}, Wilson's. All curves are over the same items."
    return [] if svg is None else [Chart(title, svg, reported)]


WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 60, 410, 12, 226
COUNTS_TOP, COUNTS_BOTTOM = 238, 290


def reliability(
    bins: Sequence[Mapping[str, Any]], ece: float | None, *, title: str, events: str
) -> Markup | None:
    """The reliability diagram over its counts; None below two events.

    Args:
        bins: as `analysis.forecasts.Bin` has its fields.
        events: what is true or not, such as "answers".
    """
    used = [one for one in bins if one["n"]]
    n_events = sum(one["n"] for one in used)
    if n_events < 2:
        return None
    across, up = Axis(0, 1, LEFT, RIGHT), Axis(0, 1, BOTTOM, TOP)
    most = max(one["n"] for one in used)
    tall = Axis(0, most, COUNTS_BOTTOM, COUNTS_TOP)
    parts = [
        axis_beside(up, LEFT, "share correct", RIGHT),
        line(LEFT, BOTTOM, RIGHT, BOTTOM, "rule"),
        line(across.at(0), up.at(0), across.at(1), up.at(1), "ideal"),
    ]
    points = [(one["mean_probability"], one["frequency"], one) for one in used]
    for (p, share, _), (q, other, _) in itertools.pairwise(points):
        parts.append(line(across.at(p), up.at(share), across.at(q), up.at(other), "curve"))
    for p, share, one in points:
        tip = (
            f"{one['low']:.1f} to {one['high']:.1f}: {one['n']} {events}, mean probability "
            f"{number(p, 4)}, share correct {number(share, 4)}"
        )
        x = across.at(p)
        parts += [
            line(x, up.at(p), x, up.at(share), "gap"),
            dot(x, up.at(share), 4.5, "point", tip),
        ]
        left, right, y = across.at(one["low"]), across.at(one["high"]), tall.at(one["n"])
        parts.append(box(left + 1, y, right - left - 2, COUNTS_BOTTOM - y, "bar soft", tip))
    parts += [
        words(LEFT - 6, COUNTS_TOP + 8, str(most), anchor="end"),
        words(LEFT - 6, COUNTS_BOTTOM, "0", anchor="end"),
        words(12, (COUNTS_TOP + COUNTS_BOTTOM) / 2, events, "name", turn=True),
        axis_below(across, COUNTS_BOTTOM, "probability"),
    ]
    over = sum(one["n"] for p, share, one in points if p > share)
    finding = (
        f"{n_events} {events} in {len(used)} bins; expected calibration error {number(ece)}. Bins "
        f"with {over} of the {events} lie below the diagonal, where the model is too sure."
    )
    return picture(title, finding, WIDTH, HEIGHT, *parts)
