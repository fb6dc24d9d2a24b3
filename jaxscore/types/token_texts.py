"""Conversion of tokens' names in the vocabulary to text and HTML."""

import functools
import html
import math
import re
from collections.abc import Iterable, Sequence

from jaxscore.errors import one_line

DARKEST = 12.0  # nats of surprisal at which the background is darkest
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # the name of a byte token under byte fallback
STYLE = "padding:1px 0;border-radius:2px;white-space:pre-wrap"
LEGEND = "darker: less probable; hover for numbers"


def token_texts(names: Sequence[str]) -> list[str]:
    """Convert the name of each token in the vocabulary to its text.

    Byte-level tokenizers write bytes as printable characters (a space is `Ġ`), and sentencepiece
    writes a space as `▁`. A token that is an incomplete character becomes `�`.
    """
    table = byte_of()
    if any("Ġ" in name or "Ċ" in name for name in names):
        return [
            bytes(table[c] for c in name).decode("utf-8", "replace")
            if all(c in table for c in name)
            else name
            for name in names
        ]
    return [name.replace("▁", " ") for name in names]


def joined_text(names: Sequence[str]) -> str:
    """Convert the names of consecutive tokens to their text; see `token_texts`.

    A character that several tokens share is whole, and sentencepiece's names of bytes are read.
    """
    table = byte_of()
    is_byte_level = any("Ġ" in name or "Ċ" in name for name in names)
    raw = bytearray()
    for name in names:
        if is_byte_level and all(c in table for c in name):
            raw += bytes(table[c] for c in name)
        elif not is_byte_level and (byte := BYTE.fullmatch(name)):
            raw.append(int(byte[1], 16))
        else:
            text = name if is_byte_level else name.replace("▁", " ")
            raw += text.encode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


@functools.cache
def byte_of() -> dict[str, int]:
    """Return the byte of each character in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters map to their own code. The remaining bytes, in order, are the
    characters from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + k): byte for k, byte in enumerate(others)
    }


def tokens_html(
    tokens: Sequence[str],
    logprob: Iterable[float],
    entropy: Iterable[float],
    greedy: Iterable[bool],
) -> str:
    """Render tokens as one line of HTML, coloured by surprisal, with their scores in tooltips.

    Args:
        tokens: names in the vocabulary.
        logprob, entropy: nats per token; NaN for an unscored token, which gets a border.
        greedy: True for each token that is the most probable one at its position.
    """
    spans = []
    for text, p, h, is_greedy in zip(token_texts(tokens), logprob, entropy, greedy, strict=True):
        if math.isnan(p):
            style, title = "outline:1px dotted #888", "no probability: no token before it"
        else:
            share = min(1.0, max(0.0, -p / DARKEST))
            style = f"background:rgba(214,96,32,{0.85 * share:.2f})"
            title = f"log-probability {p:.3f} nats, entropy {h:.3f} nats"
            title += ", the most probable token" if is_greedy else ""
        shown = html.escape(_visible(text))
        spans.append(f'<span style="{style};{STYLE}" title="{html.escape(title)}">{shown}</span>')
    return "".join(spans)


def _visible(text: str) -> str:
    """Return the text with newlines as `↵` and unprintable characters as codes."""
    return one_line(text.replace("\n", "↵")) or "∅"
