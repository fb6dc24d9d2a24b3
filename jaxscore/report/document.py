"""Contents of a report's page, as data: a module per system builds it, `frame.render` draws it.

Texts are plain: drawing escapes them, and shows unprintable characters by their numbers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.html.strips import Strips
from jaxscore.types.results import Strip

ColumnType = Literal["text", "number", "category", "flag", "token"]


@dataclasses.dataclass(frozen=True)
class Card:
    """One number of the summary.

    Attributes:
        value: the number with three significant digits.
        note: the lines below it: its interval, and the number of items.
        estimate: the exact number, which the Markdown has with six digits; None for a count or a
            text.
    """

    title: str
    value: str
    note: str = ""
    estimate: Estimate | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: the heading.
        svg: the picture of a function such as `html.histogram`.
        caption: the explanation of the picture, and of data that it leaves out.
    """

    title: str
    svg: Markup
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of the table of items.

    Attributes:
        title: the heading.
        column_type: "text", "number" (shown with three significant digits), "category" (few
            values, which the page can filter by), "flag" ("yes" or "no") or "token" (spaces are
            visible).
        values: the displayed values, one per item; `markdown.NOTHING` for a missing one.
        hint: the explanation of the heading.
    """

    title: str
    column_type: ColumnType
    values: Sequence[str]
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class Field:
    """A text of each item that its panel shows in full.

    Attributes:
        values: the texts, one per item; empty ones are not shown.
    """

    title: str
    values: Sequence[str]


class Row(NamedTuple):
    """One row of an item's table in its panel, such as an answer.

    Attributes:
        cells: the cells, the first of which is a text.
        share: the length of a bar, 0 to 1; None without one.
        marked: True for the right row.
    """

    cells: Sequence[str]
    share: float | None = None
    marked: bool = False


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table in the panel of each item.

    Attributes:
        header: the headings of the cells.
        marked: the description of a marked row, such as "right".
        items: the rows of each item.
    """

    title: str
    header: Sequence[str]
    marked: str
    items: Sequence[Sequence[Row]]


@dataclasses.dataclass(frozen=True)
class Items:
    """The items of a run, in the order of its report: worst first.

    Attributes:
        units: the name of the items, such as "questions".
        order: the order in words, such as "least gain first".
        n_all: the number of the run's items; larger than `n` if the run has too many to embed.
        columns: the columns, the first of which names an item.
        fields, tables, strips: the contents of an item's panel.
        errors: index of an item -> the reason that it could not be evaluated.
        text_column: the heading of a column with the text of each item's only strip; none if empty.
        within_noise: True if rounding could change the item's decision, None if unknown; empty
            without an audit.
        n_beyond: the number of items after these, for which pages have no room.
    """

    units: str
    order: str
    n_all: int
    columns: Sequence[Column]
    fields: Sequence[Field] = ()
    tables: Sequence[Rows] = ()
    strips: Strips | None = None
    errors: Mapping[int, str] = dataclasses.field(default_factory=dict)
    text_column: str = ""
    within_noise: Sequence[bool | None] = ()
    n_beyond: int = 0

    @property
    def n(self) -> int:
        """The number of listed items."""
        return len(self.columns[0].values)


MOST, EMBEDDED = 100_000, 50_000  # of more items than the first number, so many are on a page


def n_listed(n: int) -> int:
    """Return the number of n items that a page has room for."""
    return n if n <= MOST else EMBEDDED


@dataclasses.dataclass(frozen=True)
class Section:
    """A part below the items, folded unless it is `opened`.

    Attributes:
        blocks: the Markdown blocks, see `html.frame.blocks`.
    """

    title: str
    blocks: Sequence[str]
    opened: bool = False


@dataclasses.dataclass(frozen=True)
class Document:
    """One page.

    Attributes:
        system: the command, such as "paths".
        title: the heading.
        verdict: the result in one sentence.
        about: the explanation of the numbers, as Markdown blocks.
        items: the items, or None if the run lacks a table of items.
    """

    system: str
    title: str
    verdict: str
    cards: Sequence[Card]
    charts: Sequence[Chart]
    items: Items | None
    sections: Sequence[Section]
    about: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """A finished run.

    Attributes:
        system: the command.
        record: the contents of its JSON file, with `Estimate`s as objects.
        headline: the result in one line.
        n_items: the number of items, failed ones included.
        strips: the strips of each item of the record; empty if tokens are unknown.
        vocabulary: the columns of the model's distribution; None if unknown.
        results: the records, one per item, if the evaluation keeps them.
        items: the page's data of items that were streamed and so are not in the record, or None.
    """

    system: str
    record: Mapping[str, Any]
    headline: str
    n_items: int
    strips: Sequence[Sequence[Strip]] = ()
    vocabulary: int | None = None
    results: Sequence[Mapping[str, Any]] = ()
    items: Any = None
