"""GitHub Markdown: tables, users' text, and the report of a `Document`."""

import re
from collections.abc import Iterable, Sequence

from jaxscore.errors import UNPRINTABLE, one_line
from jaxscore.report.document import Card, Document, Items, Rows, Section

LONGEST = 400  # characters of a user's text
SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
CELL = re.compile(r"([\[\]|])")
# `>` means something at the beginning of a line alone, and no tag begins without `<`.
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;"})
LINE_END = re.compile("\r\n|[\n\r\u2028\u2029]")
LIST_MARK = re.compile(r"^(\d*)([-+.)])(?=\s|$)")
QUOTE_MARK = re.compile(r"^>")
# GitHub makes links of bare addresses; of one with an @ even where that is escaped, so a joiner
# without width stands behind it.
SCHEME, WWW, MAIL = re.compile(":(?=//)"), re.compile(r"(?i)(?<=www)\."), re.compile(r"@(?=\S)")
NOTHING = "-"
SHOWN = 50  # items of a report; all are in the JSON file
LONGEST_HEADING = 100  # characters of an item in its heading
NO_TEXT = "(no text)"
INTERVAL = "95% interval "  # start of a card's note


def text(value: str, longest: int = LONGEST) -> str:
    """A user's text as it reads, whatever is in it, for a cell or the end of a line.

    Marks of Markdown and HTML are escaped, an address is no link, a line end is ↵, and what would
    turn the rest of the page around or stop the writer (overrides of direction, control
    characters, halves of surrogate pairs) is shown by its number. What is over `longest`
    characters is left out, and how much that is.
    """
    cut = value[:longest]
    rest = len(value) - len(cut)
    line = LINE_END.sub(" ↵ ", cut).replace("\t", " ")
    line = UNPRINTABLE.sub(lambda found: f"⟨{ord(found.group()):04X}⟩", line)
    line = SPECIAL.sub(r"\\\1", line.translate(ENTITIES)).strip()
    line = QUOTE_MARK.sub("&gt;", LIST_MARK.sub(r"\1\\\2", line))
    line = MAIL.sub("@\u2060", WWW.sub(r"\\.", SCHEME.sub(r"\\:", line)))
    return f"{line} … ({rest} more characters)" if rest else line


def cell(value: str) -> str:
    """A user's text for a table that is read on a terminal too: only what would end the cell, the
    line or the table, or be a tag or a link, is escaped."""
    return CELL.sub(r"\\\1", one_line(" ".join(value.split())).translate(ENTITIES))


def number(value: float | None, digits: int = 5) -> str:
    """Rounded, or a dash if there is no value."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Rounded to so many digits that say something, for what may be far below 1; else a dash."""
    return NOTHING if value is None else f"{value:.{digits}g}"


def interval(low: float | None, high: float | None, digits: int = 4) -> str:
    """`0.12 to 0.34`, or a dash."""
    if low is None or high is None:
        return NOTHING
    return f"{number(low, digits)} to {number(high, digits)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Lines of a table; the first `left` columns lean left, the others right.

    Cells are Markdown already: a user's text has gone through `text`.
    """
    rule = ["---" if k < left else "---:" for k in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


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
    span = f"{low} to {high}"
    if found.low is None:
        span = note[0].removeprefix(INTERVAL) if len(note) > 1 else NOTHING
    return [text(card.title), value, span, note[-1]]


def _section(section: Section) -> list[str]:
    return [f"## {text(section.title)}", *section.blocks]


def _items(items: Items | None) -> list[str]:
    """The first items, each under its name, or one table if columns are all that they have.

    Those that failed are listed elsewhere.
    """
    if items is None or not (listed := items.n - len(items.errors)):
        return []
    n, shown = listed + items.n_beyond, min(listed, SHOWN)
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
                f"{text(column.title)}: {text(column.values[place])}"
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


def _rows(rows: Rows, place: int) -> str:
    """A table of an item."""
    marks = ["**" * row.marked for row in rows.items[place]]
    cells = [
        [
            f"{mark}{text(row.cells[0])}{f' ({rows.marked})' * row.marked}{mark}",
            *(cell if cell == NOTHING else text(cell) for cell in row.cells[1:]),
        ]
        for row, mark in zip(rows.items[place], marks, strict=True)
    ]
    return table([rows.title, *rows.header[1:]], cells)


LEFT = slice(0)  # for `aligned`: no column leans right


def aligned(rows: Sequence[Sequence[str]], right: slice = slice(1, None)) -> str:
    """Columns as wide as their widest cell, aligned left, or right if in `right`."""
    cells = [list(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lean_right = range(len(widths))[right]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if k in lean_right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
