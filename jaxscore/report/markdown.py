"""GitHub Markdown: tables, users' text, and the report of a `Document`."""

import re
from collections.abc import Iterable, Sequence

from jaxscore.errors import UNPRINTABLE, one_line
from jaxscore.report import terminal
from jaxscore.report.document import Card, Document, Items, Rows, Section

LONGEST = 400  # characters of a user's text
SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
CELL = re.compile(r"([\[\]|])")
# `>` is special only at the beginning of a line, and tags begin with `<`.
ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;"})
NEWLINE = re.compile("\r\n|[\n\r\u2028\u2029]")
LIST_MARK = re.compile(r"^(\d*)([-+.)])(?=\s|$)")
QUOTE_MARK = re.compile(r"^>")
# GitHub makes links of bare addresses, even with an escaped @, so a zero-width joiner follows it.
SCHEME, WWW, MAIL = re.compile(":(?=//)"), re.compile(r"(?i)(?<=www)\."), re.compile(r"@(?=\S)")
NOTHING = "-"
SHOWN = 50  # items of a report; all are in the JSON file
LONGEST_HEADING = 100  # characters of an item in its heading
NO_TEXT = "(no text)"
INTERVAL = "95% interval "  # start of a card's note


def text(value: str, longest: int = LONGEST) -> str:
    """Escape a user's text for a cell or the end of a line, so that it reads unchanged.

    Escapes Markdown and HTML, and prevents links of addresses. A newline becomes ↵, and characters
    that would reverse the page's text or stop the writer (overrides of direction, control
    characters, lone surrogates) become their numbers. Replaces text beyond `longest` characters by
    its length.
    """
    cut = value[:longest]
    rest = len(value) - len(cut)
    line = NEWLINE.sub(" ↵ ", cut).replace("\t", " ")
    line = UNPRINTABLE.sub(lambda match: f"⟨{ord(match.group()):04X}⟩", line)
    line = SPECIAL.sub(r"\\\1", line.translate(ENTITIES)).strip()
    line = QUOTE_MARK.sub("&gt;", LIST_MARK.sub(r"\1\\\2", line))
    line = MAIL.sub("@\u2060", WWW.sub(r"\\.", SCHEME.sub(r"\\:", line)))
    return f"{line} … ({rest} more characters)" if rest else line


def cell(value: str) -> str:
    """Escape a user's text for a table that is also read on a terminal: only characters that end
    the cell, line or table, or begin a tag or a link."""
    return CELL.sub(r"\\\1", one_line(" ".join(value.split())).translate(ENTITIES))


def number(value: float | None, digits: int = 5) -> str:
    """Round a number to some decimals; None becomes a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def significant(value: float | None, digits: int = 4) -> str:
    """Round a number to some significant digits; None becomes a dash."""
    return NOTHING if value is None else f"{value:.{digits}g}"


def interval(low: float | None, high: float | None, digits: int = 4) -> str:
    """Format an interval as `0.12 to 0.34`, or a dash."""
    if low is None or high is None:
        return NOTHING
    return f"{number(low, digits)} to {number(high, digits)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return the lines of a table; the first `left` columns are aligned left, the others right.

    Cells are Markdown: users' texts are escaped by `text`.
    """
    rule = ["---" if k < left else "---:" for k in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def render(document: Document) -> str:
    """Return the report: numbers, their explanation, tables, the worst items, the settings."""
    *sections, settings = document.sections
    blocks = [
        f"# {text(document.title)}",
        text(document.verdict, len(document.verdict)),
        *_numbers(document.cards),
        *document.about,
        *(block for section in sections for block in _section(section)),
        *_items(document.items),
        *_section(settings),
    ]
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def _numbers(cards: Sequence[Card]) -> list[str]:
    """Return the summary's numbers as a table."""
    return [table(["", "Value", "95% interval", "Over"], map(_number, cards))] if cards else []


def _number(card: Card) -> list[str]:
    note = card.note.splitlines()
    if card.estimate is None:
        is_interval = bool(note) and note[0].startswith(INTERVAL)
        span = note.pop(0).removeprefix(INTERVAL) if is_interval else NOTHING
        return [text(card.title), card.value, span, ", ".join(note) or NOTHING]
    estimate = card.estimate
    value, low, high = (
        significant(number, 6) for number in (estimate.mean, estimate.low, estimate.high)
    )
    span = f"{low} to {high}"
    if estimate.low is None:
        span = note[0].removeprefix(INTERVAL) if len(note) > 1 else NOTHING
    return [text(card.title), value, span, note[-1]]


def _section(section: Section) -> list[str]:
    return [f"## {text(section.title)}", *section.blocks]


def _items(items: Items | None) -> list[str]:
    """Return the first items, each under its name, or one table if they have only columns.

    Failed items are listed elsewhere.
    """
    if items is None or not (listed := items.n - len(items.errors)):
        return []
    n, shown = listed + items.n_beyond, min(listed, SHOWN)
    limit = f" ({shown} of {n} shown)" if shown < n else ""
    blocks = [f"## {items.units.capitalize()}{limit}: {items.order}"]
    if not items.fields and not items.tables:
        columns = items.columns
        rows = ([text(column.values[index]) for column in columns] for index in range(shown))
        left = next((k for k, column in enumerate(columns) if column.column_type == "number"), 1)
        return [*blocks, table([column.title for column in columns], rows, left)]
    for index in range(shown):
        first, *others = items.columns
        field_titles = {field.title for field in items.fields if field.values[index].strip()}
        title = first.values[index]
        blocks += [
            f"### {text(title, LONGEST_HEADING) or NO_TEXT}",
            "; ".join(
                f"{text(column.title)}: {text(column.values[index])}"
                for column in others
                if column.values[index] != NOTHING and column.title not in field_titles
            ),
            *([f"{first.title}: {text(title)}"] if len(title) > LONGEST_HEADING else []),
            *(
                f"{field.title}: {text(field.values[index])}"
                for field in items.fields
                if field.values[index].strip()
            ),
            *(_rows(rows, index) for rows in items.tables if rows.items[index]),
        ]
    return [block for block in blocks if block]


def _rows(rows: Rows, index: int) -> str:
    """Return a table of an item."""
    marks = ["**" * row.marked for row in rows.items[index]]
    cells = [
        [
            f"{mark}{text(row.cells[0])}{f' ({rows.marked})' * row.marked}{mark}",
            *(cell if cell == NOTHING else text(cell) for cell in row.cells[1:]),
        ]
        for row, mark in zip(rows.items[index], marks, strict=True)
    ]
    return table([rows.title, *rows.header[1:]], cells)


LEFT = slice(0)  # for `aligned`: all columns are aligned left


def aligned(rows: Sequence[Sequence[str]], right: slice = slice(1, None)) -> str:
    """Pad the cells of each column to one width, aligned left, or right if in `right`."""
    cells = [list(map(one_line, row)) for row in rows]
    columns = terminal.widths(cells)
    right_columns = range(len(columns))[right]
    return "\n".join(
        "  ".join(
            terminal.padded(cell, width, to_right=k in right_columns)
            for k, (cell, width) in enumerate(zip(row, columns, strict=True))
        ).rstrip()
        for row in cells
    )
