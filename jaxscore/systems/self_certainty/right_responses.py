"""Correctness of items' responses, and how well confidences separate right from wrong ones."""

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
MOST_WRONG = 50  # maximum number of wrong responses in a report


@dataclasses.dataclass(frozen=True)
class Graded:
    """The responses of an item with gold.

    Attributes:
        right: the verdict on each response.
        answers: the answers of the responses.
        n_unreadable: the number of outputs without a readable answer; 0 if gold is verdicts.
        majority: N -> the choice of an unweighted vote among the first N responses.
    """

    right: list[bool]
    answers: Answers
    n_unreadable: int
    majority: Mapping[int, int | None]


@dataclasses.dataclass
class RightResponses:
    """The graded responses of all items.

    Attributes:
        graded: index of an item -> its graded responses, for items with gold.
        sizes: the numbers N of first responses for which shares are computed.
        without: the names of items without gold.
        errors: index of an item -> the reason why its gold is unusable.
        is_unreadable: True if every response lacks a readable answer, so that none is graded.
        is_unverified: True if expressions were compared as text because Math-Verify is missing.
    """

    graded: dict[int, Graded]
    sizes: list[int]
    without: list[str]
    errors: dict[int, str]
    is_unreadable: bool = False
    is_unverified: bool = False

    def fields(self, index: int) -> dict[str, Any]:
        """Return fields of an item's record."""
        graded = self.graded.get(index)
        out: dict[str, Any] = {
            "right": None if graded is None or self.is_unreadable else graded.right
        }
        if graded is not None and graded.answers.rules.forms is not None:
            out["answer_forms"] = graded.answers.forms
        if index in self.errors:
            out["error"] = self.errors[index]
        return out


def read_golds(
    items: Iterable[Inputs], field: str
) -> tuple[dict[int, Gold], list[str], dict[int, str]]:
    """Read the gold of all items.

    Returns:
        Index of an item -> its gold; the names of items without gold; and index of an item -> the
        reason why its gold is unusable.

    Raises:
        NothingUsable: no item has gold.
    """
    golds: dict[int, Gold] = {}
    without, errors = [], {}
    first_fields: Mapping[str, Any] = {}
    for index, item in enumerate(items):
        first_fields = first_fields if index else item.fields
        if not item.outputs:
            continue
        code = answer_rules(item.fields, first_fields).code
        try:
            gold = read_gold(item.fields, field, len(item.outputs), code=code)
        except InputError as problem:
            errors[index] = str(problem)
            continue
        if gold is None:
            without.append(item.name)
        else:
            golds[index] = gold
    if not golds and not errors:
        field_names = ", ".join(map(repr, first_fields)) or "none"
        raise NothingUsable(
            f'no item has gold in field "{field}"; the first item has the fields {field_names}'
        )
    return golds, without, errors


def grade_responses(items: Sequence[Inputs], field: str, rule: str = AUTO) -> RightResponses:
    """Grade the responses of all items.

    Args:
        field: the items' field with the gold.
        rule: the rule that reads answers, one of `answer_rules.RULES`.

    Raises:
        NothingUsable: no item has gold.
        InputError: SymPy is needed and not installed.
    """
    golds, without, errors = read_golds(items, field)
    first_fields = items[0].fields
    first_n = sizes(max((len(items[index].outputs) for index in golds), default=1))
    graded, is_unverified = {}, False
    with SymbolicComparison() as symbolic:
        for index, gold in golds.items():
            symbolic.next_item()
            fields, outputs = items[index].fields, items[index].outputs
            rules = answer_rules(fields, first_fields, outputs, rule, fields.get(field))
            same = symbolic.comparison(rules)
            texts = (text if isinstance(text, str) else None for text in outputs)
            answers = read_answers(texts, rules)
            vote = majority(answers.texts, same)
            graded[index] = Graded(
                right=gold.right(len(outputs), answers, same),
                answers=answers,
                n_unreadable=answers.n_unreadable if gold.verdicts is None else 0,
                majority={n: vote(n) for n in first_n},
            )
            is_unverified = is_unverified or symbolic.is_unverified
    is_unreadable = all(gold.verdicts is None for gold in golds.values()) and not any(
        any(responses.answers.forms) for responses in graded.values()
    )
    is_unreadable = bool(golds) and is_unreadable
    return RightResponses(graded, first_n, without, errors, is_unreadable, is_unverified)


class Responses(NamedTuple):
    """The responses with gold and confidences, [n] each, item by item.

    Attributes:
        item, position: the index of the item and of the response in it, both from 0.
        right: the verdict.
        confidence: name -> values; higher is more certain.
    """

    item: np.ndarray
    position: np.ndarray
    right: np.ndarray
    confidence: dict[str, np.ndarray]


def _responses(graded: Mapping[int, Graded], confidences: Sequence[Confidence]) -> Responses:
    items, positions, right = array("q"), array("q"), array("b")
    columns: dict[str, array[float]] = {}
    for item, responses in graded.items():
        confidence = confidences[item]
        for k, is_right in enumerate(responses.right):
            if (values := confidences_of(confidence, k)) is not None:
                items.append(item)
                positions.append(k)
                right.append(is_right)
                for name, value in values.items():
                    columns.setdefault(name, array("d")).append(value)
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Responses(np.array(items), np.array(positions), np.array(right, bool), arrays)


def confidences_of(confidence: Confidence, k: int) -> dict[str, float] | None:
    """Return the four confidences of a response (higher is more certain); None if not scored."""
    logprob, entropy, perplexity = ((confidence.measured or {})[name][k] for name in MEASURED)
    value = confidence.values[k]
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
    right_responses: RightResponses,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """Return a report's fields on the quality of each confidence and of choosing by it."""
    graded = {} if right_responses.is_unreadable else right_responses.graded
    scored = _responses(graded, confidences)
    n_graded = sum(len(scored.right) for scored in graded.values())
    right, groups, lists = scored.right, scored.item, scored.confidence
    enough = len(right) >= 2
    bins = forecasts.reliability(-1 / lists[PERPLEXITY], right) if enough else []
    return {
        **({"no_share": NO_READABLE_ANSWER} if right_responses.is_unreadable else {}),
        "quality": {
            **count_forms(scored.answers for scored in right_responses.graded.values()),
            "n_items": len(np.unique(groups)),
            "n_responses": len(right),
            "n_right": int(right.sum()),
            "n_unreadable": sum(scored.n_unreadable for scored in graded.values()),
            "n_without_confidence": n_graded - len(right),
            "without_gold": right_responses.without,
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
        "best_of_n": _best_of_n(right_responses, scored, n_bootstrap, seed),
        "wrong": _wrong(items, right_responses, scored),
    }


def unreadable(quality: Mapping[str, Any]) -> list[str]:
    """Return a line on outputs without a readable answer; empty if there are none."""
    n_outputs = quality["n_responses"] + quality["n_without_confidence"]
    return unreadable_line(quality["n_unreadable"], n_outputs)


def _best_of_n(
    right_responses: RightResponses,
    responses: Responses,
    n_bootstrap: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return the share of right choices by confidence among the first N; see `Marks.rows`.

    The choice is among responses with an extractable answer, as in `select`; if an item has none,
    among all.
    """
    items, firsts = np.unique(responses.item, return_index=True)
    if not len(items):
        return []
    marks = Marks(right_responses.sizes)
    for index, first, end in zip(items.tolist(), firsts, [*firsts[1:], None], strict=True):
        positions = responses.position[first:end].tolist()
        values = {
            name: dict(zip(positions, column[first:end].tolist(), strict=True))
            for name, column in responses.confidence.items()
        }
        graded = right_responses.graded[index]
        answers = graded.answers.texts
        if all(answer is None for answer in answers):
            answers = [""] * len(answers)

        def choose_by(name: str, values: Any = values, answers: Any = answers) -> Any:
            column = [values[name].get(k) for k in range(len(answers))]
            return lambda n: select(column[:n], answers[:n]).index

        ways: dict[str, Callable[[int], int | None]] = {name: choose_by(name) for name in values}
        marks.add_item(graded.right, {MAJORITY: graded.majority.get, **ways})
    return marks.rows(n_bootstrap, seed)


def _wrong(
    items: Sequence[Inputs], right_responses: RightResponses, responses: Responses
) -> list[dict[str, Any]]:
    """Return the wrong responses with the highest self-certainty."""
    wrong = np.flatnonzero(~responses.right)
    if not len(wrong):
        return []
    values = responses.confidence
    worst = wrong[np.argsort(-values[SELF_CERTAINTY][wrong], kind="stable")][:MOST_WRONG]
    out = []
    for k in worst:
        item, output = int(responses.item[k]), int(responses.position[k])
        out.append(
            {
                "name": items[item].name,
                "output": output + 1,
                "self_certainty": float(values[SELF_CERTAINTY][k]),
                "mean_logprob": float(values["mean log-probability"][k]),
                "answer": right_responses.graded[item].answers.answers[output],
                "text": items[item].outputs[output],
            }
        )
    return out
