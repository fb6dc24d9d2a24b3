"""How often another boundary policy would change what is scored."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxscore.requests import Request
from jaxscore.text.encoder import Boundary, Encoded, TextEncoder

# With an empty context these policies score the same tokens, so there is nothing to compare.
ALIKE_WITHOUT_CONTEXT: set[Boundary] = {"joint", "exact", "separate"}


def boundary_audit(
    encoder: TextEncoder, requests: Iterable[Request], chosen: Boundary, others: Sequence[Boundary]
) -> dict[Boundary, int]:
    """For how many requests another boundary policy would change the scores.

    Returns:
        For each policy of `others` the number of requests whose scored tokens, or the tokens
        before them, are not those of `chosen`.
    """
    if {chosen, *others} <= ALIKE_WITHOUT_CONTEXT:
        requests = [one for one in requests if one.context]
    else:
        requests = list(requests)
    base = encoder.encode(requests, chosen)
    return {
        other: sum(
            _differ(a, b) for a, b in zip(base, encoder.encode(requests, other), strict=True)
        )
        for other in others
    }


def differing(
    encoder: TextEncoder,
    pairs: Sequence[tuple[Request, Request]],
    chosen: Boundary,
    other: Boundary,
) -> list[bool]:
    """Whether the second request of each pair scores other tokens, or after other ones.

    Args:
        pairs: the first of each is encoded by `chosen`, the second by `other`.
    """
    first = encoder.encode([one for one, _ in pairs], chosen)
    second = encoder.encode([one for _, one in pairs], other)
    return [_differ(a, b) for a, b in zip(first, second, strict=True)]


def _differ(one: Encoded, other: Encoded) -> bool:
    """Whether the two score other tokens, or the same after another context."""
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
