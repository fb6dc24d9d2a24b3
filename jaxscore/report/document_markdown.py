"""Markdown of a `Document`, for a terminal, a repository or a notebook."""

from collections.abc import Sequence

from jaxscore.report.document import Card, Column, Document, Items, Rows, Section
from jaxscore.report.markdown import NOTHING, significant, table, text

SHOWN = 50  # items of a report; all are in the JSON file
LONGEST_HEADING = 100  # characters of an item in its heading
NO_TEXT = "(no text)"
INTERVAL = "95% interval "  # start of a card's note


def render(document: Document) -> str:
    """The report: numbers, how to read them, tables, the worst items, and last the settings."""
    *sections, settings = document.sections
    parts = [
        f"# {text(document.title)}",
        text(document.verdict, len(document.verdict)),
        *_numbers(document.cards),
        *document.about,
        *(part for section in sections for part in _section(section)),
        *_items(document.items),
        *_section(settings),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _numbers(cards: Sequence[Card]) -> list[str]:
    """The summary's numbers as a table."""
    return [table(["", "Value", "95% interval", "Over"], map(_number, cards))] if cards else []


def _number(card: Card) -> list[str]:
    note = card.note.splitlines()
    if card.estimate is None:
        is_interval = bool(note) and note[0].startswith(INTERVAL)
        span = note.pop(0).removeprefix(INTERVAL) if is_interval else NOTHING
        return [text(card.title), card.value, span, ", ".join(note) or NOTHING]
    found = card.estimate
    value, low, high = (significant(number, 6) for number in (found.mean, found.low, found.high))
    span = NOTHING if found.low is None else f"{low} to {high}"
    return [text(card.title), value, span, note[-1]]


def _section(section: Section) -> list[str]:
    return [f"## {section.title}", *section.blocks]


def _items(items: Items | None) -> list[str]:
    """The first items, each under its name, or one table if columns are all that they have.

    Those that failed are listed elsewhere.
    """
    if items is None or not (n := items.n - len(items.errors)):
        return []
    shown = min(n, SHOWN)
    part = f" ({shown} of {n} shown)" if shown < n else ""
    blocks = [f"## {items.what.capitalize()}{part}: {items.order}"]
    if not items.fields and not items.tables:
        columns = items.columns
        rows = ([text(column.values[place]) for column in columns] for place in range(shown))
        left = next((k for k, column in enumerate(columns) if column.kind == "number"), 1)
        return [*blocks, table([column.title for column in columns], rows, left)]
    for place in range(shown):
        first, *others = items.columns
        whole = {field.title for field in items.fields if field.values[place].strip()}
        title = first.values[place]
        blocks += [
            f"### {text(title, LONGEST_HEADING) or NO_TEXT}",
            "; ".join(
                _fact(column, place)
                for column in others
                if column.values[place] != NOTHING and column.title not in whole
            ),
            *([f"{first.title}: {text(title)}"] if len(title) > LONGEST_HEADING else []),
            *(
                f"{field.title}: {text(field.values[place])}"
                for field in items.fields
                if field.values[place].strip()
            ),
            *(_rows(rows, place) for rows in items.tables if rows.items[place]),
        ]
    return [block for block in blocks if block]


def _fact(column: Column, place: int) -> str:
    return f"{text(column.title)}: {text(column.values[place])}"


def _rows(rows: Rows, place: int) -> str:
    """A table of an item; its first column is a user's text."""
    marks = ["**" * row.marked for row in rows.items[place]]
    cells = [
        [f"{mark}{text(row.cells[0])}{f' ({rows.marked})' * row.marked}{mark}", *row.cells[1:]]
        for row, mark in zip(rows.items[place], marks, strict=True)
    ]
    return table([rows.title, *rows.header[1:]], cells)
