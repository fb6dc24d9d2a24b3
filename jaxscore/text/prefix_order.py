"""Many texts as windows that are planned one after the other; no two share a long beginning.

A device can then compute the first window while the next ones are encoded. Texts share what they
begin with, so sorted texts are cut where two neighbours begin differently.
"""

import bisect
import itertools
from collections.abc import Sequence

from jaxscore.types.requests import Request, Unusable

# In characters, about four for each token: small windows first, so that a device begins early, and
# large ones later, since each one's last rows are filled up. A window is encoded and planned while
# the one before is computed, so they grow slowly, and end soon after half of what is left: while
# the last one is planned, nothing else happens.
FIRST, LARGEST, GROWTH = 1 << 19, 1 << 22, 1.5
MOST_SHARED = 32  # characters that two windows may have in common, and compute twice
SEARCHED = 256  # places that are looked at together for where neighbours share the least


def order_by_prefix(requests: Sequence[Request | Unusable]) -> tuple[list[int], list[int]]:
    """An order of the requests, and how many of them each window has.

    Less than two windows' worth of text keeps its order and is one window.

    Returns:
        The requests' places in their new order, and sizes that add up to their number. A text
        shares at most `MOST_SHARED` characters with any text of another window, and equals none.
    """
    texts = [
        "" if isinstance(one, Unusable) else one.context + one.continuation for one in requests
    ]
    lengths = [len(text) for text in texts]
    if sum(lengths) < 2 * FIRST:
        return list(range(len(requests))), [len(requests)] if requests else []
    order = sorted(range(len(requests)), key=texts.__getitem__)
    until = [0, *itertools.accumulate(lengths[k] for k in order)]  # characters before each place
    sizes: list[int] = []
    begin = at = 0
    grown = float(FIRST)
    while at < len(order):
        left = until[-1] - until[begin]
        wanted = min(grown, LARGEST, max(FIRST, left / 2))
        at = max(at, bisect.bisect_left(until, until[begin] + wanted))
        cut = _cut([texts[k] for k in order[at - 1 : at + SEARCHED]])
        if cut is None:  # no place to cut among these
            at += SEARCHED
            continue
        stop = at + cut
        sizes.append(stop - begin)
        begin = at = stop
        grown *= GROWTH
    if begin < len(order):
        sizes.append(len(order) - begin)
        if len(sizes) > 1 and until[-1] - until[begin] < FIRST:  # too little for rows of its own
            sizes[-2:] = [sum(sizes[-2:])]
    return order, sizes


def _cut(texts: Sequence[str]) -> int | None:
    """The first of the two neighbours that share the least; None where all share more than
    `MOST_SHARED`, or are equal."""
    heads = [text[: MOST_SHARED + 1] for text in texts]
    best, least = None, MOST_SHARED + 1
    for k in range(len(texts) - 1):
        shared = _shared(*heads[k : k + 2])
        if shared < least and texts[k] != texts[k + 1]:
            best, least = k, shared
    return best


def _shared(one: str, other: str) -> int:
    """Characters that two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
