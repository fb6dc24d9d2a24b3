"""Means with their 95% intervals: of groups side by side, and along curves."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from jaxscore.report.html.drawing import (
    GAP,
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
    short,
    tick_text,
    width,
    words,
)

WIDTH = 420
# Groups
GROUPS_TOP = 10
TALL, ALL = 24, 160  # least height of a group, and height of few groups together
MOST = 16  # groups
# Curves
HEIGHT = 282
LEFT, RIGHT, TOP, BOTTOM = 60, 400, 12, 228
KEY = 276  # the height of the names' last line
LETTERS = "abcdefgh"  # that mark the ends of the curves; more curves are not drawn
LETTER = 10  # the height of one
FEW = 4  # curves; more have no lines of intervals, which would cover each other
COLOURS = 5  # of curves; further ones are dashed in the same colours
SWATCH = 14  # the width of a curve's colour before its name
APART = 5  # between the intervals of two curves at one place
BETWEEN = 16  # the width between two names
LINE = 14  # the height of a line of names
RING = 1  # the radius that a point around another one has more
Segment = tuple[tuple[float, float], tuple[float, float]]


class Group(NamedTuple):
    """One mean.

    Attributes:
        low, high: the ends of its 95% interval, or None.
        shown: the mean as in the Markdown.
        reference: the value to compare with, or None.
        n: the number of averaged items.
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    shown: str
    n: int
    reference: float | None = None


def intervals(
    groups: Sequence[Group], *, title: str, label: str, units: str, reference: str = ""
) -> Markup | None:
    """Draw a line per group, for the first `MOST`; None without groups.

    Args:
        label: name of the means.
        units: name of the averaged items, such as "questions".
        reference: description of the groups' references.
    """
    drawn = groups[:MOST]
    if not drawn:
        return None
    every = [v for g in drawn for v in (g.mean, g.low, g.high, g.reference) if v is not None]
    low, high = min(0.0, *every), max(0.0, *every)
    left = 12 + max(width(short(group.name)) for group in drawn)
    right = WIDTH - 12 - max(width(group.shown) for group in drawn)
    across = Axis(low, high if high > low else low + 1, left, right)
    tall = max(TALL, min(2 * TALL, ALL / len(drawn)))
    bottom = GROUPS_TOP + tall * len(drawn) + 4
    parts = [axis_below(across, bottom, label, GROUPS_TOP)]
    for k, group in enumerate(drawn):
        y = GROUPS_TOP + tall * (k + 0.5) + 2
        span = "" if group.low is None else f", 95% interval {group.low:.4g} to {group.high:.4g}"
        tip = f"{group.name}: {group.shown}{span}, {group.n} {units}"
        zero, x = across.at(0), across.at(group.mean)
        parts += [
            words(left - 8, y + 4, short(group.name), "strong", "end"),
            box(min(zero, x), y - 6, abs(x - zero), 12, "bar soft", tip),
            words(right + 8, y + 4, group.shown, "strong", "start"),
        ]
        if group.low is not None and group.high is not None:
            parts.append(line(across.at(group.low), y, across.at(group.high), y, "whisker"))
        if group.reference is not None:
            at = across.at(group.reference)
            parts.append(line(at, y - 9, at, y + 9, "mark"))
        parts.append(dot(x, y, 4, "point", tip))
    best = max(drawn, key=lambda group: group.mean)
    least = min(drawn, key=lambda group: group.mean)
    finding = (
        f"{len(drawn)} groups of {units}, from {least.shown} ({short(least.name)}) to "
        f"{best.shown} ({short(best.name)}). Lines are 95% intervals"
        f"{f', upright strokes {reference}' if reference else ''}."
    )
    return picture(title, finding, WIDTH, round(bottom) + 40, *parts)


class Point(NamedTuple):
    """A point of a curve; `low` to `high` is the 95% interval of y, or None."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Curve(NamedTuple):
    """A named curve; the points' x ascends."""

    name: str
    points: Sequence[Point]


def curves(
    candidates: Sequence[Curve], *, title: str, x: str, y: str, log: bool = False
) -> Markup | None:
    """Draw curves, each with a colour and a letter at its ends and before its name.

    None without a point. Intervals are lines for up to `FEW` curves, otherwise only in the tips.

    Args:
        x, y: labels of the axes; y is a share, from 0 to 1.
        log: x is logarithmic, and positive.
    """
    drawn = [curve for curve in candidates if curve.points][: len(LETTERS)]
    if not drawn:
        return None
    places = sorted({point.x for curve in drawn for point in curve.points})
    low, high = places[0], places[-1]
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    spans = has_spans(drawn)
    apart = APART if spans else 0
    margin = 16 + apart * len(drawn) / 2
    across = Axis(low, high, LEFT + margin, RIGHT - margin, log)
    up = Axis(0, 1, BOTTOM, TOP)
    parts = [
        axis_beside(up, LEFT, y, RIGHT),
        line(LEFT, BOTTOM, RIGHT, BOTTOM, "rule"),
        *_ticks(places, across),
        words((LEFT + RIGHT) / 2, BOTTOM + 31, x, "name"),
    ]
    at = []
    for k, curve in enumerate(drawn):
        aside = (k - (len(drawn) - 1) / 2) * apart
        at.append([(round(across.at(p.x) + aside, 1), round(up.at(p.y), 1)) for p in curve.points])
    parts += [*_lines(at), *_points(drawn, at, up, spans=spans)]
    parts += _letters([up.at(curve.points[0].y) for curve in drawn], LEFT + 6)
    parts += _letters([up.at(curve.points[-1].y) for curve in drawn], RIGHT + 6)
    names = [
        f"{letter}  {short(curve.name)}" for letter, curve in zip(LETTERS, drawn, strict=False)
    ]
    key, n_lines = _key(names)
    ends = "; ".join(f"{short(curve.name)} {curve.points[-1].y:.3g}" for curve in drawn)
    finding = f"{y} against {x}. At {places[-1]:.6g}: {ends}."
    return picture(title, finding, WIDTH, HEIGHT + LINE * (n_lines - 1), *parts, *key)


def has_spans(candidates: Sequence[Curve]) -> bool:
    """Return True if the intervals of these curves are drawn as lines."""
    drawn = [curve for curve in candidates if curve.points]
    has_intervals = any(point.low is not None for curve in drawn for point in curve.points)
    return has_intervals and len(drawn) <= FEW


def _ticks(values: Sequence[float], across: Axis) -> list[Markup]:
    """Draw ticks at the values as far as there is room."""
    out, end = [], -math.inf
    for value in values:
        text = tick_text(value if value % 1 == 0 else float(f"{value:.3g}"))
        at, half = across.at(value), width(text) / 2
        if at - half > end:
            out += [line(at, BOTTOM, at, BOTTOM + 4, "rule"), words(at, BOTTOM + 14, text)]
            end = at + half + GAP
    return out


def _letters(ends: Sequence[float], x: float) -> list[Markup]:
    """Draw the letters of the curves at x, one above the other if their ends are close."""
    order = sorted(range(len(ends)), key=lambda k: (-ends[k], -k))
    places, lowest = [], BOTTOM + 4.0
    for k in order:
        places.append(min(ends[k] + 3.5, lowest))
        lowest = places[-1] - LETTER
    out, highest = [], float(LETTER)  # no letter is above the picture
    for k, y in reversed([*zip(order, places, strict=True)]):
        out.append(words(x, max(y, highest), LETTERS[k], "strong"))
        highest = max(y, highest) + LETTER
    return out[::-1]


def _lines(places: Sequence[list[tuple[float, float]]]) -> list[Markup]:
    """Draw the lines of all curves; the dashes of coinciding ones alternate."""
    segments = [[*pairwise(at)] for at in places]
    shared = Counter(segment for curve in segments for segment in curve)
    earlier: Counter[Segment] = Counter()
    out = []
    for rank, curve in enumerate(segments):
        for segment in curve:
            (x1, y1), (x2, y2) = segment
            out.append(line(x1, y1, x2, y2, _kind(rank), turn=(earlier[segment], shared[segment])))
            earlier[segment] += 1
    return out


def _points(
    drawn: Sequence[Curve],
    places: Sequence[list[tuple[float, float]]],
    up: Axis,
    *,
    spans: bool,
) -> list[Markup]:
    """Draw the points of all curves; coinciding ones are concentric rings."""
    left = Counter(point for at in places for point in at)
    out = []
    for rank, (curve, at) in enumerate(zip(drawn, places, strict=True)):
        for point, (x, y) in zip(curve.points, at, strict=True):
            left[x, y] -= 1
            span = ""
            if point.low is not None and point.high is not None:
                if spans:
                    out.append(line(x, up.at(point.low), x, up.at(point.high), "span"))
                span = f", 95% interval {point.low:.3g} to {point.high:.3g}"
            tip = f"{curve.name}, {point.x:.6g}: {point.y:.3g}{span}"
            out.append(dot(x, y, 2.5 + RING * left[x, y], f"point s{rank % COLOURS}", tip))
    return out


def _kind(rank: int) -> str:
    """Return the CSS class of a curve by its rank."""
    return f"curve s{rank % COLOURS}{' dashed' if rank >= COLOURS else ''}"


def _key(names: Sequence[str]) -> tuple[list[Markup], int]:
    """Draw the names of the curves side by side; return them and their number of lines."""
    out, x, n_lines = [], float(LEFT), 1
    for rank, name in enumerate(names):
        wide = SWATCH + width(name) + BETWEEN
        if x > LEFT and x + wide > RIGHT:
            x, n_lines = float(LEFT), n_lines + 1
        y = KEY + LINE * (n_lines - 1)
        out.append(line(x, y - 4, x + SWATCH - 4, y - 4, _kind(rank)))
        out.append(words(x + SWATCH, y, name, "strong", "start"))
        x += wide
    return out, n_lines
