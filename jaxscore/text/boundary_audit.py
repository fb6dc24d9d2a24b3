"""Counts requests whose scored tokens another boundary policy would change."""

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.encoder import Boundary, Encoded, TextEncoder
from jaxscore.types.requests import Request

# These policies score the same tokens if the context is empty.
EQUAL_WITHOUT_CONTEXT: set[Boundary] = {"joint", "exact", "separate"}


def boundary_audit(
    encoder: TextEncoder,
    requests: Iterable[Request],
    chosen: Boundary,
    others: Sequence[Boundary],
    most: int | None = None,
) -> dict[Boundary, int]:
    """Count the requests whose scores another boundary policy would change.

    Args:
        most: positions of the model if longer texts fail, which are not compared; otherwise None.

    Returns:
        For each policy of `others`, the number of requests whose scored tokens, or the tokens
        before them, differ from those of `chosen`.
    """
    if {chosen, *others} <= EQUAL_WITHOUT_CONTEXT:
        requests = [request for request in requests if request.context]
    else:
        requests = list(requests)

    base = _encoded(encoder, requests, chosen, most)
    return {
        other: sum(
            _differ(a, b)
            for a, b in zip(base, _encoded(encoder, requests, other, most), strict=True)
        )
        for other in others
    }


def compare_boundaries(
    encoder: TextEncoder,
    pairs: Sequence[tuple[Request, Request]],
    chosen: Boundary,
    other: Boundary,
    most: int | None = None,
) -> list[bool]:
    """Whether the two requests of each pair score different tokens, or after different contexts.

    Args:
        pairs: requests to encode by `chosen` (first) and by `other` (second).
        most: as of `boundary_audit`.
    """
    first = _encoded(encoder, [request for request, _ in pairs], chosen, most)
    second = _encoded(encoder, [request for _, request in pairs], other, most)
    return [_differ(a, b) for a, b in zip(first, second, strict=True)]


def _encoded(
    encoder: TextEncoder, requests: Sequence[Request], policy: Boundary, most: int | None
) -> list[Encoded | TextError]:
    return encode_each(functools.partial(encoder.encode, boundary=policy, most=most), requests)


def _differ(first: Encoded | TextError, second: Encoded | TextError) -> bool:
    """Whether two encodings score different tokens, or after different contexts."""
    if isinstance(first, TextError) or isinstance(second, TextError):
        return False  # neither is scored
    if len(first) == len(second) == 1:
        (a,), (b,) = first, second
        return a.first_scored != b.first_scored or not np.array_equal(a.ids, b.ids)
    pairs = zip(_scored_paths(first), _scored_paths(second), strict=False)
    same = sum(s.n_scored for s in first) == sum(s.n_scored for s in second)
    return not same or any(not np.array_equal(a, b) for a, b in pairs)


def _scored_paths(encoded: Encoded) -> Iterator[np.ndarray]:
    """Ids up to and including each scored token."""
    for sequence in encoded:
        for stop in range(sequence.first_scored, len(sequence.ids)):
            yield sequence.ids[: stop + 1]
