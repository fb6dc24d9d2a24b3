"""Numbers with their nouns."""

import re


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as "1 document" or "2,000 documents".

    Args:
        noun: the plural, and the words after it, such as "outputs with gold".
    """
    return f"{n:,} {singular(noun) if n == 1 else noun}"


def singular(noun: str) -> str:
    """Return the first noun of a text in the singular, with the words around it."""
    return re.sub(r"ies\b|s\b", lambda end: "y" if end[0] == "ies" else "", noun, count=1)
