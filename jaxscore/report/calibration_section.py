"""The section on calibration: what is given a probability, and how often it is true."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report.markdown import NOTHING, number, table


def section(calibration: Mapping[str, Any], events: str) -> list[str]:
    """Markdown blocks of a reliability table and its expected error.

    Args:
        calibration: `ece` and `bins`.
        events: what is true or not, such as "answers".
    """
    found = calibration["bins"]
    return [
        "## Calibration",
        f"Expected calibration error {number(calibration['ece'])}, over {len(found)} bins of equal "
        f"width with all {events} of all questions as events that are true or not. Where a model "
        "is calibrated, mean probability and share correct are equal in every bin.",
        bins(found, events),
    ]


def bins(found: Sequence[Mapping[str, Any]], events: str) -> str:
    """The reliability table."""
    rows = []
    for one in found:
        p, share = one["mean_probability"], one["frequency"]
        rows.append(
            [
                f"{one['low']:.1f} to {one['high']:.1f}",
                str(one["n"]),
                number(p, 4),
                number(share, 4),
                NOTHING if p is None else f"{share - p:+.4f}",
            ]
        )
    header = ["Probability", events.capitalize(), "Mean probability", "Share correct", "Difference"]
    return table(header, rows)
