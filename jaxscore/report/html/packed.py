"""The items that a page has room for, as one compressed block: a JSON header, then arrays.

    uint32  bytes of the header, little-endian as everything
    header  JSON in ASCII, so that a half surrogate pair or U+2028 comes back as it was
    arrays  at the offsets in `arrays` of the header: name -> [type, offset, count]

Numbers of the table are text, as the Markdown has them. An int16 array has its low bytes first and
then its high ones, which compresses better. All of it is gzip in base64, in which no `<` occurs.
"""

import base64
import dataclasses
import gzip
import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxscore.report.counts import singular
from jaxscore.report.document import Column, Items, Row, n_listed
from jaxscore.report.html.strips import (
    MISSING,
    NOT_KNOWN,
    PER_NAT,
    RANK,
    Strips,
    TokenMetric,
    metric_header,
    scale_to_largest,
)

LEVEL = 6  # of gzip
MARKS = {True: "y", False: "n", None: "-"}


def packed(items: Items) -> str:
    """Return the block in base64; the same bytes for the same items."""
    arrays: dict[str, np.ndarray] = {}
    header: dict[str, Any] = {
        "what": items.units,
        "one": singular(items.units),
        "n": items.n,
        "nAll": items.n_all,
        "columns": [_column(column, f"c{k}", arrays) for k, column in enumerate(items.columns)],
        "fields": [{"title": field.title, "values": list(field.values)} for field in items.fields],
        "tables": [
            {
                "title": table.title,
                "header": list(table.header),
                "marked": table.marked,
                "items": [
                    [[list(row.cells), row.share, int(row.marked)] for row in rows]
                    for rows in table.items
                ],
            }
            for table in items.tables
        ],
        "textColumn": items.text_column,
        "errors": {str(index): error for index, error in sorted(items.errors.items())},
        "noise": "".join(MARKS[mark] for mark in items.within_noise),
        "strips": None if items.strips is None else _strips(items.strips, arrays),
    }
    return base64.b64encode(gzip.compress(_block(header, arrays), LEVEL, mtime=0)).decode()


def _block(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    parts, offset = [], 0
    offsets = header["arrays"] = {}
    for name, values in arrays.items():
        little = values.astype(values.dtype.newbyteorder("<"))
        halves = little.view(np.uint8).reshape(-1, 2).T if values.dtype == np.int16 else little
        raw = halves.tobytes()
        offsets[name] = [values.dtype.str[1:], offset, len(values)]
        parts.append(raw.ljust(-(-len(raw) // 4) * 4, b"\0"))
        offset += len(parts[-1])
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    text = text.ljust(-(-len(text) // 4) * 4)  # arrays begin where four bytes do
    return b"".join([struct.pack("<I", len(text)), text, *parts])


def _column(column: Column, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    out = {"title": column.title, "kind": column.column_type, "hint": column.hint}
    if column.column_type == "number":
        return out | {"values": "\n".join(column.values)}
    if column.column_type == "text":
        return out | {"values": list(column.values)}
    return out | {"values": _distinct(column.values, name, arrays), "array": name}


def _distinct(values: Sequence[str], name: str, arrays: dict[str, np.ndarray]) -> list[str]:
    """Return distinct values in order of first use, and store the index of each in `arrays`."""
    index: dict[str, int] = {}
    indices = [index.setdefault(value, len(index)) for value in values]
    arrays[name] = _small(np.array(indices, np.int64))
    return list(index)


def _small(values: Any) -> np.ndarray:
    """Convert whole numbers from 0 to the smallest unsigned type that holds them."""
    values = np.asarray(values)
    largest = int(values.max()) if len(values) else 0
    dtypes: Iterable[Any] = (np.uint8, np.uint16, np.uint32)
    return values.astype(next(dtype for dtype in dtypes if largest <= np.iinfo(dtype).max))


def _strips(strips: Strips, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    tokens = strips.tokens
    table = strips.table
    arrays["first"] = _small(np.diff(strips.first))
    arrays["length"] = _small(tokens.length)
    arrays["leftOut"] = _small(tokens.left_out)
    arrays["token"] = _small(table.index)
    if table.continues.any():
        arrays["continues"] = np.packbits(table.continues, bitorder="little")
    arrays["greedy"] = np.packbits(tokens.greedy == 1, bitorder="little")
    unsure = (tokens.greedy == NOT_KNOWN) & (tokens.numbers["logprob"] != MISSING)
    if unsure.any():
        arrays["unsure"] = np.packbits(unsure, bitorder="little")
    return {
        "ids": table.ids,
        "texts": table.texts,
        "titles": _distinct(strips.titles, "title", arrays),
        "contexts": _distinct(strips.contexts, "context", arrays),
        "shows": _metrics(strips, arrays),
    }


def _metrics(strips: Strips, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the metrics that tokens can be coloured by, without those that no token has."""
    tokens, headers = strips.tokens, []
    arrays["logprob"] = tokens.numbers["logprob"]  # also says which tokens have numbers
    stored: list[tuple[TokenMetric, np.ndarray, float]] = [
        (metric, *scale_to_largest(tokens.more[metric.key]))
        for metric in strips.metrics
        if tokens.more
    ]
    stored += [
        (metric, tokens.numbers[metric.key], float(PER_NAT)) for metric in strips.token_metrics
    ]
    for metric, values, per in stored:
        if metric.key == "logprob" or (values != MISSING).any():
            arrays[metric.key] = values
            headers.append(metric_header(metric, values, per, strips.vocabulary))
    if tokens.rank.any():
        arrays["rank"] = _small(tokens.rank)
        headers.append(metric_header(RANK, tokens.rank, 1.0, strips.vocabulary))
    return headers


TOKENS = 1_000_000  # of all strips, from the first item on
CHARACTERS = 20_000_000  # of the texts and tables of items, from the first item on
LONGEST, SHORT = 20_000, 300  # characters of a text, and of a text beyond `CHARACTERS`


def embedded(items: Items) -> Items:
    """Return the items that a page has room for, in their order."""
    n = min(items.n, n_listed(items.n + items.n_beyond))
    strips = items.strips
    if strips is not None:
        strips = _embedded_strips(strips, n)
    texts = _TextBudget()
    fields: list[list[str]] = [[] for _ in items.fields]
    tables: list[list[list[Row]]] = [[] for _ in items.tables]
    for k in range(n):  # item by item, so that the worst ones keep their texts
        for field, values in zip(items.fields, fields, strict=True):
            values.append(texts.shorten(field.values[k]))
        for table, rows in zip(items.tables, tables, strict=True):
            rows.append([texts.shorten_row(row) for row in table.items[k]])
    return dataclasses.replace(
        items,
        columns=[
            dataclasses.replace(
                column, values=[shorten(value, LONGEST) for value in column.values[:n]]
            )
            for column in items.columns
        ],
        fields=[
            dataclasses.replace(field, values=values)
            for field, values in zip(items.fields, fields, strict=True)
        ],
        tables=[
            dataclasses.replace(table, items=rows)
            for table, rows in zip(items.tables, tables, strict=True)
        ],
        strips=strips,
        errors={index: error for index, error in items.errors.items() if index < n},
        within_noise=items.within_noise[:n],
    )


def shorten(text: str, longest: int) -> str:
    """Return the beginning of a text, and the number of characters left out."""
    rest = len(text) - longest
    return text if rest <= 0 else f"{text[:longest]} … ({rest} more characters)"


class _TextBudget:
    """Shortens texts once they have `CHARACTERS` together."""

    def __init__(self) -> None:
        self.n_characters = 0

    def shorten(self, text: str) -> str:
        shortened = shorten(text, LONGEST if self.n_characters < CHARACTERS else SHORT)
        self.n_characters += len(shortened)
        return shortened

    def shorten_row(self, row: Row) -> Row:
        return row._replace(cells=[self.shorten(cell) for cell in row.cells])


def _embedded_strips(strips: Strips, n: int) -> Strips:
    first = strips.first[: n + 1]
    last = int(first[-1])
    tokens = strips.tokens.take(np.arange(last)) if last < len(strips.titles) else strips.tokens
    fitting = int(np.searchsorted(np.cumsum(tokens.length), TOKENS, "right"))
    if fitting < last:
        tokens = tokens.first(fitting)
    return dataclasses.replace(
        strips,
        first=first,
        titles=[shorten(title, SHORT) for title in strips.titles[:last]],
        contexts=strips.contexts[:last],
        tokens=tokens,
    )
