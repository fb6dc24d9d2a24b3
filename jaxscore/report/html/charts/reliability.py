"""Do things that are given probability p happen in a share p of the cases?"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from jaxscore.report.html.charts.drawing import (
    Axis,
    axis_below,
    axis_beside,
    box,
    dot,
    line,
    picture,
    words,
)
from jaxscore.report.markdown import number

WIDTH, HEIGHT = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 410, 12, 226
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
