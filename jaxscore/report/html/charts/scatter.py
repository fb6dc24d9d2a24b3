"""Two numbers of each item against each other."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from jaxscore.report.html.charts.drawing import (
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
)

SCATTER_WIDTH, SCATTER_HEIGHT = 420, 300
SCATTER_LEFT, SCATTER_RIGHT, SCATTER_TOP, SCATTER_BOTTOM = 58, 410, 12, 258
POINTS = 300  # of more, a grid of counts is drawn
CELLS = 18  # of the grid, each way


class Labels(NamedTuple):
    """Of both axes, and what a point is."""

    x: str
    y: str
    what: str


class Logs(NamedTuple):
    """Which axes go by powers of ten."""

    x: bool
    y: bool


def _axes(values: Sequence[float], start: float, end: float, log: bool) -> Axis:
    low, high, whole = min(values), max(values), all(value % 1 == 0 for value in values)
    if log:
        margin = (high / low) ** 0.04
        return Axis(low / margin / 1.05, high * margin * 1.05, start, end, True, whole)
    margin = (high - low) * 0.04 or 0.5
    return Axis(low - margin, high + margin, start, end, whole=whole)


def scatter(
    points: Mapping[tuple[float, float], int],
    *,
    title: str,
    labels: Labels,
    logs: Logs,
    diagonal: bool = False,
) -> Markup | None:
    """Points, or where they are many the number of them in each cell; None below two points.

    Args:
        points: (x, y) -> how many items have them; numbers that a logarithm does not take, and
            numbers that are not finite, are left out.
        diagonal: where both are equal; both axes then have the same range.
    """
    held = {
        (x, y): n
        for (x, y), n in points.items()
        if all(math.isfinite(v) and (v > 0 or not log) for v, log in zip((x, y), logs, strict=True))
    }
    n = sum(held.values())
    if n < 2:
        return None
    xs, ys = [x for x, _ in held], [y for _, y in held]
    if diagonal:
        xs = ys = [*xs, *ys]
    across, up = (
        _axes(xs, SCATTER_LEFT, SCATTER_RIGHT, logs.x),
        _axes(ys, SCATTER_BOTTOM, SCATTER_TOP, logs.y),
    )
    parts = [
        axis_beside(up, SCATTER_LEFT, labels.y, SCATTER_RIGHT),
        axis_below(across, SCATTER_BOTTOM, labels.x, SCATTER_TOP),
    ]
    if diagonal:
        parts.append(line(across.start, up.start, across.end, up.end, "ideal"))
    parts += _points(held, across, up) if len(held) <= POINTS else _cells(held, across, up, labels)
    above = sum(k for (x, y), k in held.items() if y > x)
    seen = f"{n} {labels.what}: {labels.y} against {labels.x}"
    finding = f"{seen}; {above} lie above the diagonal." if diagonal else f"{seen}."
    return picture(title, finding, SCATTER_WIDTH, SCATTER_HEIGHT, *parts)


def _points(held: Mapping[tuple[float, float], int], across: Axis, up: Axis) -> list[Markup]:
    return [
        dot(across.at(x), up.at(y), 3, "dot", f"{x:.4g}, {y:.4g}{f': {n}' if n > 1 else ''}")
        for (x, y), n in held.items()
    ]


def _cells(
    held: Mapping[tuple[float, float], int], across: Axis, up: Axis, labels: Labels
) -> list[Markup]:
    """Squares, the darker the more points are in them."""
    wide, tall = (SCATTER_RIGHT - SCATTER_LEFT) / CELLS, (SCATTER_BOTTOM - SCATTER_TOP) / CELLS
    n: dict[tuple[int, int], int] = {}
    for (x, y), count in held.items():
        cell = int((across.at(x) - SCATTER_LEFT) / wide), int((SCATTER_BOTTOM - up.at(y)) / tall)
        n[cell] = n.get(cell, 0) + count
    most = max(n.values())
    return [
        box(
            SCATTER_LEFT + column * wide, SCATTER_BOTTOM - (row + 1) * tall, wide, tall, "cell",
            f"{count} {labels.what}", 0.15 + 0.85 * math.log1p(count) / math.log1p(most),
        )
        for (column, row), count in sorted(n.items())
    ]  # fmt: skip
