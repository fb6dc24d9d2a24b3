"""Report of `compare --bytes`: classes of characters, and spans coloured by the better run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.report.document import Chart, Column, Items, Section
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.strips import Strips, TokenMetric, TokenText, tokens
from jaxscore.report.markdown import interval, significant, table, text
from jaxscore.report.slices import SHOWN
from jaxscore.systems.compare.by_bytes import SPAN
from jaxscore.types.token_texts import byte_of

CHARTED = 12  # classes with the most bytes
METRICS = (  # of the parts of a span
    TokenMetric("difference", "B - A", "bits per byte", 0, scaled=True),
    TokenMetric("a", "A", "bits per byte", scaled=True),
    TokenMetric("b", "B", "bits per byte", scaled=True),
)
CLASSES = "Bits per byte by class of character"
HEADER = ("Bytes", "A", "B", "B - A", "95% interval")  # of the cells of a class
INTRODUCTION = f"""\
Bits per byte do not depend on the tokenizer: the bits of a token are spread evenly over its UTF-8
bytes, and means are over the bytes of all texts. A byte has the class of its character. Intervals
resample texts. A byte that a run did not score counts as 0 bits in the numbers of all bytes, and
is left out elsewhere. Spans have {SPAN} bytes that both runs scored; B is better where the
difference is below 0 (underlined on the page)."""


def class_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Return the table of classes, most bytes first."""
    return _section(CLASSES, "class", rows)


def slice_sections(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Section]:
    """Yield the table of each field: its values with the most bytes; the JSON file has all."""
    for field, rows in by.items():
        cut = f": {SHOWN} of {len(rows):,} values" if len(rows) > SHOWN else ""
        yield _section(f"Bits per byte by {field}{cut}", "value", rows[:SHOWN])


def _section(title: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Section:
    lines = [[text(row[name]), *cells(row)] for row in rows]
    return Section(title, [table([name.capitalize(), *HEADER], lines)], True)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return bytes, means, difference and interval of a class."""
    difference = row["difference"]
    numbers = (significant(value) for value in (row["mean_a"], row["mean_b"], difference.mean))
    return [f"{row['n_bytes']:,}", *numbers, interval(difference.low, difference.high)]


def class_charts(rows: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """Return the differences by class on one scale."""
    named = [(row["class"], row["difference"], None) for row in rows[:CHARTED]]
    yield from means(f"{CLASSES}, B - A", named, "texts", label="B - A")


def span_items(spans: Sequence[Mapping[str, Any]]) -> Items:
    """Return the spans, each with a strip of its parts."""
    values = [[significant(span[name]) for span in spans] for name in ("a", "b", "difference")]
    titles = ("A, bits per byte", "B, bits per byte", "B - A")
    return Items(
        units="spans",
        order="largest difference per byte first",
        n_all=len(spans),
        columns=[
            Column("Span", "text", [span["text"] for span in spans]),
            Column("Text", "text", [span["name"] for span in spans]),
            Column("First byte", "number", [str(span["start"]) for span in spans]),
            *(Column(title, "number", each) for title, each in zip(titles, values, strict=True)),
        ],
        strips=_strips(spans),
    )


def _strips(spans: Sequence[Mapping[str, Any]]) -> Strips:
    names: dict[int, str] = {}
    return Strips(
        first=np.arange(len(spans) + 1),
        titles=[""] * len(spans),
        contexts=[span["before"] for span in spans],
        tokens=tokens([_parts(span["parts"]) for span in spans], names),
        names=names,
        vocabulary=None,
        metrics=METRICS,
        token_metrics=(),
    )


def _parts(parts: Sequence[Mapping[str, Any]]) -> TokenText:
    """Return the parts of a span as tokens of a byte-level vocabulary, without ids."""
    letters = {byte: letter for letter, byte in byte_of().items()}
    numbers = {
        metric.key: np.array([piece[metric.key] for piece in parts], np.float32)
        for metric in METRICS
    }
    unknown = np.full(len(parts), math.nan, np.float32)
    return TokenText(
        np.full(len(parts), -1),
        ["".join(letters[byte] for byte in piece["text"].encode()) for piece in parts],
        numbers["difference"],
        unknown,
        unknown,
        unknown,
        more=numbers,
    )
