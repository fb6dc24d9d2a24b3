"""What a page in a browser shows, as data: a module per system makes it, `frame.render` draws it.

Every text is plain: what is drawn is escaped there, and what does not print is shown by its number.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.html.strips import Strips
from jaxscore.types.results import Strip

Kind = Literal["text", "number", "category", "flag", "token"]


@dataclasses.dataclass(frozen=True)
class Card:
    """One number of the summary.

    Attributes:
        value: three significant digits.
        note: lines below it: its interval, and over how many items it is.
        estimate: the whole number, which the Markdown gives with six digits; None for a count or
            a text.
    """

    title: str
    value: str
    note: str = ""
    estimate: Estimate | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        title: what it shows.
        svg: as `html.histogram` and the like draw it.
        caption: how it is read, and what it leaves out.
    """

    title: str
    svg: Markup
    caption: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of the table of items.

    Attributes:
        title: its head.
        kind: "text", "number" (shown with three significant digits), "category" (few values, which
            the page can filter by), "flag" ("yes" or "no") or "token" (blanks are visible).
        values: one per item, as they are shown; `markdown.NOTHING` for a missing value.
        hint: what it means, for its head.
    """

    title: str
    kind: Kind
    values: Sequence[str]
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class Field:
    """A text of each item that its panel shows whole.

    Attributes:
        values: one per item; an empty one is not shown.
    """

    title: str
    values: Sequence[str]


class Row(NamedTuple):
    """One row of an item's table in its panel, such as an answer.

    Attributes:
        cells: the first one is a text.
        share: 0 to 1, drawn as a bar; None without one.
        marked: whether it is the right one.
    """

    cells: Sequence[str]
    share: float | None = None
    marked: bool = False


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table in the panel of each item.

    Attributes:
        header: of the cells.
        marked: what a marked row is, such as "right".
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
        what: their name, such as "questions".
        order: what is first, in words, such as "least gain first".
        n_all: of the run; larger than `n` if the run has too many to embed.
        columns: the first one names an item.
        fields, tables, strips: what an item's panel shows.
        errors: place of an item -> why it could not be evaluated.
        text_column: the head of a column with the text of each item's only strip; none if empty.
        within_noise: whether rounding could change its decision, None if unknown;
            empty without an audit.
        n_beyond: items that follow these and that no page has room for.
    """

    what: str
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
        """Number of listed items."""
        return len(self.columns[0].values)


MOST, EMBEDDED = 100_000, 50_000  # of more items than the first number, so many are on a page


def n_listed(n: int) -> int:
    """How many of n items a page has room for."""
    return n if n <= MOST else EMBEDDED


@dataclasses.dataclass(frozen=True)
class Section:
    """A part below the items, folded unless it is `opened`.

    Attributes:
        blocks: of our Markdown, see `html.frame.blocks`.
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
        about: how the numbers are read, as Markdown blocks.
        items: None if the run has no table of items.
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
        record: what its JSON file holds, `Estimate`s still whole.
        headline: the result in one line.
        n_items: how many items there were, failed ones included.
        strips: of each item of the record's list of items; empty where no tokens are known.
        vocabulary: columns of the model's distribution; None if it is not known.
        results: one record per item, where the evaluation keeps them.
        items: what the page shows of items that the record does not hold, since they were taken
            as they came, or None if it holds them.
    """

    system: str
    record: Mapping[str, Any]
    headline: str
    n_items: int
    strips: Sequence[Sequence[Strip]] = ()
    vocabulary: int | None = None
    results: Sequence[Mapping[str, Any]] = ()
    items: Any = None
