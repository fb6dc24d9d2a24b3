"""Text on a terminal: its width in columns, and colours by surprisal."""

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence

from jaxscore.errors import many_lines, one_line

MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
# Backgrounds of the 256 colours of terminals, by surprisal, with a black foreground: white to red.
SHADES = (255, 230, 229, 223, 222, 216, 215, 209, 208, 202)
DARKEST = 15.0  # bits at which the shade is the last one
RESET, DIM, BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
WIDE, WITHOUT_WIDTH = ("W", "F"), ("Mn", "Me", "Cf")


def has_colours() -> bool:
    """Return True if standard output is a terminal that takes colours, see no-color.org."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not is_plain and sys.stdout.isatty()


def width(text: str) -> int:
    """Return the number of columns of a text: two of wide characters, none of joined ones."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(character) in WITHOUT_WIDTH
        else 1 + (unicodedata.east_asian_width(character) in WIDE)
        for character in text
    )


def visible(text: str) -> str:
    """Return the text of a token with marks for white space and codes for control characters."""
    return one_line(text.translate(MARKS))


def shaded(text: str, surprisal: float | None) -> str:
    """Return the text on a background by its surprisal in bits; as it is without one."""
    if surprisal is None:
        return f"{DIM}{text}{RESET}"
    shade = SHADES[min(len(SHADES) - 1, int(surprisal / DARKEST * len(SHADES)))]
    return f"\x1b[38;5;16;48;5;{shade}m{text}{RESET}"


def shaded_text(text: str, surprisal: float | None) -> str:
    """Return `shaded` of each line of a text as it reads; a newline is a mark and a newline."""
    lines = [many_lines(line) for line in text.split("\n")]
    marked = [f"{line}⏎" for line in lines[:-1]] + lines[-1:]
    return "\n".join(shaded(line, surprisal) if line else "" for line in marked)


def cut(line: str) -> str:
    """Cut a line with colours at the terminal's width, and end them."""
    room, out = shutil.get_terminal_size().columns, ""
    for piece in re.split(r"(\x1b\[[\d;]*m)", line):
        if piece.startswith("\x1b"):
            out += piece
            continue
        for character in piece:
            room -= width(character)
            if room < 0:
                return f"{out}{RESET}"
            out += character
    return f"{out}{RESET}"


def padded(text: str, columns: int, *, to_right: bool = False) -> str:
    """Return the text with spaces up to a width."""
    spaces = " " * (columns - width(text))
    return spaces + text if to_right else text + spaces


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column of a table."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]
