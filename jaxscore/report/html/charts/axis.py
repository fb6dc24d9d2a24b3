"""Axes: where a number stands in a picture, and which numbers are written beside it."""

import dataclasses
import math
from collections.abc import Iterator

from markupsafe import Markup

from jaxscore.report.html.charts.drawing import line, words

TWOFOLD = 3  # a logarithmic axis that spans less has the ticks of a plain one
FEW = 2  # powers of ten, beside which other ticks have room
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def step(span: float, most: int) -> float:
    """The least of 1, 2 and 5 times a power of ten of which `most` cover the span."""
    least = span / most
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


@dataclasses.dataclass(frozen=True)
class Axis:
    """From `low` at the place `start` to `high` at the place `end`.

    Attributes:
        log: by powers of ten.
        whole: of whole numbers, which have no ticks between them.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """The place of a number; one beyond the axis stands at its end."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 5) -> Iterator[tuple[float, str]]:
        """(number, its text), about `most` of them."""
        if self.log and self.high / self.low >= TWOFOLD:
            yield from self._log_ticks(most)
            return
        apart = step(self.high - self.low, most)
        apart = max(1.0, apart) if self.whole else apart
        first = math.ceil(self.low / apart - 1e-9)
        for k in range(first, math.floor(self.high / apart + 1e-9) + 1):
            yield k * apart, f"{k * apart:.10g}"

    def _log_ticks(self, most: int) -> Iterator[tuple[float, str]]:
        """Powers of ten, and where these are few their double and their fivefold too."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1,) if last - first > FEW else (1, 2, 5)
        apart = max(1, math.ceil((last - first - 1) / most))
        for power in range(first, last + 1, apart):
            for factor in factors:
                value = factor * 10.0**power
                if self.low <= value <= self.high and not (self.whole and value % 1):
                    tall = not -3 <= power <= 4
                    yield value, f"10{str(power).translate(RAISED)}" if tall else f"{value:g}"


def below(axis: Axis, y: float, title: str, upper: float | None = None) -> Markup:
    """An axis from left to right at the height y; lines of a grid go up to `upper`."""
    parts = [line(axis.start, y, axis.end, y, "rule")]
    for value, text in axis.ticks():
        x = axis.at(value)
        parts += [line(x, y, x, y + 4, "rule"), words(x, y + 15, text)]
        if upper is not None:
            parts.append(line(x, y, x, upper, "grid"))
    parts.append(words((axis.start + axis.end) / 2, y + 31, title, "name"))
    return Markup("").join(parts)


def beside(axis: Axis, x: float, title: str, right: float | None = None) -> Markup:
    """An axis from below to above at x; lines of a grid go to `right`."""
    parts = []
    for value, text in axis.ticks(4):
        y = axis.at(value)
        parts.append(words(x - 6, y + 3.5, text, anchor="end"))
        if right is not None:
            parts.append(line(x, y, right, y, "grid"))
    parts.append(words(12, (axis.start + axis.end) / 2, title, "name", turn=True))
    return Markup("").join(parts)
