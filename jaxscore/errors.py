"""The exception for errors that users can fix, and helpers for its messages.

The command line prints an `InputError` as a message and exits with code 2. Users' text is escaped,
so that it cannot move a terminal's cursor or reverse a line. Sizes in bytes are read and written
with units: 16GB.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

INTERRUPTED = 130  # exit code: 128 plus the number of SIGINT
LONGEST = 2000  # maximum length of a message, which may quote the content of a file

# Control characters, line separators, direction overrides, lone surrogates. Joiners and combining
# marks are kept, since scripts and emoji use them.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAIL = 400  # maximum number of characters after the cut
UNITS = {
    "B": 1,
    **{f"{letter}B": 1000 ** (k + 1) for k, letter in enumerate("kMGT")},
    **{f"{letter}iB": 1024 ** (k + 1) for k, letter in enumerate("KMGT")},
}


class InputError(Exception):
    """Unusable input, model, flag or output location.

    The message states what was found, what was expected and what to do, with the file and line if
    known. The command line prints it without a traceback and exits with 2. `str` escapes it to one
    printable line.
    """

    def __str__(self) -> str:
        return one_line(super().__str__(), LONGEST)


class Held(InputError):
    """Another run holds a file."""


class NothingUsable(InputError):
    """No item can be used, so a result would contain only failures."""


class NoItems(InputError):
    """A readable file does not contain items."""


def install_extra(name: str) -> str:
    """Return instructions to install the packages of an extra, for messages.

    `pip install 'jaxscore[NAME]'` would fail, since jaxscore is not on a package index yet.
    """
    return f"in jaxscore's clone run pip install -e '.[{name}]'"


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check that an argument is one of its choices.

    Raises:
        ValueError: the value is not among the choices; the message names them.
    """
    if value not in choices:
        raise ValueError(f"{name} is {describe_choice(value, choices)}")


def describe_choice(value: object, choices: Sequence[object]) -> str:
    """Return a message about a value that is not among its choices."""
    similar = near(value, [choice for choice in choices if isinstance(choice, str)])
    hint = "" if similar is None else f"; is it {similar!r}?"
    return f"{value!r}, expected one of {', '.join(map(repr, choices))}{hint}"


def near(word: object, words: Iterable[str]) -> str | None:
    """Return the most similar of some words, or None if none is similar."""
    matches = difflib.get_close_matches(word, list(words), n=1) if isinstance(word, str) else []
    return matches[0] if matches else None


def one_line(text: str, longest: int | None = None) -> str:
    r"""Escape unprintable characters and newlines in Python's syntax, such as `\x1b`.

    Args:
        longest: the maximum length of the result, or None for no limit. The middle of a longer text
            is cut, since messages start with a location and end with a remedy.
    """
    escaped = UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], text)
    if longest is None or len(escaped) <= longest:
        return escaped
    end = len(escaped) - min(TAIL, longest // 4)
    start = longest - (len(escaped) - end)
    return f"{escaped[:start]} … ({end - start} more characters) … {escaped[end:]}"


def many_lines(text: str) -> str:
    """Escape unprintable characters except line feeds and tabs."""
    lines = (line.split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(one_line, parts)) for parts in lines)


def is_valid_unicode(text: str) -> bool:
    """Return True if UTF-8 can encode the text, which fails for a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def parse_bytes(text: str, *, unit_required: bool = True) -> int:
    """Parse a size in bytes: 16GB is 16 * 1000**3, 16GiB is 16 * 1024**3.

    Args:
        unit_required: if False, accept an integer without a unit as a size in bytes.

    Raises:
        InputError: the number or the unit is invalid, or the size is 0.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", text)
    if not unit_required and re.fullmatch(r"[0-9]{1,18}", text):
        size = int(text)
    else:
        size = int(float(match[1]) * UNITS[match[2]]) if match and match[2] in UNITS else 0
    if size < 1:
        units = ", ".join(UNITS)
        raise InputError(
            f"{text!r} is not a size in bytes; give a number above 0 and one of {units}"
            if unit_required
            else f"{text!r} is not a size in bytes; give a whole number above 0, or a number and "
            f"one of {units}"
        )
    return size


def format_bytes(size: int) -> str:
    """Format a size with three digits and a decimal unit: 16.1 GB."""
    unit = next((unit for unit in ("TB", "GB", "MB", "kB") if size >= UNITS[unit]), "B")
    if unit == "B":
        return f"{size} B"
    return f"{format_three_digits(size / UNITS[unit])} {unit}"


def format_three_digits(value: float) -> str:
    """Format a number of at least 1 with three digits, or all digits of its integer part."""
    return f"{value:.{max(0, 3 - len(str(int(value))))}f}"
