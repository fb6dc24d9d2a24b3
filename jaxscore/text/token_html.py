"""Tokens as HTML for a notebook: the less probable a token, the darker its background."""

import html
import math
from collections.abc import Iterable, Sequence

from jaxscore.printable import one_line
from jaxscore.token_texts import token_texts

DARKEST = 12.0  # nats of surprisal from which on a token has the darkest background
STYLE = "padding:1px 0;border-radius:2px;white-space:pre-wrap"
LEGEND = "darker: less probable; hover for numbers"


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
