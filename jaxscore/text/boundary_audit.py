"""How often another boundary policy would change what is scored."""

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.encoder import Boundary, Encoded, TextEncoder
from jaxscore.types.requests import Request

# With an empty context these policies score the same tokens, so there is nothing to compare.
ALIKE_WITHOUT_CONTEXT: set[Boundary] = {"joint", "exact", "separate"}


def boundary_audit(
    encoder: TextEncoder,
    requests: Iterable[Request],
    chosen: Boundary,
    others: Sequence[Boundary],
    most: int | None = None,
) -> dict[Boundary, int]:
    """For how many requests another boundary policy would change the scores.

    Args:
        most: positions of the model, if longer texts fail; they are not compared.

    Returns:
        For each policy of `others` the number of requests whose scored tokens, or the tokens
        before them, are not those of `chosen`.
    """
    if {chosen, *others} <= ALIKE_WITHOUT_CONTEXT:
        requests = [one for one in requests if one.context]
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
    """Whether the second request of each pair scores other tokens, or after other ones.

    Args:
        pairs: the first of each is encoded by `chosen`, the second by `other`.
        most: as of `boundary_audit`.
    """
    first = _encoded(encoder, [one for one, _ in pairs], chosen, most)
    second = _encoded(encoder, [one for _, one in pairs], other, most)
    return [_differ(a, b) for a, b in zip(first, second, strict=True)]


def _encoded(
    encoder: TextEncoder, requests: Sequence[Request], policy: Boundary, most: int | None
) -> list[Encoded | TextError]:
    return encode_each(functools.partial(encoder.encode, boundary=policy, most=most), requests)


def _differ(one: Encoded | TextError, other: Encoded | TextError) -> bool:
    """Whether the two score other tokens, or the same after another context."""
    if isinstance(one, TextError) or isinstance(other, TextError):
        return False  # a text that the tokenizer cannot read is not scored
    if len(one) == len(other) == 1:
        (a,), (b,) = one, other
        return a.first_scored != b.first_scored or not np.array_equal(a.ids, b.ids)
    pairs = zip(_scored_paths(one), _scored_paths(other), strict=False)
    same = sum(s.n_scored for s in one) == sum(s.n_scored for s in other)
    return not same or any(not np.array_equal(a, b) for a, b in pairs)


def _scored_paths(encoded: Encoded) -> Iterator[np.ndarray]:
    """For each scored token the ids up to and with it."""
    for sequence in encoded:
        for stop in range(sequence.first_scored, len(sequence.ids)):
            yield sequence.ids[: stop + 1]
