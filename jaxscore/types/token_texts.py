"""Text and HTML of tokens, from the tokenizer's names of them."""

import functools
import html
import math
from collections.abc import Iterable, Sequence

from jaxscore.io.printable import one_line

DARKEST = 12.0  # nats of surprisal from which on a token has the darkest background
STYLE = "padding:1px 0;border-radius:2px;white-space:pre-wrap"
LEGEND = "darker: less probable; hover for numbers"


def token_texts(names: Sequence[str]) -> list[str]:
    """The text of each token from the tokenizer's name of it.

    Byte-level tokenizers name bytes by printable characters (`Ġ` is a blank) and sentencepiece
    names a blank `▁`. A token that holds a part of a character shows `�`.
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


@functools.cache
def byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table).

    Printable characters of Latin-1 stand for themselves, and the other bytes, in order, for the
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
    """One line of coloured tokens; the numbers of each are in its tooltip.

    Args:
        tokens: the tokenizer's names.
        logprob, entropy: nats; NaN for a token without a probability, which has a border.
        greedy: whether the token is the most probable one.
    """
    spans = []
    for text, p, h, best in zip(token_texts(tokens), logprob, entropy, greedy, strict=True):
        if math.isnan(p):
            style, title = "outline:1px dotted #888", "no probability: nothing stands before it"
        else:
            share = min(1.0, max(0.0, -p / DARKEST))
            style = f"background:rgba(214,96,32,{0.85 * share:.2f})"
            title = f"log-probability {p:.3f} nats, entropy {h:.3f} nats"
            title += ", the most probable token" if best else ""
        shown = html.escape(_visible(text))
        spans.append(f'<span style="{style};{STYLE}" title="{html.escape(title)}">{shown}</span>')
    return "".join(spans)


def _visible(text: str) -> str:
    """Line ends shown as `↵`, and what does not print by its number."""
    return one_line(text.replace("\n", "↵")) or "∅"
