"""Examples of `probsem`: contexts with the query that is expected."""

from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.probsem.query_scores import NO_ANSWER, Context, Layout, Suite, context_from
from jaxscore.systems.prompting import Example


def read(suite: Suite, given: Any, position: int, where: str) -> Context:
    """A context with the query that is expected; a `Context` stays as it is.

    Args:
        position, where: as of `context_from`.

    Raises:
        InputError: as `context_from`, or no query is expected.
    """
    if not isinstance(given, Context):
        given = context_from(given, position, len(suite.queries), where)
    if given.expected == NO_ANSWER:
        raise InputError(f"{where}: expected is {NO_ANSWER}, so no query can be shown as right")
    return given


def examples(suite: Suite, shots: Sequence[Context], layout: Layout) -> list[Example]:
    """Each context with its expected query."""
    return [
        Example(*layout.split(suite, one, suite.queries[one.expected]), one.text) for one in shots
    ]
