"""Chooses between responses by confidence: the highest one, or a vote weighted by rank.

Best-of-N by self-certainty and Borda voting (Kang et al., arXiv 2502.18581). Selecting takes the
response with the highest confidence among those with an extractable answer. Voting ranks all by
confidence, gives rank r (from 0) of n responses (n - r)^power votes, and pools the votes of equal
answers: power 0 is the majority vote, a high power comes near selecting.
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
    """A response, and how it was chosen.

    Attributes:
        index: from 0.
        confidence: of that response; of a vote, its answer's votes.
        answered: whether it has what is looked for: an extractable answer, code.
        within_noise: whether rounding could turn its answer; None if the noise is not known.
        fallback: why something else than the confidences, votes or reply decided; None if these
            did.
        notes: irregularities, in words.
        error: why it cannot be used.
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
    """The highest confidence among the responses with an answer, the first of equal ones.

    Unknown confidences rank last; if all answers' are unknown, the first answer is taken.
    Without any answer, the first response, at a confidence of -1e9 as published.

    Args:
        noise: how far rounding moves a confidence. Within it lies a choice whose confidence is
            by at most twice that above the best of the responses with another answer.
    """
    answered = [index for index, answer in enumerate(answers) if answer is not None]
    if not answered:
        return Choice(0, NO_ANSWER, False, _not_turned(noise), NOTHING_EXTRACTABLE)
    ranked = _ranked(confidences)
    index = max(answered, key=ranked.__getitem__)  # the first of equal ones
    turned = None
    if noise is not None:
        others = [ranked[at] for at in answered if answers[at] != answers[index]]
        turned = margins.within(margins.lead([ranked[index], *others]), noise)
    found = confidences[index]
    return Choice(index, found, True, turned, NO_CONFIDENCE if found is None else None)


def _not_turned(noise: float | None) -> bool | None:
    """`Choice.within_noise` of what confidences have no part in."""
    return None if noise is None else False


def _ranked(confidences: Sequence[float | None]) -> list[float]:
    """What responses are ranked by: an unknown confidence is below all others."""
    return [-math.inf if value is None else value for value in confidences]


def vote(
    confidences: Sequence[float | None],
    answers: Sequence[str | None],
    power: float,
    same: Callable[[str, str], bool] | None = None,
    noise: float | None = None,
) -> Choice:
    """The first response of the answer with the most votes, the first of equal ones.

    Responses without an answer hold their rank and their votes are lost; those of equal
    confidence are ranked as they stand, unknown confidences last. Where those of all answers are
    unknown, the votes hang on the order of the list, unless the power is 0.

    Args:
        same: whether two unequal answers are the same after all; compares each distinct answer
            with those before it, of which the first that is the same gets the votes.
        noise: how far rounding moves a confidence. Within it lies a choice that could lose to
            another answer, see `_could_lose`.

    Raises:
        OverflowError: votes are more than a float64 holds.
    """
    n = len(answers)
    ranked = _ranked(confidences)
    order = sorted(range(n), key=ranked.__getitem__, reverse=True)  # equal ones keep their order
    worth = {index: (n - rank) ** power for rank, index in enumerate(order)}
    # Added in the order of the list, since a different order may round differently, and a tie
    # may hang on that.
    votes: dict[int, float] = {}
    first: dict[str, int] = {}  # of each distinct answer, where it first stands
    pooled: dict[str, int] = {}  # and where its votes go
    voters: dict[int, list[int]] = {}  # the responses whose votes are there
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
        return Choice(0, 0.0, False, _not_turned(noise), NOTHING_EXTRACTABLE)
    most = max(votes.values())
    if math.isinf(most):
        raise OverflowError(most)
    best = min(at for at, count in votes.items() if count == most)
    turned = None if noise is None else _could_lose(best, voters, ranked, power, noise)
    pairs = zip(confidences, answers, strict=True)
    known = power == 0 or any(c is not None for c, answer in pairs if answer is not None)
    return Choice(best, most, True, turned, None if known else NO_CONFIDENCE)


def _could_lose(
    best: int, voters: dict[int, list[int]], ranked: Sequence[float], power: float, noise: float
) -> bool:
    """Whether another answer could have as many votes as the winner, by bounds on the two.

    Confidences that are more than twice the noise apart keep their order. The bounds let each
    answer have the worst or best ranks that leaves, without regard to the others', so they may
    doubt a choice that no single shift of the confidences would turn, and never the reverse.
    """
    fewest, _ = _bounds(voters[best], ranked, power, noise)
    for at, own in voters.items():
        _, most = _bounds(own, ranked, power, noise)
        if at != best and (most > fewest or (most == fewest and at < best)):
            return True
    return False


def _bounds(
    own: Sequence[int], ranked: Sequence[float], power: float, noise: float
) -> tuple[float, float]:
    """The fewest and the most votes of an answer.

    Its responses are interchangeable: the k-th best of them has k of its own before it, and of
    the others those that are surely, or possibly, more certain.
    """
    n, mine = len(ranked), set(own)
    others = sorted(value for at, value in enumerate(ranked) if at not in mine)
    fewest, most = [], []
    for k, value in enumerate(sorted((ranked[at] for at in own), reverse=True)):
        surely = k + len(others) - bisect.bisect_right(others, value + 2 * noise)
        possibly = k + len(others) - bisect.bisect_left(others, value - 2 * noise)
        ends = [(n - surely) ** power, (n - possibly) ** power]
        fewest.append(min(ends))
        most.append(max(ends))
    return math.fsum(fewest), math.fsum(most)


def majority(
    answers: Sequence[str | None], same: Callable[[str, str], bool] | None = None
) -> Callable[[int], int]:
    """The vote in which each of the first N responses has one voice, as a function of N."""
    return lambda n: vote([None] * len(answers[:n]), answers[:n], 0.0, same).index
