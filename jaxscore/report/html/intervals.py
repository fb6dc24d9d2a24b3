"""Means with their 95% intervals: of groups side by side, and along curves."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from jaxscore.report.html.drawing import (
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
    short,
    words,
)

WIDTH = 420
PER_CHARACTER = 6  # the width of a letter
# Groups
GROUPS_RIGHT, GROUPS_TOP = 360, 10
TALL, ALL = 24, 160  # least height of a group, and height of few groups together
MOST = 16  # groups
# Curves
HEIGHT = 282
LEFT, RIGHT, TOP, BOTTOM = 52, 400, 12, 228
KEY = 276  # the height of the names' last line
LETTERS = "abcdefgh"  # that mark the ends of the curves; more curves are not drawn
LETTER = 10  # the height of one
FEW = 4  # curves; more have no lines of intervals, which would cover each other
COLOURS = 5  # of curves; further ones are dashed in the same colours
SWATCH = 14  # the width of a curve's colour before its name
APART = 5  # between the intervals of two curves at one place
BETWEEN = 16  # the width between two names
LINE = 14  # the height of a line of names


class Group(NamedTuple):
    """One mean.

    Attributes:
        low, high: of its 95% interval; None without one.
        shown: the mean as the Markdown has it.
        reference: value to compare with, or None.
        n: over how many it is.
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    shown: str
    n: int
    reference: float | None = None


def intervals(
    groups: Sequence[Group], *, title: str, label: str, what: str, reference: str = ""
) -> Markup | None:
    """One line per group, or None without groups. The first `MOST` are drawn.

    Args:
        label: of the means.
        what: that they are over, such as "questions".
        reference: what the groups' references are.
    """
    drawn = groups[:MOST]
    if not drawn:
        return None
    every = [v for g in drawn for v in (g.mean, g.low, g.high, g.reference) if v is not None]
    low, high = min(0.0, *every), max(0.0, *every)
    left = 24 + PER_CHARACTER * max(len(short(one.name)) for one in drawn)
    across = Axis(low, high if high > low else low + 1, left, GROUPS_RIGHT)
    tall = max(TALL, min(2 * TALL, ALL / len(drawn)))
    bottom = GROUPS_TOP + tall * len(drawn) + 4
    parts = [axis_below(across, bottom, label, GROUPS_TOP)]
    for k, one in enumerate(drawn):
        y = GROUPS_TOP + tall * (k + 0.5) + 2
        span = "" if one.low is None else f", 95% interval {one.low:.4g} to {one.high:.4g}"
        tip = f"{one.name}: {one.shown}{span}, {one.n} {what}"
        zero, x = across.at(0), across.at(one.mean)
        parts += [
            words(left - 8, y + 4, short(one.name), "strong", "end"),
            box(min(zero, x), y - 6, abs(x - zero), 12, "bar soft", tip),
            words(GROUPS_RIGHT + 8, y + 4, one.shown, "strong", "start"),
        ]
        if one.low is not None and one.high is not None:
            parts.append(line(across.at(one.low), y, across.at(one.high), y, "whisker"))
        if one.reference is not None:
            at = across.at(one.reference)
            parts.append(line(at, y - 9, at, y + 9, "mark"))
        parts.append(dot(x, y, 4, "point", tip))
    best = max(drawn, key=lambda one: one.mean)
    least = min(drawn, key=lambda one: one.mean)
    finding = (
        f"{len(drawn)} groups of {what}, from {least.shown} ({short(least.name)}) to "
        f"{best.shown} ({short(best.name)}). Lines are 95% intervals"
        f"{f', upright strokes {reference}' if reference else ''}."
    )
    return picture(title, finding, WIDTH, round(bottom) + 40, *parts)


class Point(NamedTuple):
    """One place of a curve; `low` to `high` is the 95% interval of y, None without one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Curve(NamedTuple):
    """Its points, x rising."""

    name: str
    points: Sequence[Point]


def curves(
    given: Sequence[Curve], *, title: str, x: str, y: str, log: bool = False
) -> Markup | None:
    """Curves, each with a colour, and a letter at its ends, which its name has below.

    None without a point. Intervals are lines for up to `FEW` curves, otherwise in the tips alone.

    Args:
        x, y: labels of the axes; y is a share, from 0 to 1.
        log: x goes by powers of ten, and is above 0.
    """
    drawn = [one for one in given if one.points][: len(LETTERS)]
    if not drawn:
        return None
    places = sorted({point.x for one in drawn for point in one.points})
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
    for k, one in enumerate(drawn):
        parts += _curve(one, across, up, (k - (len(drawn) - 1) / 2) * apart, k, spans=spans)
    parts += _letters([up.at(one.points[0].y) for one in drawn], LEFT + 6)
    parts += _letters([up.at(one.points[-1].y) for one in drawn], RIGHT + 6)
    names = [f"{letter}  {short(one.name)}" for letter, one in zip(LETTERS, drawn, strict=False)]
    key, n_lines = _key(names)
    ends = "; ".join(f"{short(one.name)} {one.points[-1].y:.3g}" for one in drawn)
    finding = f"{y} against {x}. At {places[-1]:.6g}: {ends}."
    return picture(title, finding, WIDTH, HEIGHT + LINE * (n_lines - 1), *parts, *key)


def has_spans(given: Sequence[Curve]) -> bool:
    """Whether the intervals of these curves are drawn as lines."""
    drawn = [one for one in given if one.points]
    known = any(point.low is not None for one in drawn for point in one.points)
    return known and len(drawn) <= FEW


def _ticks(places: Sequence[float], across: Axis) -> list[Markup]:
    """The places themselves where they have room, each a width of a number after the last."""
    out, end = [], -1.0
    for value in places:
        at, text = across.at(value), f"{value:.10g}" if value % 1 == 0 else f"{value:.3g}"
        if at - end >= PER_CHARACTER * (len(text) + 1):
            out += [line(at, BOTTOM, at, BOTTOM + 4, "rule"), words(at, BOTTOM + 14, text)]
            end = at
    return out


def _letters(ends: Sequence[float], x: float) -> list[Markup]:
    """The letters of the curves at x, each beside its curve's end or just above the next one."""
    out, lowest = [], BOTTOM + 4.0
    for y, k in sorted(((y, k) for k, y in enumerate(ends)), reverse=True):
        lowest = min(y + 3.5, lowest)
        out.append(words(x, lowest, LETTERS[k], "strong"))
        lowest -= LETTER
    return out


def _curve(
    one: Curve, across: Axis, up: Axis, aside: float, rank: int, *, spans: bool
) -> list[Markup]:
    at = [(across.at(point.x) + aside, up.at(point.y)) for point in one.points]
    out = [line(*here, *there, _kind(rank)) for here, there in pairwise(at)]
    for point, (x, y) in zip(one.points, at, strict=True):
        span = ""
        if point.low is not None and point.high is not None:
            if spans:
                out.append(line(x, up.at(point.low), x, up.at(point.high), "span"))
            span = f", 95% interval {point.low:.3g} to {point.high:.3g}"
        tip = f"{one.name}, {point.x:.6g}: {point.y:.3g}{span}"
        out.append(dot(x, y, 2.5, f"point s{rank % COLOURS}", tip))
    return out


def _kind(rank: int) -> str:
    """The class of a curve, by its place among the curves."""
    return f"curve s{rank % COLOURS}{' dashed' if rank >= COLOURS else ''}"


def _key(names: Sequence[str]) -> tuple[list[Markup], int]:
    """The names of the curves, side by side, and how many lines they take."""
    out, x, n_lines = [], LEFT, 1
    for rank, name in enumerate(names):
        wide = SWATCH + PER_CHARACTER * len(name) + BETWEEN
        if x > LEFT and x + wide > RIGHT:
            x, n_lines = LEFT, n_lines + 1
        y = KEY + LINE * (n_lines - 1)
        out.append(line(x, y - 4, x + SWATCH - 4, y - 4, _kind(rank)))
        out.append(words(x + SWATCH, y, name, "strong", "start"))
        x += wide
    return out, n_lines
