"""The one exception for what a user can put right: it becomes a message and exit code 2."""

import difflib
from collections.abc import Iterable, Sequence

from jaxscore.io.printable import one_line

INTERRUPTED = 130  # exit code: 128 and the number of SIGINT
LONGEST = 2000  # characters of a message; what a file holds may be in it


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
