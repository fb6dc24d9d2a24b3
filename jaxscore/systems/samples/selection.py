"""`select` and `vote`: one response out of the first N sampled ones, by self-certainty.

Best-of-N by self-certainty and Borda voting (Kang et al., arXiv 2502.18581). Selecting takes the
response with the highest confidence among those with an extractable answer. Voting ranks all by
confidence, gives rank r (from 0) of n responses (n - r)^power votes, and pools the votes of equal
answers: power 0 is the majority vote, a high power comes near selecting.

N counts in each item, and so do `generator` and `dataset`. The published scripts take all three
from the first item, which is the same wherever the items are alike.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.analysis import margins
from jaxscore.errors import InputError
from jaxscore.systems.samples import sample_items
from jaxscore.systems.samples.answer_rules import AUTO, AnswerRules, answer_rules
from jaxscore.systems.samples.sample_items import Result
from jaxscore.systems.samples.symbolic import SymbolicComparison

NO_ANSWER = -1e9  # the published confidence of a choice without an extractable answer
NOTHING_EXTRACTABLE, NO_CONFIDENCE = "no_answer", "no_confidence"
# Why the order of the list decides in place of the confidences, and what people read of it.
FALLBACKS = {
    NOTHING_EXTRACTABLE: "no response has an extractable answer",
    NO_CONFIDENCE: "no response with an extractable answer has a confidence",
}
TAKEN = {
    NOTHING_EXTRACTABLE: ", so the first is taken",
    NO_CONFIDENCE: ", so their order in the list decides",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The first N responses of an item.

    Attributes:
        responses: as the model wrote them; None for one that is null.
        confidences: nats per token; None for one that is not known.
        answers: what the responses are compared by; None without a readable answer.
        forms: of each answer, see `AnswerRules.read`; None without a readable answer.
        rules: by which the answers were read.
        noise: how far rounding moves a confidence, in nats; None where nobody has looked.
    """

    given: sample_items.Item
    responses: list[str | None]
    confidences: list[float | None]
    answers: list[str | None]
    forms: list[str | None]
    rules: AnswerRules
    noise: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Unusable:
    """An item that has none, and why."""

    given: sample_items.Item
    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A place in the list, and how it was chosen.

    Attributes:
        index: from 0.
        confidence: of that response; of a vote, its answer's votes.
        answered: whether it has an answer.
        within_noise: whether rounding could turn its answer; None where the noise is not known.
        fallback: a key of `FALLBACKS`; None where the confidences, or the votes, decided.
    """

    index: int
    confidence: float | None
    answered: bool
    within_noise: bool | None = None
    fallback: str | None = None


def load(
    path: Path,
    best_n: int,
    limit: int | None = None,
    rule: str = AUTO,
    gold: str | None = None,
) -> list[Candidates | Unusable]:
    """The first `limit` items of a file, each with at most its first N responses.

    An item takes `generator` and `dataset` from the first item if it has none.

    Args:
        rule: how answers are read, one of `answer_rules.RULES`.
        gold: the field with the right answer, or None. The rule `auto` reads numbers if that is
            a number.

    Raises:
        InputError: of the file as a whole, see `sample_items.load`.
    """
    return candidates(sample_items.load(path, limit), best_n, rule, gold)


def candidates(
    given: Sequence[sample_items.Item], best_n: int, rule: str = AUTO, gold: str | None = None
) -> list[Candidates | Unusable]:
    """Each item with at most its first N responses; `load` says what else."""
    return [_item(one, best_n, given[0], rule, gold) for one in given]


def read(
    given: Iterable[Any], best_n: int, rule: str = AUTO, gold: str | None = None
) -> list[Candidates | Unusable]:
    """Candidates from objects as a file has them; those of `load` stay as they are.

    Raises:
        InputError: one is no object.
    """
    known = list(given)
    if all(isinstance(one, (Candidates, Unusable)) for one in known):
        return known
    return candidates(sample_items.read(known), best_n, rule, gold)


def _item(
    given: sample_items.Item, best_n: int, first: sample_items.Item, rule: str, gold: str | None
) -> Candidates | Unusable:
    try:
        responses = sample_items.responses(given, "output", best_n)
        confidences = sample_items.confidences(given, best_n, len(responses))
        noise = sample_items.noise(given)
    except InputError as problem:
        return Unusable(given, str(problem))
    right = None if gold is None else given.fields.get(gold)
    rules = answer_rules(given.fields, first.fields, given.fields["output"], rule, right)
    found = [rules.read(text) for text in responses]
    answers, forms = ([one and one[k] for one in found] for k in (0, 1))
    return Candidates(given, responses, confidences, answers, forms, rules, noise)


def available(items: Sequence[Candidates | Unusable]) -> int | None:
    """The most responses that an item has of the N asked for; None where none can be used."""
    return max((len(one.responses) for one in items if isinstance(one, Candidates)), default=None)


def forms(
    items: Iterable[Candidates | Unusable],
) -> Iterator[tuple[AnswerRules, list[str | None]]]:
    """The rules and the forms of the answers of each item that can be used."""
    return ((one.rules, one.forms) for one in items if isinstance(one, Candidates))


def select(
    confidences: Sequence[float | None],
    answers: Sequence[str | None],
    noise: float | None = None,
) -> Choice:
    """The highest confidence among the responses with an answer, the first of equal ones.

    Unknown confidences rank last; where those of all answers are unknown, the first answer is
    taken. Without any answer, the first response, at a confidence of -1e9 as published.

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
        same: whether two unequal answers are the same after all; asked about each distinct
            answer and those before it, the first that is the same gets the votes.
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


def evaluate_select(items: Sequence[Candidates | Unusable]) -> list[Result]:
    """One result per item, in order."""
    return [
        _result(one, select(one.confidences, one.answers, one.noise))
        if isinstance(one, Candidates)
        else _failed(one)
        for one in items
    ]


def evaluate_vote(
    items: Sequence[Candidates | Unusable], power: float, symbolic: SymbolicComparison
) -> Iterator[Result]:
    """One result per item, in order.

    While an item's result is looked at, `symbolic` is still about that item.

    Raises:
        InputError: the power makes votes that no number holds; SymPy is needed and not installed.
    """
    for one in items:
        if not isinstance(one, Candidates):
            yield _failed(one)
            continue
        symbolic.next_item()
        try:
            same = symbolic.equal if one.rules.symbolic else None
            choice = vote(one.confidences, one.answers, power, same, one.noise)
        except OverflowError:
            raise InputError(
                f"setting power is {power}: the votes of {len(one.responses)} responses are more "
                "than a number holds; give a smaller one"
            ) from None
        yield _result(one, choice, _timeouts(symbolic))


def _timeouts(symbolic: SymbolicComparison) -> str | None:
    if not symbolic.timeouts:
        taken = "SymPy took its time over all its answers" if symbolic.exhausted else None
    else:
        times = "once" if symbolic.timeouts == 1 else f"{symbolic.timeouts} times"
        taken = f"SymPy ran out of time or memory {times}"
    return f"{taken}, so the rest was compared as text" if symbolic.exhausted else taken


def _result(one: Candidates, choice: Choice, *notes: str | None) -> Result:
    fields = {name: value for name, value in one.given.fields.items() if name != "output"}
    record = {
        **fields,
        "output": [one.responses[choice.index]],
        "confidence": choice.confidence,
    }
    if one.rules.forms is not None:
        record["answer_form"] = one.forms[choice.index]
    if choice.within_noise is not None:
        record["within_noise"] = choice.within_noise
    found = (
        None if choice.fallback is None else FALLBACKS[choice.fallback] + TAKEN[choice.fallback],
        sample_items.oddities(one.responses, one.confidences),
        *notes,
    )
    odd = [note for note in found if note]
    return Result(
        one.given.name,
        record,
        answered=choice.answered,
        fallback=choice.fallback,
        note="; ".join(odd) or None,
        within_noise=choice.within_noise,
        index=choice.index,
    )


def _failed(one: Unusable) -> Result:
    fields = {name: value for name, value in one.given.fields.items() if name != "output"}
    record: dict[str, Any] = {**fields, "output": [], "confidence": None, "error": one.error}
    return Result(one.given.name, record, one.error)
