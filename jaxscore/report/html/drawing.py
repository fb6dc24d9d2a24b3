"""Parts of a picture: shapes, texts and axes. Lengths are in the units of its view box."""

import dataclasses
import functools
import itertools
import math
import unicodedata
from collections.abc import Iterator

from markupsafe import Markup

from jaxscore.report.html.frame import visible

LONGEST = 170  # the width of a user's text in a picture
DASH = 6  # the length of a dash
EDGE = 9  # the width right of an axis that a tick's text may take
LONGEST_TICK = 6  # characters
GAP = 4  # the width between two ticks' texts
TWOFOLD = 3  # a logarithmic axis that spans less has the ticks of a plain one
FEW = 2  # powers of ten, between which other ticks have room
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def picture(title: str, finding: str, width: int, height: int, *parts: Markup) -> Markup:
    """Return the picture; `finding` describes it in words."""
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(width, height, visible(title), visible(finding), Markup("").join(parts))


def width(text: str) -> float:
    """Return the width of a text in a picture's font, or a little more."""
    return sum(map(_width, text))


@functools.cache
def _width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 12
    if unicodedata.combining(character):
        return 0
    if character in ".,:;'il|! ":
        return 4
    return 10 if character in "mwMW@%—…" else 8 if character.isupper() else 6.5


def short(text: str) -> str:
    """Shorten a user's text to fit next to a picture."""
    line = visible(" ".join(text.split()))
    if width(line) <= LONGEST:
        return line
    ends = itertools.accumulate(map(_width, line))
    return f"{line[: sum(end <= LONGEST - 10 for end in ends)]}…"


def size(value: float) -> str:
    """Format a length with one decimal, the same on every machine."""
    rounded = f"{value:.1f}"
    return "0" if rounded == "-0.0" else rounded.removesuffix(".0")


def words(
    x: float,
    y: float,
    value: str,
    css_class: str = "axis",
    anchor: str = "middle",
    turn: bool = False,
) -> Markup:
    """Return a line of text; `turn` lets it run upwards."""
    turned = Markup(' transform="rotate(-90 {} {})"').format(size(x), size(y)) if turn else ""
    return Markup('<text x="{}" y="{}" class="{}" text-anchor="{}"{}>{}</text>').format(
        size(x), size(y), css_class, anchor, turned, value
    )


def line(
    x1: float, y1: float, x2: float, y2: float, css_class: str, turn: tuple[int, int] = (0, 1)
) -> Markup:
    """Return a line; `turn` (k, n): the kth of n coinciding lines, whose dashes alternate."""
    k, n = turn
    dashes = Markup("")
    if n > 1:
        dashes = Markup(' style="stroke-dasharray:{} {};stroke-dashoffset:{}"').format(
            DASH, DASH * (n - 1), -DASH * k
        )
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"{}/>').format(
        *map(size, (x1, y1, x2, y2)), css_class, dashes
    )


def _tip(tip: str) -> Markup:
    return Markup("<title>{}</title>").format(visible(tip)) if tip else Markup("")


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    css_class: str,
    tip: str = "",
    amount: float = 1.0,
) -> Markup:
    """Return a bar, with its numbers as a tip; `amount`, 0 to 1, is its opacity."""
    faint = Markup("") if amount >= 1 else Markup(' fill-opacity="{:.2f}"').format(amount)
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"{}>{}</rect>').format(
        *map(size, (x, y, max(0.0, width), max(0.0, height))), css_class, faint, _tip(tip)
    )


def dot(x: float, y: float, radius: float, css_class: str, tip: str = "") -> Markup:
    """Return a point, with its numbers as a tip."""
    return Markup('<circle cx="{}" cy="{}" r="{}" class="{}">{}</circle>').format(
        *map(size, (x, y, radius)), css_class, _tip(tip)
    )


def step(span: float, n_steps: int) -> float:
    """Return the smallest step, 1, 2 or 5 times a power of ten, for `n_steps` to cover a span."""
    least = max(span / n_steps, 1e-300)  # the smallest floats underflow
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


@dataclasses.dataclass(frozen=True)
class Axis:
    """A scale from `low` at the coordinate `start` to `high` at the coordinate `end`.

    Attributes:
        log: True for a logarithmic scale.
        is_integer: True for whole numbers, without ticks between them.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    is_integer: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a number; one beyond the axis is at its end."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, n_ticks: int = 5) -> Iterator[tuple[float, str]]:
        """Yield about `n_ticks` ticks as (number, its text)."""
        if self.log and self.high / self.low >= TWOFOLD:
            yield from self._log_ticks(n_ticks)
            return
        apart = step(self.high - self.low, n_ticks)
        apart = max(1.0, apart) if self.is_integer else apart
        first = math.ceil(self.low / apart - 1e-9)
        for k in range(first, math.floor(self.high / apart + 1e-9) + 1):
            yield k * apart, tick_text(k * apart)

    def _log_ticks(self, n_ticks: int) -> Iterator[tuple[float, str]]:
        """Yield powers of ten, and if these are few also 2 and 5 times them."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1,) if last - first > FEW else (1, 2, 5)
        apart = max(1, math.ceil((last - first - 1) / n_ticks))
        for power in range(first, last + 1, apart):
            for factor in factors:
                value = factor * 10.0**power
                if self.low <= value <= self.high and not (self.is_integer and value % 1):
                    tall = not -3 <= power <= 4
                    yield value, f"10{str(power).translate(RAISED)}" if tall else f"{value:g}"


def tick_text(value: float) -> str:
    """Return a tick's number, as a power of ten if it has many digits."""
    text = f"{value:.10g}"
    if len(text) <= LONGEST_TICK:
        return text
    digits, power = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(power)}"


def axis_below(axis: Axis, y: float, title: str, upper: float | None = None) -> Markup:
    """Draw a horizontal axis at the height y, with its ticks; grid lines go up to `upper`."""
    parts, end = [line(axis.start, y, axis.end, y, "rule")], -math.inf
    for value, text in axis.ticks():
        x, half = axis.at(value), width(text) / 2
        middle = min(x, axis.end + EDGE - half)
        parts.append(line(x, y, x, y + 4, "rule"))
        if middle - half > end:
            parts.append(words(middle, y + 15, text))
            end = middle + half + GAP
        if upper is not None:
            parts.append(line(x, y, x, upper, "grid"))
    parts.append(words((axis.start + axis.end) / 2, y + 31, title, "name"))
    return Markup("").join(parts)


def axis_beside(axis: Axis, x: float, title: str, right: float | None = None) -> Markup:
    """Draw a vertical axis at x, with its ticks; grid lines go to `right`."""
    parts = []
    for value, text in axis.ticks(4):
        y = axis.at(value)
        parts.append(words(x - 6, y + 3.5, text, anchor="end"))
        if right is not None:
            parts.append(line(x, y, right, y, "grid"))
    parts.append(words(12, (axis.start + axis.end) / 2, title, "name", turn=True))
    return Markup("").join(parts)
