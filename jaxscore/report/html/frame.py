"""Renders a `Document` as one HTML file: style, script and data are in it, and it loads nothing.

Sections are written once, as Markdown, and become HTML here. What reports write is all that is
read: headings, paragraphs, lists of one level, tables; in a line `**bold**`, code and the escapes
of `markdown.text`.
"""

import base64
import dataclasses
import functools
import hashlib
import importlib.resources
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from jaxscore.errors import UNPRINTABLE
from jaxscore.report.document import Column, Document, Field, Items, Row, Rows
from jaxscore.report.html.packed import embedded, packed, shorten
from jaxscore.report.html.strips import (
    DARKEST,
    MISSING,
    PER_NAT,
    Strips,
    metric_header,
    scale_to_largest,
)
from jaxscore.report.markdown import NOTHING
from jaxscore.report.sections import three
from jaxscore.version import VERSION

SHOWN = 20  # items
TOKENS = 60  # of an item, over all of its strips
ROWS = 8  # of each table of an item
LONGEST = 300  # characters of a text
DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")


def render(page: Document) -> str:
    """The file; the same for the same page.

    Only the script whose hash the policy names may run, so that no text of an item can.
    """
    if page.items is not None:
        page = dataclasses.replace(page, items=embedded(page.items))
    script = make_script(read_file("script.js"))
    return _template().render(
        page=page,
        style=Markup(read_file("style.css")),
        script=Markup(script),
        script_hash=Markup(policy_hash(script)),
        blocks=blocks,
        plain=[] if page.items is None else plain_items(page.items),
        shorten=functools.partial(shorten, longest=LONGEST),
        data="" if page.items is None else packed(page.items),
        version=VERSION,
    )


def make_script(text: str) -> str:
    """Return a page's script: the functions that pages share, then its text, in one scope."""
    return f'(() => {{\n"use strict";\n{read_file("common.js")}\n{text}}})();\n'


def policy_hash(text: str) -> str:
    """Return the source expression by which a Content-Security-Policy allows an inline text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def read_file(name: str) -> str:
    """Return the text of a file in this folder."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> Any:
    import jinja2  # needed for pages alone

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        keep_trailing_newline=True,
    )
    environment.filters["columns"] = columns
    return environment.from_string(read_file("template.html"))


def columns(parts: Sequence[Any], limit: int) -> list[tuple[Any, int]]:
    """Pair each part with the number of parts in its row: rows are full and of similar lengths."""
    n_rows = -(-len(parts) // limit)
    sizes = [len(range(k, len(parts), n_rows)) for k in range(n_rows)]
    return list(zip(parts, [size for size in sizes for _ in range(size)], strict=True))


def _shown(value: Any) -> Any:
    """Return a value for the template, before escaping, with unprintable characters by number."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@dataclasses.dataclass(frozen=True)
class PlainToken:
    """One token.

    Attributes:
        text: the text, with visible leading spaces and newlines.
        amount: the improbability, 0 to 1; None for a token without probability.
        greedy: True if it is the most probable token, or if this is unknown.
        is_less: True if its number is below 0, which has another colour.
    """

    text: str
    amount: float | None
    greedy: bool
    tip: str
    is_less: bool = False


@dataclasses.dataclass(frozen=True)
class PlainStrip:
    """The first tokens of one text, and the number of further ones."""

    title: str
    tokens: Sequence[PlainToken]
    n_more: int


@dataclasses.dataclass(frozen=True)
class PlainItem:
    """One item, in the parts of `page`."""

    name: str
    facts: Sequence[tuple[str, str]]
    error: str | None
    fields: Sequence[tuple[str, str]]
    tables: Sequence[tuple[Rows, Sequence[Row]]]
    strips: Sequence[PlainStrip]


def plain_items(items: Items) -> list[PlainItem]:
    """Return the first `SHOWN` items."""
    first, *others = items.columns
    strips = None if items.strips is None else _PlainStrips(items.strips)
    return [
        PlainItem(
            shorten(first.values[k], LONGEST),
            [_part(column, k) for column in others if column.values[k] != NOTHING],
            items.errors.get(k),
            [_part(field, k) for field in items.fields if field.values[k]],
            [
                (table, [_rounded(row) for row in table.items[k][:ROWS]])
                for table in items.tables
                if table.items[k]
            ],
            [] if strips is None else strips.of_item(k),
        )
        for k in range(min(SHOWN, items.n))
    ]


def _part(entry: Column | Field, k: int) -> tuple[str, str]:
    value = entry.values[k]
    if isinstance(entry, Column) and entry.column_type == "number":
        value = _three(value)
    return entry.title, shorten(value, LONGEST)


def _rounded(row: Row) -> Row:
    first, *others = row.cells
    return row._replace(cells=[first, *map(_three, others)])


def _three(shown: str) -> str:
    """Format a decimal number with three significant digits, like the script."""
    return three(float(shown)) if DECIMAL.fullmatch(shown) else shown


class _PlainStrips:
    """Makes the strips of a page's first items."""

    def __init__(self, strips: Strips) -> None:
        self.strips = strips
        self.table = strips.table
        self.end = np.cumsum(strips.tokens.length)
        if not strips.token_metrics:  # the first further number has the colours
            self.metric = strips.metrics[0]
            self.values = strips.tokens.more[self.metric.key]
            self.top = metric_header(self.metric, *scale_to_largest(self.values), None)["top"]

    def of_item(self, k: int) -> list[PlainStrip]:
        """Return the strips of one item, together `TOKENS` long."""
        first, last = int(self.strips.first[k]), int(self.strips.first[k + 1])
        each = max(1, TOKENS // max(1, last - first))
        tokens, plain = self.strips.tokens, []
        for strip in range(first, min(last, first + TOKENS)):
            end = int(self.end[strip])
            begin = end - int(tokens.length[strip])
            shown, at = [], begin
            while at < end and at - begin < each:
                after = at + 1
                while after < end and self.table.continues[after]:
                    after += 1
                shown.append(self._token(at, after))
                at = after
            n_more = end - at + int(tokens.left_out[strip])
            plain.append(PlainStrip(self.strips.titles[strip], shown, n_more))
        return plain

    def _token(self, at: int, after: int) -> PlainToken:
        """Return a token, or several that share characters, with their summed log-probability."""
        text = self.table.texts[self.table.index[at]]
        shown = f"·{text[1:]}" if text.startswith(" ") else text
        shown = shown.replace("\n", "↵").replace("\t", "⇥") or "∅"
        if not self.strips.token_metrics:
            value = float(self.values[at:after].sum())
            if math.isnan(value):
                return PlainToken(shown, None, True, "no number")
            amount = round(min(1.0, abs(value) / self.top), 2)
            tip = f"{self.metric.name} {value:.3g} {self.metric.unit}"
            return PlainToken(shown, amount, True, tip, value < 0)
        thousandths = self.strips.tokens.numbers["logprob"][at:after]
        each = [value / PER_NAT for value in thousandths[thousandths != MISSING].tolist()]
        if not each:
            return PlainToken(shown, None, True, "no probability: it is the first token")
        amount = round(min(1.0, max(0.0, -sum(each) / DARKEST)), 2)
        parts = f" ({', '.join(f'{nats:.3f}' for nats in each)})" if after - at > 1 else ""
        tip = f"log-probability {sum(each):.3f}{parts}"
        return PlainToken(shown, amount, bool(self.strips.tokens.greedy[at:after].all()), tip)


INLINE = re.compile(r"\\(.)|\*\*(.+?)\*\*|`([^`]*)`|&(amp|lt|gt);|(\u2060)", re.DOTALL)
ENTITIES = {"amp": "&", "lt": "<", "gt": ">"}
BAR = re.compile(r"(?<!\\)\|")
HEADING = re.compile(r"(#+) (.*)")
FEW = 2  # columns that are side by side on a phone


def blocks(markdown: Iterable[str]) -> Markup:
    """Convert Markdown blocks to HTML."""
    paragraphs = (text for block in markdown for text in block.strip().split("\n\n"))
    return Markup("\n").join(map(_block, paragraphs))


def inline(line: str) -> Markup:
    """Convert the text of one line to HTML."""
    out, end = Markup(""), 0
    for match in INLINE.finditer(line):
        out += _text(line[end : match.start()]) + _marked(match)
        end = match.end()
    return out + _text(line[end:])


def _text(value: str) -> Markup:
    return escape(visible(value))


def _marked(match: "re.Match[str]") -> Markup:
    escaped, bold, code, entity, joiner = match.groups()
    if escaped is not None:
        return _text(escaped)
    if bold is not None:
        return Markup("<b>{}</b>").format(inline(bold))
    if code is not None:
        return Markup("<code>{}</code>").format(visible(code))
    return Markup("") if joiner else escape(ENTITIES[entity])


def _block(block: str) -> Markup:
    if block.startswith("| "):
        return _table(block.split("\n"))
    if block.startswith("- "):
        lines = (Markup("<li>{}</li>").format(inline(line[2:])) for line in block.split("\n"))
        return Markup("<ul>{}</ul>").format(Markup("").join(lines))
    if heading := HEADING.fullmatch(block):
        return Markup("<h3>{}</h3>").format(inline(heading.group(2)))
    return Markup("<p>{}</p>").format(inline(block))


def _table(lines: list[str]) -> Markup:
    header, rule, *rows = ([cell.strip() for cell in BAR.split(line)[1:-1]] for line in lines)
    right = [cell.endswith(":") for cell in rule]

    def row(cells: list[str], name: str) -> Markup:
        parts = []
        for k, (cell, aside, title) in enumerate(zip(cells, right, header, strict=True)):
            tag = "th" if name == "th" or k == 0 else "td"
            scope = ' scope="col"' if name == "th" else ' scope="row"' if k == 0 else ""
            number = ' class="number"' if aside else ""
            label = Markup(' data-label="{}"').format(inline(title).striptags()) * (tag == "td")
            parts.append(
                Markup(f"<{tag}{scope}{number}{{}}>{{}}</{tag}>").format(label, inline(cell))
            )
        return Markup("<tr>{}</tr>").format(Markup("").join(parts))

    head = row(header, "th") if any(header) else Markup("")
    body = Markup("").join(row(cells, "td") for cells in rows)
    many = Markup(' class="many"') if len(header) > FEW else ""  # lines of a phone
    layout = '<div class="wide"><table{}><thead>{}</thead><tbody>{}</tbody></table></div>'
    return Markup(layout).format(many, head, body)  # a table that is too wide scrolls in its place


KEPT = "\n\t"


def visible(text: str) -> str:
    """Replace unprintable characters by their numbers, as in the Markdown.

    Newlines and tabs stay. Lone surrogates, which UTF-8 cannot encode, are unprintable.
    """
    return UNPRINTABLE.sub(
        lambda match: match.group() if match.group() in KEPT else f"⟨{ord(match.group()):04X}⟩",
        text,
    )
