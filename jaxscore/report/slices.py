"""Tables and charts of slices: the means for each value of a field (`--by`)."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.document import Chart, Document, Section
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.intervals import MOST
from jaxscore.report.markdown import NOTHING, aligned, significant, table, text

SHOWN = 50  # values in a table
PRINTED = 20  # values on a terminal
LONGEST = 24  # characters of a value there
HOW = (
    "A mean per token, byte or word is over those of all {items} with the value together (micro). "
    "The last line is the mean over the values, each counted once (macro). Intervals are 95%: of "
    "shares Wilson's, of others bootstrap intervals that resample {items}."
)


class Titles(NamedTuple):
    """Displayed names.

    Attributes:
        items: the items, in the plural.
        counts: titles of the counts in a table.
        means: titles of the means in a table, the main ones first.
    """

    items: str
    counts: Mapping[str, str]
    means: Mapping[str, str]


def with_slices(document: Document, slices: Mapping[str, Any], titles: Titles) -> Document:
    """Return a report with a chart and a table for each field.

    Args:
        slices: see `shell.slices.slices_of`.
    """
    charts = [
        chart for field, numbers in slices.items() for chart in _charts(field, numbers, titles)
    ]
    tables = [_section(field, numbers, titles) for field, numbers in slices.items()]
    return dataclasses.replace(
        document,
        charts=[*document.charts, *charts],
        sections=[*tables, *document.sections],
    )


def lines(slices: Mapping[str, Any], titles: Titles) -> Iterator[str]:
    """Yield a table of the main mean for each field, for a terminal."""
    for field, numbers in slices.items():
        rows = _rows(field, numbers, titles, _names(numbers, titles)[:1], PRINTED)
        cut = [
            [name if len(name) <= LONGEST else f"{name[:LONGEST]}…", *row] for name, *row in rows
        ]
        yield from aligned(cut).splitlines()
        if (n := len(numbers["values"]) - PRINTED) > 0:
            yield f"and {n:,} more values of {field}"


def _names(numbers: Mapping[str, Any], titles: Titles) -> list[str]:
    """Return the names of the means that a table has."""
    return [name for name in numbers["macro"] if name in titles.means]


def _rows(
    field: str, numbers: Mapping[str, Any], titles: Titles, names: Sequence[str], n_values: int
) -> list[list[str]]:
    """Return the head, a row for each of the first values, one for all items and the macro means.

    Args:
        names: means.
        n_values: largest number of values.
    """

    def row(value: str, of_value: Mapping[str, Any]) -> list[str]:
        counts = (f"{of_value[name]:,}" for name in ("n_items", *titles.counts))
        return [value, *counts, *(_cell(of_value[name]) for name in names)]

    values = [*numbers["values"].items()][:n_values]
    return [
        [
            field,
            *map(str.capitalize, (titles.items, *titles.counts.values())),
            *(titles.means[name] for name in names),
        ],
        *(row(value, of_value) for value, of_value in values),
        row(f"All {titles.items}", numbers["all"]),
        [
            "Mean of the values",
            *[NOTHING] * (1 + len(titles.counts)),
            *(significant(numbers["macro"][name]) for name in names),
        ],
    ]


def _cell(mean: Estimate) -> str:
    """Return a mean with its interval, such as `0.12 (0.1 to 0.2)`."""
    if mean.low is None or mean.high is None:
        return significant(mean.mean)
    return f"{significant(mean.mean)} ({significant(mean.low, 3)} to {significant(mean.high, 3)})"


def _section(field: str, numbers: Mapping[str, Any], titles: Titles) -> Section:
    head, *rows = _rows(field, numbers, titles, _names(numbers, titles), SHOWN)
    names = [text(name) for name, *_ in rows]
    names[-2:] = [f"**{name}**" for name in names[-2:]]
    n = len(numbers["values"])
    left_out = f": {SHOWN} of {n:,} values, those of most {titles.items}" if n > SHOWN else ""
    return Section(
        f"By {field}{left_out}",
        [
            table(
                [text(field), *head[1:]],
                [[name, *row[1:]] for name, row in zip(names, rows, strict=True)],
            ),
            HOW.format(items=titles.items),
        ],
        opened=True,
    )


def _charts(field: str, numbers: Mapping[str, Any], titles: Titles) -> list[Chart]:
    """Return a chart of the main mean, or nothing without one."""
    name = next(iter(_names(numbers, titles)), None)
    if name is None or not math.isfinite(overall := numbers["all"][name].mean):
        return []
    named = [
        (value, mean, overall)
        for value, of_value in numbers["values"].items()
        if (mean := of_value[name]).mean is not None
    ]
    charts = means(
        f"{titles.means[name]}, by {field}",
        named[:MOST],
        titles.items,
        label=titles.means[name],
        reference=f"are the mean over all {titles.items}",
    )
    left_out = f" The {MOST} values of most {titles.items}." if len(named) > MOST else ""
    return [dataclasses.replace(chart, caption=f"{chart.caption}{left_out}") for chart in charts]
