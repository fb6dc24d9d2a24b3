"""Conversion of tokens' names in the vocabulary to text and HTML."""

import codecs
import functools
import html
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxscore.errors import one_line

DARKEST = 12.0  # nats of surprisal at which the background is darkest
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # the name of a byte token under byte fallback
STYLE = "padding:1px 0;border-radius:2px;white-space:pre-wrap"
LEGEND = "darker: less probable; hover for numbers"


def is_byte_level(names: Sequence[str]) -> bool:
    """Return True if the names of consecutive tokens are bytes as printable characters.

    Byte-level tokenizers write a space as `Ġ`, sentencepiece as `▁`. Names without spaces are
    bytes if most of their characters are UTF-8 as bytes.
    """
    if any(name.startswith("▁") for name in names):
        return False
    if any("Ġ" in name or "Ċ" in name for name in names):
        return True
    # `<` begins an added token, whose name is its text in any vocabulary.
    foreign = [name for name in names if not name.isascii() and not name.startswith("<")]
    if not foreign or any(c not in byte_of() for name in foreign for c in name):
        return False
    text = joined_bytes(token_bytes(names, byte_level=True))
    return 2 * text.count("\ufffd") < sum(not character.isascii() for character in text)


def token_bytes(names: Iterable[str], *, byte_level: bool) -> list[bytes]:
    """Convert the name of each token in the vocabulary to the bytes of its text."""
    table = byte_of()
    out = []
    for name in names:
        if byte_level and all(c in table for c in name):
            out.append(bytes(table[c] for c in name))
        elif not byte_level and (byte := BYTE.fullmatch(name)):
            out.append(bytes([int(byte[1], 16)]))
        else:
            text = name if byte_level else name.replace("▁", " ")
            out.append(text.encode("utf-8", "surrogatepass"))
    return out


def joined_bytes(pieces: Iterable[bytes]) -> str:
    """Decode the bytes of consecutive tokens; an incomplete character is `�`."""
    return b"".join(pieces).decode("utf-8", "replace")


def joined_text(names: Sequence[str]) -> str:
    """Convert the names of consecutive tokens to their text, with whole characters."""
    return joined_bytes(token_bytes(names, byte_level=is_byte_level(names)))


def character_starts(pieces: Sequence[bytes]) -> list[int]:
    """Return the index of each token that begins with a character, in ascending order.

    A token continues the one before it if both have bytes of one character: of one code point, or
    of one grapheme cluster (Unicode's annex 29), such as a letter with its accents, or a family
    of emoji.
    """
    import regex  # slow to import, and most texts are ASCII

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, offsets = "", []  # characters before each token; -1 within a code point
    for piece in pieces:
        if decoder.getstate()[0]:
            if not piece or 0x80 <= piece[0] < 0xC0:
                offsets.append(-1)
                text += decoder.decode(piece)
                continue
            text += decoder.decode(b"", final=True)
        offsets.append(len(text))
        text += decoder.decode(piece)
    starts = {match.start() for match in regex.finditer(r"\X", text)} | {0, len(text)}
    return [k for k, offset in enumerate(offsets) if offset in starts]


def characters_of(pieces: Sequence[bytes]) -> Iterator[tuple[int, int, str]]:
    """Yield the tokens that share characters together: the first, the end, and their text."""
    starts = [*range(len(pieces))]
    if any(not piece.isascii() for piece in pieces):
        starts = character_starts(pieces)
    for first, end in itertools.pairwise([*starts, len(pieces)]):
        yield first, end, joined_bytes(pieces[first:end])


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
    logprob: Any,
    entropy: Any,
    greedy: Any,
) -> str:
    """Render tokens as one line of HTML, coloured by surprisal, with their scores in tooltips.

    Tokens that share a character are one box, with the colour of their sum.

    Args:
        tokens: names in the vocabulary.
        logprob, entropy: nats per token, arrays or lists; NaN for an unscored token, which gets a
            border.
        greedy: likewise, True for each token that is the most probable one at its position.
    """
    spans = []
    for first, end, text in characters_of(token_bytes(tokens, byte_level=is_byte_level(tokens))):
        scores = []
        numbers = (values[first:end] for values in (logprob, entropy, greedy))
        for p, h, is_greedy in zip(*numbers, strict=True):
            score = f"log-probability {p:.3f} nats, entropy {h:.3f} nats"
            score += ", the most probable token" if is_greedy else ""
            scores.append("no probability: no token before it" if math.isnan(p) else score)
        values = [p for p in logprob[first:end] if not math.isnan(p)]
        style = "outline:1px dotted #888"
        if values:
            share = min(1.0, max(0.0, -sum(values) / DARKEST))
            style = f"background:rgba(214,96,32,{0.85 * share:.2f})"
        shown, title = html.escape(_visible(text)), html.escape("\n".join(scores))
        spans.append(f'<span style="{style};{STYLE}" title="{title}">{shown}</span>')
    return "".join(spans)


def _visible(text: str) -> str:
    """Return the text with newlines as `↵` and unprintable characters as codes."""
    return one_line(text.replace("\n", "↵")) or "∅"
