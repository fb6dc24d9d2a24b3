"""Which responses of items are right, and how well confidences tell them from the others."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.analysis import confidence_quality, forecasts
from jaxscore.errors import InputError, NothingUsable
from jaxscore.systems.samples.confidences import Confidence, Item
from jaxscore.systems.selection import answers as answer_forms
from jaxscore.systems.selection import grading
from jaxscore.systems.selection.answers import (
    AUTO,
    NO_READABLE_ANSWER,
    AnswerRules,
    Answers,
    answer_rules,
)
from jaxscore.systems.selection.grading import Gold, Marks
from jaxscore.systems.selection.ranking import majority, select
from jaxscore.systems.selection.symbolic import SymbolicComparison

SELF_CERTAINTY, PERPLEXITY = "self-certainty", "negative perplexity"
MOST_WRONG = 50  # wrong responses that are listed


@dataclasses.dataclass
class RightResponses:
    """What the gold of each item says of its responses.

    Attributes:
        right: whether each response is right; None for an item without gold that can be used.
        answers: what each response's answer is compared by; empty where `right` is None.
        forms: the form of each response's answer, see `AnswerRules.read`; empty
            for an item without gold that can be used.
        rules: of the items with gold.
        unreadable: no response has a readable answer; `right` is then None for all items.
        sizes: the numbers N of first responses that are looked at.
        majority: of the items with gold, what a vote takes of the first N in which each response
            has one voice.
        without: names of items without gold.
        errors: why the gold of an item cannot be used, by its index.
    """

    right: list[list[bool] | None]
    answers: list[list[str | None]]
    sizes: list[int]
    majority: dict[int, dict[int, int | None]]
    without: list[str]
    errors: dict[int, str]
    forms: list[list[str | None]] = dataclasses.field(default_factory=list)
    rules: dict[int, AnswerRules] = dataclasses.field(default_factory=dict)
    unreadable: bool = False

    def answer_counts(self) -> dict[str, Any]:
        """See `count_forms`, of the items with gold."""
        return answer_forms.count_forms(
            Answers(rules, self.answers[k], self.forms[k]) for k, rules in self.rules.items()
        )


def read(items: Sequence[Item], field: str, rule: str = AUTO) -> RightResponses:
    """Grade the responses of all items.

    Args:
        field: of the items, with the gold.
        rule: how answers are read, one of `answer_rules.RULES`.

    Raises:
        NothingUsable: no item has gold.
        InputError: SymPy is needed and not installed.
    """
    out = RightResponses([None] * len(items), [[] for _ in items], [], {}, [], {})
    out.forms = [[] for _ in items]
    known: dict[int, Gold] = {}
    first = items[0].given if items else {}
    for item in items:
        if item.error or not item.outputs:
            continue
        code = answer_rules(item.given, first).code
        try:
            found = grading.read_gold(item.given, field, len(item.outputs), code=code)
        except InputError as problem:
            out.errors[item.index] = str(problem)
            continue
        if found is None:
            out.without.append(item.name)
        else:
            known[item.index] = found
    out.sizes = grading.sizes(max((len(items[k].outputs) for k in known), default=1))
    with SymbolicComparison() as symbolic:
        for k, found in known.items():
            symbolic.next_item()
            right = items[k].given.get(field)
            rules = answer_rules(items[k].given, first, items[k].outputs, rule, right)
            same = symbolic.equal if rules.symbolic else None
            texts = [one if isinstance(one, str) else None for one in items[k].outputs]
            read = [rules.read(text) for text in texts]
            answers = [one and one[0] for one in read]
            out.forms[k], out.rules[k] = [one and one[1] for one in read], rules
            out.answers[k], out.right[k] = answers, found.right(answers, rules, same)
            vote = majority(answers, same)
            out.majority[k] = {n: vote(n) for n in out.sizes}
    if not out.errors and all(one is None for one in out.right):
        there = ", ".join(map(repr, first)) or "none"
        raise NothingUsable(
            f'no item has gold in field "{field}"; the first item has the fields {there}'
        )
    compared = [k for k, found in known.items() if found.verdicts is None]
    if compared and len(compared) == len(known) and not any(any(out.forms[k]) for k in compared):
        out.unreadable, out.right = True, [None] * len(items)
    return out


@dataclasses.dataclass(frozen=True)
class Response:
    """A response that has gold and confidences.

    Attributes:
        item, place: where it stands, both from 0.
        confidence: name -> value; higher is surer.
    """

    item: int
    place: int
    right: bool
    confidence: Mapping[str, float]


def of_response(one: Confidence, place: int) -> dict[str, float] | None:
    """The four confidences of a response, higher being surer; None where it was not scored."""
    value, measured = one.values[place], one.measured or {}
    logprob, entropy, perplexity = (
        measured[name][place]
        for name in ("mean_logprob_list", "mean_entropy_list", "perplexity_list")
    )
    if value is None or logprob is None or entropy is None or perplexity is None:
        return None
    return {
        SELF_CERTAINTY: value,
        "negative mean entropy": -entropy,
        "mean log-probability": logprob,
        PERPLEXITY: -perplexity,
    }


def report(
    items: Sequence[Item],
    confidences: Sequence[Confidence],
    found: RightResponses,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """The quality of each confidence, and what choosing by it is worth, as a report has them."""
    responses = [
        Response(k, place, right, values)
        for k, rights in enumerate(found.right)
        for place, right in enumerate(rights or [])
        if (values := of_response(confidences[k], place)) is not None
    ]
    n_graded = sum(len(rights) for rights in found.right if rights is not None)
    right = [one.right for one in responses]
    groups = [one.item for one in responses]
    names = list(responses[0].confidence) if responses else []
    lists = {name: [one.confidence[name] for one in responses] for name in names}
    enough = len(responses) >= 2
    bins = (
        forecasts.reliability([-1 / value for value in lists[PERPLEXITY]], right) if enough else []
    )
    return {
        **({"no_share": NO_READABLE_ANSWER} if found.unreadable else {}),
        "quality": {
            **found.answer_counts(),
            "n_items": len({*groups}),
            "n_responses": len(responses),
            "n_right": sum(right),
            "n_without_confidence": n_graded - len(responses),
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
        "best_of_n": _best_of_n(confidences, found, responses, n_bootstrap, seed),
        "wrong": _wrong(items, found, responses),
    }


def _best_of_n(
    confidences: Sequence[Confidence],
    found: RightResponses,
    responses: Sequence[Response],
    n_bootstrap: int,
    seed: int,
) -> list[dict[str, Any]]:
    """How often the most confident of the first N responses is right, see `Marks.rows`.

    As in `select`, among those with an extractable answer; where no response of the item has one,
    among all.
    """
    known: dict[int, dict[int, Mapping[str, float]]] = collections.defaultdict(dict)
    for one in responses:
        known[one.item][one.place] = one.confidence
    if not known:
        return []
    marks = Marks(found.sizes)
    for k, own in known.items():
        answers = found.answers[k]
        if all(answer is None for answer in answers):
            answers = [""] * len(answers)

        def by(name: str, own: Any = own, answers: Any = answers) -> Callable[[int], int]:
            values = [own[place][name] if place in own else None for place in range(len(answers))]
            return lambda n: select(values[:n], answers[:n]).index

        ways: dict[str, Callable[[int], int | None]] = {
            name: by(name) for name in next(iter(own.values()))
        }
        marks.add(found.right[k] or [], {grading.MAJORITY: found.majority[k].get, **ways})
    return marks.rows(n_bootstrap, seed)


def _wrong(
    items: Sequence[Item], found: RightResponses, responses: Sequence[Response]
) -> list[dict[str, Any]]:
    """The wrong responses of the highest self-certainty."""
    wrong = [one for one in responses if not one.right]
    wrong.sort(key=lambda one: -one.confidence[SELF_CERTAINTY])
    return [
        {
            "name": items[one.item].name,
            "output": one.place + 1,
            "self_certainty": one.confidence[SELF_CERTAINTY],
            "mean_logprob": one.confidence["mean log-probability"],
            "answer": found.answers[one.item][one.place],
            "text": items[one.item].outputs[one.place],
        }
        for one in wrong[:MOST_WRONG]
    ]
