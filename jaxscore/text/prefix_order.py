"""Orders texts by shared prefix and groups them in windows that share no long prefix.

A device computes one window while the next one is encoded and planned. Sorting brings shared
prefixes together, so windows end where two neighbours differ early.
"""

import bisect
import itertools
from collections.abc import Sequence

from jaxscore.types.requests import Request, Unusable

# Characters, about four per token. Small windows first, so that the device starts early; large ones
# later, since the last rows of each are padded. They grow slowly, since a window is encoded and
# planned while the previous one is computed, and end soon after half of the remaining text, since
# nothing overlaps with planning the last one.
FIRST, LARGEST, GROWTH = 1 << 19, 1 << 22, 1.5
MOST_SHARED = 32  # most characters of a prefix that two windows share, and compute twice
SEARCHED = 256  # neighbours compared at a time to find the shortest shared prefix


def order_by_prefix(requests: Sequence[Request | Unusable]) -> tuple[list[int], list[int]]:
    """Order requests by their text, and split them into windows.

    Less text than two windows keeps its order and is one window.

    Returns:
        Indices of the requests in their new order, and the number of requests of each window. A
        text shares a prefix of at most `MOST_SHARED` characters with texts of other windows, and
        equals none of them.
    """
    texts = [
        "" if isinstance(request, Unusable) else request.context + request.continuation
        for request in requests
    ]
    lengths = [len(text) for text in texts]
    if sum(lengths) < 2 * FIRST:
        return list(range(len(requests))), [len(requests)] if requests else []
    order = sorted(range(len(requests)), key=texts.__getitem__)
    until = [0, *itertools.accumulate(lengths[k] for k in order)]  # characters before each text
    sizes: list[int] = []
    begin = at = 0
    grown = float(FIRST)
    while at < len(order):
        left = until[-1] - until[begin]
        size = min(grown, LARGEST, max(FIRST, left / 2))
        at = max(at, bisect.bisect_left(until, until[begin] + size))
        cut = _cut([texts[k] for k in order[at - 1 : at + SEARCHED]])
        if cut is None:
            at += SEARCHED
            continue
        stop = at + cut
        sizes.append(stop - begin)
        begin = at = stop
        grown *= GROWTH
    if begin < len(order):
        sizes.append(len(order) - begin)
        if len(sizes) > 1 and until[-1] - until[begin] < FIRST:  # too small for a window
            sizes[-2:] = [sum(sizes[-2:])]
    return order, sizes


def _cut(texts: Sequence[str]) -> int | None:
    """Index of the text that shares the shortest prefix with the next one, or None if all
    neighbours share more than `MOST_SHARED` characters or are equal."""
    heads = [text[: MOST_SHARED + 1] for text in texts]
    best, least = None, MOST_SHARED + 1
    for k in range(len(texts) - 1):
        shared = _shared_prefix(heads[k], heads[k + 1])
        if shared < least and texts[k] != texts[k + 1]:
            best, least = k, shared
    return best


def _shared_prefix(first: str, second: str) -> int:
    """Length of the prefix that two texts share, in characters."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(first), len(second)))
