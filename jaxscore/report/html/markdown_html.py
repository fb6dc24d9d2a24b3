"""Blocks of our own Markdown as HTML, so that a sentence and a number are written once.

What reports write is all that is read: headings, paragraphs, lists of one level, tables; in a line
`**bold**`, code and the escapes of `markdown.text`.
"""

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

from jaxscore.io.printable import UNPRINTABLE

INLINE = re.compile(r"\\(.)|\*\*(.+?)\*\*|`([^`]*)`|&(amp|lt|gt);|(\u2060)", re.DOTALL)
ENTITIES = {"amp": "&", "lt": "<", "gt": ">"}
BAR = re.compile(r"(?<!\\)\|")
HEADING = re.compile(r"(#+) (.*)")


def blocks(markdown: Iterable[str]) -> Markup:
    """HTML of blocks as the modules of `reports` give them."""
    parts = (part for block in markdown for part in block.strip().split("\n\n"))
    return Markup("\n").join(_block(part) for part in parts)


def inline(line: str) -> Markup:
    """One line's text."""
    out, place = Markup(""), 0
    for found in INLINE.finditer(line):
        out += _text(line[place : found.start()]) + _marked(found)
        place = found.end()
    return out + _text(line[place:])


def _text(value: str) -> Markup:
    return escape(visible(value))


def _marked(found: "re.Match[str]") -> Markup:
    escaped, bold, code, entity, joiner = found.groups()
    if escaped is not None:
        return _text(escaped)
    if bold is not None:
        return Markup("<b>{}</b>").format(inline(bold))
    if code is not None:
        return Markup("<code>{}</code>").format(visible(code))
    return Markup("") if joiner else escape(ENTITIES[entity])


def _block(part: str) -> Markup:
    if part.startswith("| "):
        return _table(part.split("\n"))
    if part.startswith("- "):
        lines = (Markup("<li>{}</li>").format(inline(line[2:])) for line in part.split("\n"))
        return Markup("<ul>{}</ul>").format(Markup("").join(lines))
    if heading := HEADING.fullmatch(part):
        return Markup("<h3>{}</h3>").format(inline(heading.group(2)))
    return Markup("<p>{}</p>").format(inline(part))


def _table(lines: list[str]) -> Markup:
    header, rule, *rows = ([one.strip() for one in BAR.split(line)[1:-1]] for line in lines)
    right = [one.endswith(":") for one in rule]

    def row(cells: list[str], name: str) -> Markup:
        parts = []
        for k, (cell, aside) in enumerate(zip(cells, right, strict=True)):
            kind = "th" if name == "th" or k == 0 else "td"
            scope = ' scope="col"' if name == "th" else ' scope="row"' if k == 0 else ""
            number = ' class="number"' if aside else ""
            parts.append(Markup(f"<{kind}{scope}{number}>{{}}</{kind}>").format(inline(cell)))
        return Markup("<tr>{}</tr>").format(Markup("").join(parts))

    head = row(header, "th") if any(header) else Markup("")
    body = Markup("").join(row(cells, "td") for cells in rows)
    whole = '<div class="wide"><table><thead>{}</thead><tbody>{}</tbody></table></div>'
    return Markup(whole).format(head, body)  # a table that is too wide scrolls in its place


KEPT = "\n\t"


def visible(text: str) -> str:
    """The text with each character that does not print by its number, as the Markdown has it.

    Line feeds and tabs stay. What UTF-8 does not have, half a surrogate pair, does not print.
    """
    return UNPRINTABLE.sub(
        lambda found: found.group() if found.group() in KEPT else f"⟨{ord(found.group()):04X}⟩",
        text,
    )
