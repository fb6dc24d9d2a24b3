"""Choices between responses by confidence: the highest one, or a vote weighted by rank.

Best-of-N by self-certainty and Borda voting (Kang et al., arXiv 2502.18581). Selecting takes the
response with the highest confidence among those with an extractable answer. Voting ranks all by
confidence, gives rank r (from 0) of n responses (n - r)^power votes, and pools the votes of equal
answers: power 0 is the majority vote; a high power approximates selecting.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxscore.analysis import margins

NO_ANSWER = -1e9  # the published confidence of a choice without an extractable answer
NOTHING_EXTRACTABLE, NO_CONFIDENCE = "no_answer", "no_confidence"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A chosen response.

    Attributes:
        index: the response's index, from 0.
        confidence: the response's confidence; for a vote, its answer's votes.
        answered: True if it has an extractable answer, or code.
        within_noise: True if rounding could change the chosen answer; None if noise is unknown.
        fallback: the reason why confidences, votes or the reply did not decide; None if they did.
        notes: the irregularities of the item.
        error: the reason why it cannot be used.
    """

    index: int
    confidence: float | None = None
    answered: bool = True
    within_noise: bool | None = None
    fallback: str | None = None
    notes: Sequence[str] = ()
    error: str | None = None


def select(
    confidences: Sequence[float | None],
    answers: Sequence[str | None],
    noise: float | None = None,
) -> Choice:
    """Return the highest confidence among the responses with an answer, the first of equal ones.

    Unknown confidences rank last; if those of all answers are unknown, the first answer is taken.
    Without any answer it is the first response, with the published confidence -1e9.

    Args:
        noise: the rounding error of a confidence. A choice is within it if its confidence is at
            most twice that above the best response with another answer.
    """
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    if not answered:
        within_noise = None if noise is None else False
        return Choice(0, NO_ANSWER, False, within_noise, NOTHING_EXTRACTABLE)
    ranked = _ranked(confidences)
    index = max(answered, key=ranked.__getitem__)  # the first of equal ones
    is_within_noise = None
    if noise is not None:
        others = [ranked[at] for at in answered if answers[at] != answers[index]]
        is_within_noise = margins.within(margins.lead([ranked[index], *others]), noise)
    confidence = confidences[index]
    return Choice(
        index, confidence, True, is_within_noise, NO_CONFIDENCE if confidence is None else None
    )


def _ranked(confidences: Sequence[float | None]) -> list[float]:
    """Return the values that rank responses: an unknown confidence is below all others."""
    return [-math.inf if value is None else value for value in confidences]


def vote(
    confidences: Sequence[float | None],
    answers: Sequence[str | None],
    power: float,
    same: Callable[[str, str], bool] | None = None,
    noise: float | None = None,
) -> Choice:
    """Return the first response of the answer with the most votes, the first of equal ones.

    Responses without an answer keep their rank, but their votes are lost. Responses of equal
    confidence rank in their order, unknown confidences last. If those of all answers are unknown,
    the votes depend on the order of the list, unless the power is 0.

    Args:
        same: the comparison of two answers of different spellings; each distinct answer is
            compared with those before it, and the first equal one gets its votes.
        noise: the rounding error of a confidence. A choice is within it if it could lose to
            another answer, see `_could_lose`.

    Raises:
        OverflowError: votes exceed the range of float64.
    """
    n = len(answers)
    ranked = _ranked(confidences)
    order = sorted(range(n), key=ranked.__getitem__, reverse=True)  # equal ones keep their order
    worth = {index: (n - rank) ** power for rank, index in enumerate(order)}
    # Added in the order of the list, since another order may round differently and break a tie.
    votes: dict[int, float] = {}
    first: dict[str, int] = {}  # distinct answer -> index of its first response
    pooled: dict[str, int] = {}  # distinct answer -> index that gets its votes
    voters: dict[int, list[int]] = {}  # that index -> its voters
    for index, answer in enumerate(answers):
        if answer is None:
            continue
        if answer not in first:
            pooled[answer] = index
            if same is not None:
                earlier = (at for other, at in first.items() if same(answer, other))
                pooled[answer] = next(earlier, index)
            first[answer] = index
        votes[pooled[answer]] = votes.get(pooled[answer], 0.0) + worth[index]
        voters.setdefault(pooled[answer], []).append(index)
    if not votes:
        return Choice(0, 0.0, False, None if noise is None else False, NOTHING_EXTRACTABLE)
    most_votes = max(votes.values())
    if math.isinf(most_votes):
        raise OverflowError(most_votes)
    best = min(at for at, count in votes.items() if count == most_votes)
    is_within_noise = None if noise is None else _could_lose(best, voters, ranked, power, noise)
    pairs = zip(confidences, answers, strict=True)
    is_decided = power == 0 or any(c is not None for c, answer in pairs if answer is not None)
    return Choice(best, most_votes, True, is_within_noise, None if is_decided else NO_CONFIDENCE)


def _could_lose(
    best: int, voters: dict[int, list[int]], ranked: Sequence[float], power: float, noise: float
) -> bool:
    """Return True if another answer could have as many votes as the winner, by bounds on both.

    Confidences more than twice the noise apart keep their order. The bounds give each answer the
    worst or best ranks that this permits, independently of the other answers, so they may doubt a
    choice that no joint shift of the confidences would change, but never the reverse.
    """
    lower, _ = _bounds(voters[best], ranked, power, noise)
    for at, responses in voters.items():
        _, upper = _bounds(responses, ranked, power, noise)
        if at != best and (upper > lower or (upper == lower and at < best)):
            return True
    return False


def _bounds(
    responses: Sequence[int], ranked: Sequence[float], power: float, noise: float
) -> tuple[float, float]:
    """Return the lower and upper bound of an answer's votes.

    Its responses are interchangeable: the k-th best ranks after k of them and after the other
    responses that are surely, or possibly, more certain.
    """
    n, own_indices = len(ranked), set(responses)
    others = sorted(value for at, value in enumerate(ranked) if at not in own_indices)
    lower, upper = [], []
    for k, value in enumerate(sorted((ranked[at] for at in responses), reverse=True)):
        surely = k + len(others) - bisect.bisect_right(others, value + 2 * noise)
        possibly = k + len(others) - bisect.bisect_left(others, value - 2 * noise)
        ends = [(n - surely) ** power, (n - possibly) ** power]
        lower.append(min(ends))
        upper.append(max(ends))
    return math.fsum(lower), math.fsum(upper)


def majority(
    answers: Sequence[str | None], same: Callable[[str, str], bool] | None = None
) -> Callable[[int], int]:
    """Return the unweighted vote among the first N responses as a function of N."""
    return lambda n: vote([None] * len(answers[:n]), answers[:n], 0.0, same).index
