"""Means of groups with their intervals."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from jaxscore.report.html.drawing import (
    Axis,
    axis_below,
    box,
    dot,
    line,
    picture,
    short,
    words,
)

WIDTH, RIGHT, TOP = 420, 360, 10
TALL, ALL = 24, 160  # least height of a group, and height of few groups together
PER_CHARACTER = 6  # the width of a letter
MOST = 16  # groups


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
    across = Axis(low, high if high > low else low + 1, left, RIGHT)
    tall = max(TALL, min(2 * TALL, ALL / len(drawn)))
    bottom = TOP + tall * len(drawn) + 4
    parts = [axis_below(across, bottom, label, TOP)]
    for k, one in enumerate(drawn):
        y = TOP + tall * (k + 0.5) + 2
        span = "" if one.low is None else f", 95% interval {one.low:.4g} to {one.high:.4g}"
        tip = f"{one.name}: {one.shown}{span}, {one.n} {what}"
        zero, x = across.at(0), across.at(one.mean)
        parts += [
            words(left - 8, y + 4, short(one.name), "strong", "end"),
            box(min(zero, x), y - 6, abs(x - zero), 12, "bar soft", tip),
            words(RIGHT + 8, y + 4, one.shown, "strong", "start"),
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
