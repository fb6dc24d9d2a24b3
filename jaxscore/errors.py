"""The exception for what a user can put right, and text that is safe to print in messages.

`InputError` becomes a message and exit code 2. Users' text is escaped, so that nothing in it moves
a terminal's cursor or reverses a line.
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
