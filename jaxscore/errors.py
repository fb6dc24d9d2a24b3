"""The exception for what a user can put right, and the parts of its messages.

`InputError` becomes a message and exit code 2. Users' text is escaped, so that nothing in it moves
a terminal's cursor or reverses a line. Sizes in bytes are as people write and read them: 16GB.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

INTERRUPTED = 130  # exit code: 128 and the number of SIGINT
LONGEST = 2000  # characters of a message; what a file holds may be in it

# Control characters, separators of lines, overrides of direction, halves of surrogate pairs.
# Joiners and marks stay: scripts and emoji are written with them.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAIL = 400  # most characters after the cut
UNITS = {
    "B": 1,
    **{f"{letter}B": 1000 ** (k + 1) for k, letter in enumerate("kMGT")},
    **{f"{letter}iB": 1024 ** (k + 1) for k, letter in enumerate("KMGT")},
}


class InputError(Exception):
    """Unusable input, model, flag or output place.

    The message says what was found, what was expected and what to do, with the file and line
    where there is one. The command line prints it without a traceback and exits with 2. As text
    it is one line that prints, whatever was found.
    """

    def __str__(self) -> str:
        return one_line(super().__str__(), LONGEST)


class NothingUsable(InputError):
    """No item can be used, so a result would have failures alone."""


class NoItems(InputError):
    """A readable file has no item."""


def install_extra(name: str) -> str:
    """What to do so that the packages of an extra are there, for messages.

    jaxscore is on no package index yet, so `pip install 'jaxscore[NAME]'` would find nothing.
    """
    return f"in jaxscore's clone run pip install -e '.[{name}]'"


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """See that an argument is one of its choices.

    Raises:
        ValueError: naming the argument, what was found and the choices.
    """
    if value not in choices:
        like = near(value, [one for one in choices if isinstance(one, str)])
        hint = "" if like is None else f"; is it {like!r}?"
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} is {value!r}, expected one of {known}{hint}")


def near(word: object, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, or None if none is."""
    found = difflib.get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return found[0] if found else None


def one_line(text: str, longest: int | None = None) -> str:
    r"""Escape unprintable characters and line ends as Python does, such as `\x1b`.

    Args:
        longest: most characters of the result, or None for no limit. A longer text loses its
            middle: a message has its location at the start and its remedy at the end.
    """
    escaped = UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)
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
    """Whether UTF-8 can encode the text: a Python string may hold half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def parse_bytes(text: str, *, unit_required: bool = True) -> int:
    """Parse a size in bytes: 16GB is 16 * 1000**3, 16GiB is 16 * 1024**3.

    Args:
        unit_required: if False, a plain whole number is a size in bytes.

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
