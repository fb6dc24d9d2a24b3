"""Tables and users' text in GitHub Markdown."""

import re
from collections.abc import Iterable, Sequence

from jaxscore.io.printable import UNPRINTABLE, one_line

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
    """Rounded, or a dash where there is none."""
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
