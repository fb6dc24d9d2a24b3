"""Escapes users' text so that nothing in it moves a terminal's cursor or reverses a line."""

import re

# Control characters, separators of lines, overrides of direction, halves of surrogate pairs.
# Joiners and marks stay: scripts and emoji are written with them.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TAIL = 400  # most characters after the cut


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
