"""Examples of `paths`: questions with a path, whose last entity is the answer."""

from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.paths.path_gain import Item, item, prompts
from jaxscore.systems.prompting import Example


def read(given: Any, position: int, where: str) -> Item:
    """An item whose first path that is not empty, and the answer that ends it, are shown.

    Args:
        position, where: as of `item`; an `Item` stays as it is.

    Raises:
        InputError: as `item`, or all paths are empty.
    """
    found = given if isinstance(given, Item) else item(given, position, where)
    if not any(found.paths):
        raise InputError(f"{where}: no path that is not empty, whose last entity is the answer")
    return found


def examples(
    shots: Sequence[Item], separator: str = ""
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Examples of baseline prompts, and the same of retrieved ones, with their paths.

    Args:
        separator: what an answer begins with.
    """
    known = [(shot, next(filter(None, shot.paths))) for shot in shots]
    baseline, retrieved = (
        tuple(Example(prompts(*one)[k], separator + one[1][-1], one[0].question) for one in known)
        for k in (0, 1)
    )
    return baseline, retrieved
