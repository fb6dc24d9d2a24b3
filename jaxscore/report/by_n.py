"""Shares of right choices by N and way of choosing."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.markdown import NOTHING, interval, number, table, text


def table_by_n(rows: Sequence[Mapping[str, Any]], field: str) -> str:
    """One row per N, one column per way of choosing.

    Args:
        rows: `way`, `best_n`, `n_with_fewer` and estimates, as `tasks/samples/grading.py` has them.
        field: the estimate that is shown.
    """
    ways = list(dict.fromkeys(row["way"] for row in rows if row[field] is not None))
    found = {(row["best_n"], row["way"]): row for row in rows}
    lines = []
    for n in dict.fromkeys(row["best_n"] for row in rows):
        fewer = next(row["n_with_fewer"] for row in rows if row["best_n"] == n)
        cells = [_cell(found[n, way][field]) if (n, way) in found else NOTHING for way in ways]
        lines.append([str(n), str(fewer), *cells])
    return table(["N", "Items with fewer", *map(text, ways)], lines, left=0)


def _cell(one: Estimate) -> str:
    return f"{number(one.mean, 4)} ({interval(one.low, one.high)})"
