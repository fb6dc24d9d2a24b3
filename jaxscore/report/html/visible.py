"""Users' text in a page: nothing in it is unseen or turns a line around."""

from jaxscore.io.printable import UNPRINTABLE

KEPT = "\n\t"


def visible(text: str) -> str:
    """The text with each character that does not print by its number, as the Markdown has it.

    Line feeds and tabs stay. What UTF-8 does not have, half a surrogate pair, does not print.
    """
    return UNPRINTABLE.sub(
        lambda found: found.group() if found.group() in KEPT else f"⟨{ord(found.group()):04X}⟩",
        text,
    )
