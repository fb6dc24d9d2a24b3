"""Examples of `score`: contexts with their continuations, and items after them."""

from collections.abc import Hashable, Sequence
from typing import Any

from jaxscore.systems.prompting import PLAIN, Example, Prompting
from jaxscore.systems.score import requests_file
from jaxscore.systems.score.given_items import Unread
from jaxscore.systems.score.requests_file import Line
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request

BLANK = (
    "its context is blank, so the empty line after system prompt and examples would count to its "
    "continuation; give it a context, or take boundary separate, or apply the chat template"
)


def read(item: Any, position: int, where: str) -> Request:
    """One example from an object as the input file has it; a `Request` stays as it is.

    Args:
        position, where: as of `requests_file.line`.

    Raises:
        InputError: as `requests_file.line`.
    """
    return item if isinstance(item, Request) else requests_file.line(item, position, where).request


def examples(drawn: Sequence[Request]) -> list[Example]:
    """Context and continuation as prompt and answer."""
    return [Example(one.context, one.continuation, key(one)) for one in drawn]


def key(request: Request) -> Hashable:
    """What tells that an item is an example: its context, and without one its continuation.

    Answers to one question are then told from each other by nothing that stands before them.
    """
    context = request.context.strip()
    return (context, "" if context else request.continuation)


class Prompted:
    """Items with what stands before them.

    Attributes:
        n_left_out: items that are one of the examples.
    """

    def __init__(self, prompting: Prompting, policy: Boundary) -> None:
        """Args:
        policy: where continuations start, see `jaxscore.text.encoder`.
        """
        self.n_left_out = 0
        self._prompting, self._as_they_are = prompting, prompting == PLAIN
        self._refuses_blank = not self._as_they_are and policy == "joint"

    def line(self, line: Line | Unread) -> Line | Unread:
        """One item; one whose continuation would have no clear start cannot be used."""
        if self._as_they_are or isinstance(line, Unread):
            return line
        given = line.request
        if self._refuses_blank and not given.context.strip():
            return Unread(given.id, BLANK, line.extra)
        own = key(given)
        self.n_left_out += self._prompting.n_left_out([own])
        context = self._prompting.context_of(given.context, own)
        continuation = self._prompting.continuation_of(given.continuation)
        return Line(Request(given.id, context, continuation), line.extra)
