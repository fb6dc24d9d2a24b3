"""Which responses of items are right, and how well confidences separate them from the others."""

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis import confidence_quality, forecasts
from jaxscore.errors import InputError, NothingUsable
from jaxscore.systems.selection.answers import (
    AUTO,
    NO_READABLE_ANSWER,
    Answers,
    answer_rules,
    count_forms,
    read_answers,
    unreadable_line,
)
from jaxscore.systems.selection.grading import MAJORITY, Gold, Marks, read_gold, sizes
from jaxscore.systems.selection.ranking import majority, select
from jaxscore.systems.selection.symbolic import SymbolicComparison
from jaxscore.systems.self_certainty.confidences import MEASURED, Confidence, Inputs

SELF_CERTAINTY, PERPLEXITY = "self-certainty", "negative perplexity"
MOST_WRONG = 50  # wrong responses that are listed


@dataclasses.dataclass(frozen=True)
class Graded:
    """The responses of an item with gold.

    Attributes:
        right: whether each response is right.
        answers: of the responses.
        n_unreadable: the number of outputs without a readable answer, unless gold is verdicts.
        majority: N -> what a vote takes of the first N in which each response has one voice.
    """

    right: list[bool]
    answers: Answers
    n_unreadable: int
    majority: Mapping[int, int | None]


@dataclasses.dataclass
class RightResponses:
    """What the gold of all items says of their responses.

    Attributes:
        graded: the items with gold, by their place.
        sizes: the numbers N of first responses that are looked at.
        without: names of items without gold.
        errors: place of an item -> why its gold is unusable.
        is_unreadable: no response has a readable answer, so that none is graded.
        is_unverified: expressions were compared as text, since Math-Verify is not installed.
    """

    graded: dict[int, Graded]
    sizes: list[int]
    without: list[str]
    errors: dict[int, str]
    is_unreadable: bool = False
    is_unverified: bool = False

    def fields(self, place: int) -> dict[str, Any]:
        """Fields of an item's record."""
        found = self.graded.get(place)
        out: dict[str, Any] = {
            "right": None if found is None or self.is_unreadable else found.right
        }
        if found is not None and found.answers.rules.forms is not None:
            out["answer_forms"] = found.answers.forms
        if place in self.errors:
            out["error"] = self.errors[place]
        return out


def read_golds(
    items: Iterable[Inputs], field: str
) -> tuple[dict[int, Gold], list[str], dict[int, str]]:
    """Read the gold of all items.

    Returns:
        The gold of the items that have one, by their place; the names of items without; and place
        of an item -> why its gold is unusable.

    Raises:
        NothingUsable: no item has gold.
    """
    known: dict[int, Gold] = {}
    without, errors = [], {}
    first: Mapping[str, Any] = {}
    for place, item in enumerate(items):
        first = first if place else item.given
        if not item.outputs:
            continue
        code = answer_rules(item.given, first).code
        try:
            found = read_gold(item.given, field, len(item.outputs), code=code)
        except InputError as problem:
            errors[place] = str(problem)
            continue
        if found is None:
            without.append(item.name)
        else:
            known[place] = found
    if not known and not errors:
        there = ", ".join(map(repr, first)) or "none"
        raise NothingUsable(
            f'no item has gold in field "{field}"; the first item has the fields {there}'
        )
    return known, without, errors


def read(items: Sequence[Inputs], field: str, rule: str = AUTO) -> RightResponses:
    """Grade the responses of all items.

    Args:
        field: of the items, with the gold.
        rule: how answers are read, one of `answer_rules.RULES`.

    Raises:
        NothingUsable: no item has gold.
        InputError: SymPy is needed and not installed.
    """
    known, without, errors = read_golds(items, field)
    first = items[0].given
    first_n = sizes(max((len(items[place].outputs) for place in known), default=1))
    graded, is_unverified = {}, False
    with SymbolicComparison() as symbolic:
        for place, found in known.items():
            symbolic.next_item()
            given, outputs = items[place].given, items[place].outputs
            rules = answer_rules(given, first, outputs, rule, given.get(field))
            same = symbolic.comparison(rules)
            texts = (text if isinstance(text, str) else None for text in outputs)
            answers = read_answers(texts, rules)
            vote = majority(answers.texts, same)
            graded[place] = Graded(
                right=found.right(len(outputs), answers, same),
                answers=answers,
                n_unreadable=answers.n_unreadable if found.verdicts is None else 0,
                majority={n: vote(n) for n in first_n},
            )
            is_unverified = is_unverified or symbolic.is_unverified
    is_unreadable = all(found.verdicts is None for found in known.values()) and not any(
        any(one.answers.forms) for one in graded.values()
    )
    is_unreadable = bool(known) and is_unreadable
    return RightResponses(graded, first_n, without, errors, is_unreadable, is_unverified)


class Responses(NamedTuple):
    """The responses that have gold and confidences, [n] each, item by item.

    Attributes:
        item, place: where each stands, both from 0.
        right: whether it is right.
        confidence: name -> values; higher is surer.
    """

    item: np.ndarray
    place: np.ndarray
    right: np.ndarray
    confidence: dict[str, np.ndarray]


def _responses(graded: Mapping[int, Graded], confidences: Sequence[Confidence]) -> Responses:
    items, places, right = array("q"), array("q"), array("b")
    columns: dict[str, array[float]] = {}
    for item, one in graded.items():
        known = confidences[item]
        for place, is_right in enumerate(one.right):
            if (values := confidences_of(known, place)) is not None:
                items.append(item)
                places.append(place)
                right.append(is_right)
                for name, value in values.items():
                    columns.setdefault(name, array("d")).append(value)
    confidence = {name: np.array(column) for name, column in columns.items()}
    return Responses(np.array(items), np.array(places), np.array(right, bool), confidence)


def confidences_of(known: Confidence, place: int) -> dict[str, float] | None:
    """The four confidences of a response, higher being surer, or None if it was not scored."""
    logprob, entropy, perplexity = ((known.measured or {})[name][place] for name in MEASURED)
    value = known.values[place]
    if value is None or logprob is None or entropy is None or perplexity is None:
        return None
    return {
        SELF_CERTAINTY: value,
        "negative mean entropy": -entropy,
        "mean log-probability": logprob,
        PERPLEXITY: -perplexity,
    }


def report(
    items: Sequence[Inputs],
    confidences: Sequence[Confidence],
    found: RightResponses,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """The quality of each confidence, and what choosing by it is worth, as a report has them."""
    graded = {} if found.is_unreadable else found.graded
    responses = _responses(graded, confidences)
    n_graded = sum(len(one.right) for one in graded.values())
    right, groups, lists = responses.right, responses.item, responses.confidence
    enough = len(right) >= 2
    bins = forecasts.reliability(-1 / lists[PERPLEXITY], right) if enough else []
    return {
        **({"no_share": NO_READABLE_ANSWER} if found.is_unreadable else {}),
        "quality": {
            **count_forms(one.answers for one in found.graded.values()),
            "n_items": len(np.unique(groups)),
            "n_responses": len(right),
            "n_right": int(right.sum()),
            "n_unreadable": sum(one.n_unreadable for one in graded.values()),
            "n_without_confidence": n_graded - len(right),
            "without_gold": found.without,
            "confidences": {
                name: {
                    **dataclasses.asdict(
                        confidence_quality.quality(values, right, groups, n_bootstrap, seed)
                    ),
                    "ece": forecasts.expected_calibration_error(bins)
                    if name == PERPLEXITY
                    else None,
                }
                for name, values in lists.items()
            },
            "reliability": bins,
            "risk_coverage": {
                name: confidence_quality.risk_coverage(values, right) if enough else []
                for name, values in lists.items()
            },
        },
        "best_of_n": _best_of_n(found, responses, n_bootstrap, seed),
        "wrong": _wrong(items, found, responses),
    }


def unreadable(quality: Mapping[str, Any]) -> list[str]:
    """Return the line on outputs without a readable answer, if there are any that count."""
    n_outputs = quality["n_responses"] + quality["n_without_confidence"]
    return unreadable_line(quality["n_unreadable"], n_outputs)


def _best_of_n(
    found: RightResponses,
    responses: Responses,
    n_bootstrap: int,
    seed: int,
) -> list[dict[str, Any]]:
    """How often the most confident of the first N responses is right, see `Marks.rows`.

    As in `select`, among those with an extractable answer; where no response of the item has one,
    among all.
    """
    items, firsts = np.unique(responses.item, return_index=True)
    if not len(items):
        return []
    marks = Marks(found.sizes)
    for k, first, end in zip(items.tolist(), firsts, [*firsts[1:], None], strict=True):
        places = responses.place[first:end].tolist()
        own = {
            name: dict(zip(places, column[first:end].tolist(), strict=True))
            for name, column in responses.confidence.items()
        }
        graded = found.graded[k]
        answers = graded.answers.texts
        if all(answer is None for answer in answers):
            answers = [""] * len(answers)

        def by(name: str, own: Any = own, answers: Any = answers) -> Callable[[int], int]:
            values = [own[name].get(place) for place in range(len(answers))]
            return lambda n: select(values[:n], answers[:n]).index

        ways: dict[str, Callable[[int], int | None]] = {name: by(name) for name in own}
        marks.add(graded.right, {MAJORITY: graded.majority.get, **ways})
    return marks.rows(n_bootstrap, seed)


def _wrong(
    items: Sequence[Inputs], found: RightResponses, responses: Responses
) -> list[dict[str, Any]]:
    """The wrong responses of the highest self-certainty."""
    wrong = np.flatnonzero(~responses.right)
    if not len(wrong):
        return []
    values = responses.confidence
    worst = wrong[np.argsort(-values[SELF_CERTAINTY][wrong], kind="stable")][:MOST_WRONG]
    out = []
    for k in worst:
        item, place = int(responses.item[k]), int(responses.place[k])
        out.append(
            {
                "name": items[item].name,
                "output": place + 1,
                "self_certainty": float(values[SELF_CERTAINTY][k]),
                "mean_logprob": float(values["mean log-probability"][k]),
                "answer": found.graded[item].answers.answers[place],
                "text": items[item].outputs[place],
            }
        )
    return out
