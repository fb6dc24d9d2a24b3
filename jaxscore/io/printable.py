"""Users' text where a terminal shows it: nothing in it moves the cursor or turns a line around."""

import re

# Control characters, separators of lines, overrides of direction, halves of surrogate pairs.
# Joiners and marks stay: scripts and emoji are written with them.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAIL = 400  # characters at the end of a text that is cut


def one_line(text: str, longest: int | None = None) -> str:
    r"""The text with `\x1b` for an escape, as Python writes it, and line ends so too.

    Args:
        longest: characters; where there are more, some in the middle are left out, so that a
            message keeps the place at its beginning and the remedy at its end.
    """
    shown = UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)
    if longest is None or len(shown) <= longest:
        return shown
    end = len(shown) - min(TAIL, longest // 4)
    start = longest - (len(shown) - end)
    return f"{shown[:start]} … ({end - start} more characters) … {shown[end:]}"


def many_lines(text: str) -> str:
    """The same of a text of several lines, whose line feeds and tabs stay."""
    kept = (part.split("\t") for part in text.split("\n"))
    return "\n".join("\t".join(map(one_line, parts)) for parts in kept)


def is_valid_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text: a Python string may hold half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
