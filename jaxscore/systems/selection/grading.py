"""Shares of right choices by N, compared with the first sample, a vote and an oracle.

Every way of choosing is applied to the first 1, 2, 4, ... responses of the same items, so the
difference to the first sample is paired by item.
"""

import contextlib
import dataclasses
import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.errors import InputError
from jaxscore.io.json_input import STRICT, json_kind
from jaxscore.systems.selection.answers import NO_READABLE_ANSWER, Answers, unreadable_line
from jaxscore.systems.selection.equal_answers import Same

FIRST, MAJORITY, ORACLE = "first sample", "majority vote", "oracle"
MOST_WRONG = 50  # maximum number of wrong choices in a report
ENOUGH = 2  # minimum number of items for a share
GOLD_FORMS = "an answer, a list of acceptable answers, or a list of true or false for each response"
NO_EQUALITY = "expected a list of true or false for each response: texts of code are not compared"

# N -> the index of the response that a way takes among the first N; None if it takes none.
Chooser = Callable[[int], int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Gold:
    """The gold of an item.

    Attributes:
        answers: the acceptable answers; empty if there are verdicts.
        verdicts: the verdict on each response; None if answers are compared.
    """

    answers: tuple[str, ...] = ()
    verdicts: tuple[bool, ...] | None = None

    def right(self, n: int, answers: Answers | None = None, same: Same | None = None) -> list[bool]:
        """Return a verdict on each of the first n responses, False without an answer.

        Args:
            answers: the answers of these responses; may be None with verdicts.
            same: see `AnswerRules.accepts`.
        """
        if self.verdicts is not None:
            return [*self.verdicts[:n]]
        assert answers is not None

        @functools.cache
        def is_right(answer: str, form: str | None) -> bool:
            return any(answers.rules.accepts(gold, answer, form, same) for gold in self.answers)

        return [
            answer is not None and is_right(answer, form)
            for answer, form in zip(answers.answers, answers.forms, strict=True)
        ]


def read_gold(
    fields: Mapping[str, Any],
    field: str,
    n_responses: int,
    *,
    answers: bool = True,
    code: bool = False,
) -> Gold | None:
    """Return the gold of an item; None if its field is absent, null or whitespace.

    A table's cell is text: an empty one is whitespace, and lists of verdicts or texts are JSON.

    Args:
        field: the name of the field.
        n_responses: the number of all responses of the item.
        answers: True if responses have answers to compare; otherwise only verdicts are accepted.
        code: True if answers are Python literals; a list of texts in a text is then one answer.

    Raises:
        InputError: the field has another type, or another number of verdicts.
    """
    value: Any = fields.get(field)
    if is_empty(value):
        return None
    if isinstance(value, str):
        value = _parsed_list(value, str if answers and not code else bool)
    where = f'field "{field}", the gold, '
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and values and all(isinstance(entry, bool) for entry in values):
        if len(values) != n_responses:
            raise InputError(
                f"{where}has {len(values)} verdicts for {n_responses} responses, expected one for "
                "each"
            )
        return Gold(verdicts=tuple(values))
    if not answers:
        raise InputError(f"{where}is {json_kind(value)}, {NO_EQUALITY}")
    if not values:
        raise InputError(f"{where}is an empty list, expected {GOLD_FORMS}")
    for answer in values:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            among = "has " if isinstance(value, list) else "is "
            raise InputError(f"{where}{among}{json_kind(answer)}, expected {GOLD_FORMS}")
        if isinstance(answer, str) and not answer.strip():
            raise InputError(f"{where}has an empty answer, expected {GOLD_FORMS}")
    return Gold(tuple(map(str, values)))


def is_empty(gold: Any) -> bool:
    """Return True if a field lacks gold: it is null or whitespace."""
    return gold is None or (isinstance(gold, str) and not gold.strip())


def _parsed_list(text: str, entry_type: type) -> Any:
    """Return the list of bools or of `entry_type` in a JSON text, or else the text."""
    with contextlib.suppress(ValueError, RecursionError):
        value = STRICT.decode(text)
        if isinstance(value, list) and any(
            value and all(isinstance(entry, expected_type) for entry in value)
            for expected_type in (bool, entry_type)
        ):
            return value
    return text


def sizes(largest: int) -> list[int]:
    """Return 1, 2, 4 and so on below `largest`, and `largest`."""
    return [*(1 << k for k in range((largest - 1).bit_length())), largest]


class Marks:
    """The verdicts on each way's choices, by item and N.

    Attributes:
        sizes: the numbers N of considered first responses, the largest last.
        n: the number of items.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.n = 0
        self._lengths: list[int] = []
        self._right: dict[tuple[str, int], list[bool]] = {}

    def add_item(self, right: Sequence[bool], ways: Mapping[str, Chooser]) -> None:
        """Add an item: the verdicts on its responses, and each way's choice among them."""
        self.n += 1
        self._lengths.append(len(right))
        for n in self.sizes:
            taken = {FIRST: right[0]}
            for way, choose in ways.items():
                if (index := choose(n)) is not None:
                    taken[way] = right[index]
            taken[ORACLE] = any(right[:n])
            for way, mark in taken.items():
                self._right.setdefault((way, n), []).append(mark)

    def rows(self, n_bootstrap: int, seed: int) -> list[dict[str, Any]]:
        """Return, for each N and way, the share of right choices and its gain over the first's.

        `n_with_fewer` is the number of items with fewer than N responses, all considered.
        `above_first` is the mean of the paired differences with a bootstrap interval over items;
        None for the first sample itself.
        """
        out = []
        for n in self.sizes:
            first = self._right.get((FIRST, n), [])
            for way in dict.fromkeys(way for way, _ in self._right):
                marks = self._right.get((way, n), [])
                if len(marks) != len(first):  # the way takes nothing for this N
                    continue
                pairs = zip(marks, first, strict=True)
                differences = [float(mark) - float(before) for mark, before in pairs]
                above = None if way == FIRST else estimate(differences, n_bootstrap, seed)
                out.append(
                    {
                        "way": way,
                        "best_n": n,
                        "n_with_fewer": sum(length < n for length in self._lengths),
                        "accuracy": proportion(marks),
                        "above_first": above,
                    }
                )
        return out


class Grades(NamedTuple):
    """The grades of all records' choices.

    Attributes:
        numbers: the counts and shares for the summary.
        details: the fields of the report.
        headline: the end of the headline.
        is_unreadable: True if there are items with gold, and all their responses are unreadable.
    """

    numbers: dict[str, Any]
    details: dict[str, Any]
    headline: str
    is_unreadable: bool


def grade_choices(
    records: Sequence[Mapping[str, Any]],
    settings: Any,
    way: str,
    further: Sequence[str],
    field: str,
    label: Callable[[int, Mapping[str, Any]], str],
) -> Grades:
    """Compute the shares of right choices from the records' `considered` fields.

    Args:
        settings: the settings, with the name of the gold's field.
        way: the system's way of choosing.
        further: the ways with a separate table, such as powers of a vote.
        field: the record's field with the chosen response.
        label: a function of an item's index and record that returns its name.
    """
    graded: list[Mapping[str, Any]] = []
    without: list[str] = []
    wrong: list[tuple[float, int]] = []
    is_unreadable, n_unreadable, n_compared = True, 0, 0
    for index, record in enumerate(records):
        considered = record.get("considered", {})
        if "right" in considered:
            graded.append(considered)
            is_unreadable = is_unreadable and record["right"] is None
            if "n_unreadable" in considered:
                n_unreadable += considered["n_unreadable"]
                n_compared += len(considered["right"])
            if not considered["right"][considered["taken"][way][-1]]:
                wrong.append((-(record.get("confidence") or 0.0), index))
        elif "error" not in record:
            without.append(label(index, record))
    is_unreadable = is_unreadable and bool(graded)
    largest_n = max((len(considered["right"]) for considered in graded), default=1)
    marks = Marks(sizes(largest_n))
    for considered in graded:
        n_responses = len(considered["right"])
        ways = {name: _choice_of(taken, n_responses) for name, taken in considered["taken"].items()}
        marks.add_item(considered["right"], ways)
    rows = marks.rows(settings.n_bootstrap, settings.seed)
    main = [row for row in rows if row["way"] not in further]
    accuracy = {row["way"]: row["accuracy"] for row in main if row["best_n"] == largest_n}
    if is_unreadable:
        accuracy = dict.fromkeys(accuracy, Estimate(0, None, None, None))
        rows, main, wrong = [], [], []
        headline = "right: no share, since no response has a readable answer"
    elif marks.n < ENOUGH:
        headline = f"right: no share, since {marks.n} items have gold"
    else:
        headline = "; ".join(
            [
                f"right: {percent(accuracy[way])} of {marks.n} items, {percent(accuracy[FIRST])} "
                "of the first samples",
                *unreadable_line(n_unreadable, n_compared),
            ]
        )
    details = {
        "chosen_by": way,
        "accuracy": main,
        **({"by_power": [row for row in rows if row["way"] in further]} if further else {}),
        "without_gold": without,
        "wrong": [
            _wrong_choice(label(index, records[index]), records[index], field, settings.gold)
            for _, index in heapq.nsmallest(MOST_WRONG, wrong)
        ],
        **({"no_share": NO_READABLE_ANSWER} if is_unreadable else {}),
    }
    numbers = {
        "n_with_gold": marks.n,
        "n_without_gold": len(without),
        "accuracy": accuracy,
        "n_unreadable": n_unreadable,
        "n_compared": n_compared,
    }
    return Grades(numbers, details, headline, is_unreadable)


def _choice_of(taken: Sequence[int | None], n_responses: int) -> Chooser:
    """Return the way of choosing with these choices among the first 1, 2, 4, ... and all."""
    return lambda n: taken[-1] if n >= n_responses else taken[n.bit_length() - 1]


def _wrong_choice(name: str, record: Mapping[str, Any], field: str, gold: str) -> dict[str, Any]:
    right = record["considered"]["right"]
    return {
        "name": name,
        "confidence": record.get("confidence"),
        "n_right": sum(right),
        "n_responses": len(right),
        "chosen": record[field][0],
        "gold": record.get(gold, right),  # a record of code does not repeat the item
    }


def percent(share: Estimate) -> str:
    """Return a share with its interval in percent, or a dash for fewer than two items."""
    if share.n < ENOUGH or share.mean is None or share.low is None or share.high is None:
        return "-"
    return f"{100 * share.mean:.1f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
