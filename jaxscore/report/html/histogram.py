"""Histograms and scatter plots."""

import dataclasses
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from jaxscore.report.html.drawing import (
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
    step,
    words,
)

MOST, FEWEST = 36, 8  # bars, of many values and of few
WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 60, 410, 26, 200


@dataclasses.dataclass(frozen=True)
class Counts:
    """Number of values in each bin.

    Attributes:
        edges: the edges of the bins, ascending, [bins + 1].
        n: the counts, [bins].
    """

    edges: Sequence[float]
    n: Sequence[int]


def counts(
    values: Sequence[float] | np.ndarray, *, edges: Sequence[float] | None = None
) -> Counts | None:
    """Count finite values in bins of equal, round width; None below two values.

    Args:
        edges: edges of the bins of other values in the same picture.
    """
    array = np.asarray(values, np.float64)
    finite = array[np.isfinite(array)]
    if len(finite) < 2:
        return None
    if edges is None:
        low, high = float(finite.min()), float(finite.max())
        n_bins = min(MOST, FEWEST + int(math.sqrt(len(finite))))
        width = step(high - low or abs(high) or 1.0, n_bins)
        first, last = math.floor(low / width), math.floor(high / width) + 1
        edges = [k * width for k in range(first, last + 1)]
    return Counts(edges, np.histogram(finite, edges)[0].tolist())


def merged(n: np.ndarray, width: float) -> Counts | None:
    """Merge neighbours of equal bins from 0 on until few are left; None below two values.

    Args:
        n: number of values in each bin.
    """
    if n.sum() < 2:
        return None
    used = np.flatnonzero(n)
    low, high = int(used[0]), int(used[-1]) + 1
    together = round(step((high - low) * width, MOST) / width) if high - low > MOST else 1
    first, last = low // together, -(-high // together)
    padded = np.zeros(last * together, np.int64)
    padded[: min(len(n), len(padded))] = n[: len(padded)]
    sums = padded.reshape(-1, together).sum(axis=1)[first:]
    return Counts([k * together * width for k in range(first, last + 1)], sums.tolist())


def histogram(
    counted: Counts,
    *,
    title: str,
    units: str,
    label: str,
    mean: float | None = None,
    signed: bool = False,
    last_open: bool = False,
) -> Markup:
    """Draw counts as bars.

    Args:
        units: name of the counted items, such as "requests".
        label: name and unit of the values.
        mean: the value at which to draw a line.
        signed: bars below 0 have another colour and pattern.
        last_open: the last bin also has all larger values.
    """
    across = Axis(counted.edges[0], counted.edges[-1], LEFT, RIGHT)
    largest = max(1, *counted.n)
    up = Axis(0, largest, BOTTOM, TOP, is_integer=True)
    bars = []
    for k, n in enumerate(counted.n):
        low, high = counted.edges[k], counted.edges[k + 1]
        left, right, top = across.at(low), across.at(high), up.at(n)
        css_class = "bar less" if signed and (low + high) / 2 < 0 else "bar"
        over = last_open and k == len(counted.n) - 1
        tip = f"{low:.6g} {'and more' if over else f'to {high:.6g}'}: {n} {units}"
        if n:
            bars.append(box(left + 0.5, top, right - left - 1, BOTTOM - top, css_class, tip))
    marks = []
    if mean is not None and math.isfinite(mean):
        x = across.at(mean)
        anchor = "start" if x < (LEFT + RIGHT) / 2 else "end"
        marks = [
            line(x, BOTTOM, x, TOP - 18, "mark"),
            words(
                x + (5 if anchor == "start" else -5), TOP - 10, f"mean {mean:.3g}", "strong", anchor
            ),
        ]
    peak = int(np.argmax(counted.n))
    finding = (
        f"{sum(counted.n)} {units} from {counted.edges[0]:.3g} to {counted.edges[-1]:.3g}; most, "
        f"{counted.n[peak]}, lie between {counted.edges[peak]:.3g} and "
        f"{counted.edges[peak + 1]:.3g}."
    )
    return picture(
        title, finding, WIDTH, HEIGHT,
        axis_beside(up, LEFT, units, RIGHT), *bars, axis_below(across, BOTTOM, label), *marks,
    )  # fmt: skip


def two_sided(
    upper: Counts, lower: Counts, *, title: str, units: str, label: str, names: tuple[str, str]
) -> Markup:
    """Draw two groups over the same bins, one upwards and one downwards."""
    across = Axis(upper.edges[0], upper.edges[-1], LEFT, RIGHT)
    largest = max(1, *upper.n, *lower.n)
    middle = (TOP + BOTTOM) / 2
    bars = []
    for counted, name, css_class, end in (
        (upper, names[0], "bar", TOP), (lower, names[1], "bar less", BOTTOM),
    ):  # fmt: skip
        out = Axis(0, largest, middle, end)
        for k, n in enumerate(counted.n):
            low, high, y = counted.edges[k], counted.edges[k + 1], out.at(n)
            tip = f"{low:.6g} to {high:.6g}: {n} {name} {units}"
            if n:
                width = across.at(high) - across.at(low) - 1
                bars.append(
                    box(
                        across.at(low) + 0.5, min(y, middle), width, abs(y - middle), css_class, tip
                    )
                )
    finding = f"{sum(upper.n)} {names[0]} and {sum(lower.n)} {names[1]} {units}."
    return picture(
        title, finding, WIDTH, HEIGHT, *bars, line(LEFT, middle, RIGHT, middle, "rule"),
        words(LEFT - 6, TOP + 10, names[0], "strong", "end"),
        words(LEFT - 6, BOTTOM - 4, names[1], "strong", "end"),
        axis_below(across, BOTTOM, label),
    )  # fmt: skip


SCATTER_WIDTH, SCATTER_HEIGHT = 420, 300
SCATTER_LEFT, SCATTER_RIGHT, SCATTER_TOP, SCATTER_BOTTOM = 60, 410, 12, 258
POINTS = 300  # of more, a grid of counts is drawn
CELLS = 18  # of the grid, each way


class Labels(NamedTuple):
    """Labels of both axes, and the name of the items that points count."""

    x: str
    y: str
    units: str


class Logs(NamedTuple):
    """Axes that are logarithmic."""

    x: bool
    y: bool


def _axes(values: Sequence[float], start: float, end: float, log: bool) -> Axis:
    low, high, is_integer = min(values), max(values), all(value % 1 == 0 for value in values)
    if log:
        margin = (high / low) ** 0.04
        return Axis(low / margin / 1.05, high * margin * 1.05, start, end, True, is_integer)
    margin = (high - low) * 0.04 or 0.5
    return Axis(low - margin, high + margin, start, end, is_integer=is_integer)


class Points(NamedTuple):
    """Distinct points and how many items have each, [n] each, in the order of their first items."""

    x: np.ndarray
    y: np.ndarray
    n: np.ndarray

    def items(self) -> Iterator[tuple[tuple[float, float], int]]:
        """Yield each point and its number of items, like `dict.items`."""
        return (((float(x), float(y)), int(n)) for x, y, n in zip(*self, strict=True))


def count_points(x: np.ndarray, y: np.ndarray) -> Points:
    """Count equal points."""
    _, first, n = np.unique(np.stack([x, y], 1), axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return Points(x[first[order]], y[first[order]], n[order])


def scatter(
    points: Points | Mapping[tuple[float, float], int],
    *,
    title: str,
    labels: Labels,
    logs: Logs,
    diagonal: bool = False,
) -> Markup | None:
    """Draw points, or if they are many their number in each cell; None below two points.

    Args:
        points: (x, y) -> number of items; points that are not finite, or not positive on a
            logarithmic axis, are left out.
        diagonal: draw the line x = y, and give both axes the same range.
    """
    xs, ys, ns = array("d"), array("d"), array("q")
    for point, k in points.items():
        if all(math.isfinite(v) and (v > 0 or not log) for v, log in zip(point, logs, strict=True)):
            xs.append(point[0])
            ys.append(point[1])
            ns.append(k)
    n = sum(ns)
    if n < 2:
        return None
    of_x, of_y = (xs + ys, xs + ys) if diagonal else (xs, ys)
    across, up = (
        _axes(of_x, SCATTER_LEFT, SCATTER_RIGHT, logs.x),
        _axes(of_y, SCATTER_BOTTOM, SCATTER_TOP, logs.y),
    )
    parts = [
        axis_beside(up, SCATTER_LEFT, labels.y, SCATTER_RIGHT),
        axis_below(across, SCATTER_BOTTOM, labels.x, SCATTER_TOP),
    ]
    if diagonal:
        parts.append(line(across.start, up.start, across.end, up.end, "ideal"))
    counted = zip(xs, ys, ns, strict=True)
    parts += (
        _points(counted, across, up) if len(xs) <= POINTS else _cells(counted, across, up, labels)
    )
    above = sum(k for x, y, k in zip(xs, ys, ns, strict=True) if y > x)
    seen = f"{n} {labels.units}: {labels.y} against {labels.x}"
    finding = f"{seen}; {above} lie above the diagonal." if diagonal else f"{seen}."
    return picture(title, finding, SCATTER_WIDTH, SCATTER_HEIGHT, *parts)


Counted = Iterable[tuple[float, float, int]]  # x, y, and the number of items


def _points(counts: Counted, across: Axis, up: Axis) -> list[Markup]:
    return [
        dot(across.at(x), up.at(y), 3.5, "dot", f"{x:.4g}, {y:.4g}{f': {n}' if n > 1 else ''}")
        for x, y, n in counts
    ]


def _cells(counts: Counted, across: Axis, up: Axis, labels: Labels) -> list[Markup]:
    """Draw squares, the darker the more points they have."""
    wide, tall = (SCATTER_RIGHT - SCATTER_LEFT) / CELLS, (SCATTER_BOTTOM - SCATTER_TOP) / CELLS
    n: dict[tuple[int, int], int] = {}
    for x, y, count in counts:
        cell = int((across.at(x) - SCATTER_LEFT) / wide), int((SCATTER_BOTTOM - up.at(y)) / tall)
        n[cell] = n.get(cell, 0) + count
    largest = max(n.values())
    return [
        box(
            SCATTER_LEFT + column * wide, SCATTER_BOTTOM - (row + 1) * tall, wide, tall, "cell",
            f"{count} {labels.units}", 0.15 + 0.85 * math.log1p(count) / math.log1p(largest),
        )
        for (column, row), count in sorted(n.items())
    ]  # fmt: skip
