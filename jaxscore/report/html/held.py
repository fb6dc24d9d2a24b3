"""What a page holds of a run with many items, or with long texts: the worst items, cut."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxscore.report.document import Field, Items, Row, Rows
from jaxscore.report.html.strips import Strips

MOST, HELD = 100_000, 50_000  # of more items than the first number, the second is held
TOKENS = 1_000_000  # of all strips, from the first item on
CHARACTERS = 20_000_000  # of the texts and tables of items, likewise
LONGEST, SHORT = 20_000, 300  # characters of a text, and of one beyond `CHARACTERS`


def held(items: Items) -> Items:
    """The items that a page has room for, in their order."""
    n = items.n if items.n <= MOST else HELD
    strips = items.strips
    if strips is not None:
        strips = _strips(strips, n)
    texts = _Texts()
    fields: list[list[str]] = [[] for _ in items.fields]
    tables: list[list[list[Row]]] = [[] for _ in items.tables]
    for k in range(n):  # item by item, so that the worst ones have their texts
        for field, values in zip(items.fields, fields, strict=True):
            values.append(texts.cut(field.values[k]))
        for table, rows in zip(items.tables, tables, strict=True):
            rows.append([texts.cut_row(row) for row in table.items[k]])
    return dataclasses.replace(
        items,
        columns=[dataclasses.replace(one, values=_columns(one.values, n)) for one in items.columns],
        fields=[Field(one.title, values) for one, values in zip(items.fields, fields, strict=True)],
        tables=[
            Rows(one.title, one.header, one.marked, rows)
            for one, rows in zip(items.tables, tables, strict=True)
        ],
        strips=strips,
        errors={place: why for place, why in items.errors.items() if place < n},
        within_noise=items.within_noise[:n],
    )


def cut(text: str, longest: int) -> str:
    """The beginning of a text, and how much of it is left out."""
    rest = len(text) - longest
    return text if rest <= 0 else f"{text[:longest]} … ({rest} more characters)"


class _Texts:
    """Counts the characters that are held."""

    def __init__(self) -> None:
        self.n = 0

    def cut(self, text: str) -> str:
        shown = cut(text, LONGEST if self.n < CHARACTERS else SHORT)
        self.n += len(shown)
        return shown

    def cut_row(self, row: Row) -> Row:
        return row._replace(cells=[self.cut(cell) for cell in row.cells])


def _columns(values: Sequence[str], n: int) -> list[str]:
    return [one if len(one) <= LONGEST else cut(one, LONGEST) for one in values[:n]]


def _strips(strips: Strips, n: int) -> Strips:
    first = strips.first[: n + 1]
    last = int(first[-1])
    tokens = strips.tokens.take(np.arange(last)) if last < len(strips.titles) else strips.tokens
    fitting = int(np.searchsorted(np.cumsum(tokens.length), TOKENS, "right"))
    if fitting < last:
        tokens = tokens.first(fitting)
    return dataclasses.replace(
        strips,
        first=first,
        titles=[cut(title, SHORT) for title in strips.titles[:last]],
        contexts=strips.contexts[:last],
        tokens=tokens,
    )
