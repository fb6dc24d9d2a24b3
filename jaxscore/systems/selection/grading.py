"""How often is the chosen response right? By N, beside the first sample, a vote and an oracle.

Every way of choosing is applied to the first 1, 2, 4, ... responses of the same items, so shares of
two ways differ by pairs: the difference to the first sample is taken item by item.
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
MOST_WRONG = 50  # wrong choices that are listed
ENOUGH = 2  # items; of fewer there is no share
GOLD_FORMS = "an answer, a list of acceptable answers, or a list of true or false for each response"
NO_EQUALITY = "expected a list of true or false for each response: texts of code are not compared"

# Of N, the index of the response that a way takes among the first N; None if it has no choice.
Chooser = Callable[[int], int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Gold:
    """What is right for an item.

    Attributes:
        answers: those that are acceptable; empty if there are verdicts.
        verdicts: whether each response is right; None if answers are compared.
    """

    answers: tuple[str, ...] = ()
    verdicts: tuple[bool, ...] | None = None

    def right(self, n: int, answers: Answers | None = None, same: Same | None = None) -> list[bool]:
        """Return True for each of the first n responses that is right; without an answer none is.

        Args:
            answers: of these responses; None is enough for verdicts.
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
    """The gold of an item; None if its field is absent, null or blank.

    A table's cell is text: an empty one is blank, and a list of verdicts or of texts is JSON text.

    Args:
        field: its name.
        n_responses: of the item, all of them.
        answers: whether responses have answers to compare, otherwise verdicts alone are accepted.
        code: whether answers are Python literals: a text that is a list of texts is then one
            answer.

    Raises:
        InputError: the field holds something else, or another number of verdicts.
    """
    value: Any = fields.get(field)
    if is_empty(value):
        return None
    if isinstance(value, str):
        value = _parsed_list(value, str if answers and not code else bool)
    where = f'field "{field}", the gold, '
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and values and all(isinstance(one, bool) for one in values):
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
    """Return True if a field has no gold: it is null, or text without a character."""
    return gold is None or (isinstance(gold, str) and not gold.strip())


def _parsed_list(text: str, kind: type) -> Any:
    """The list of verdicts, or of values of another kind, that a JSON text holds; or the text."""
    with contextlib.suppress(ValueError, RecursionError):
        value = STRICT.decode(text)
        if isinstance(value, list) and any(
            value and all(isinstance(one, wanted) for one in value) for wanted in (bool, kind)
        ):
            return value
    return text


def sizes(most: int) -> list[int]:
    """1, 2, 4 and so on below `most`, and `most`."""
    return [*(1 << k for k in range((most - 1).bit_length())), most]


class Marks:
    """Whether each way took a right response, by item and N.

    Attributes:
        sizes: the numbers of first responses that are considered, the largest last.
        n: items.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.n = 0
        self._lengths: list[int] = []
        self._right: dict[tuple[str, int], list[bool]] = {}

    def add(self, right: Sequence[bool], ways: Mapping[str, Chooser]) -> None:
        """Add an item: whether each of its responses is right, and what each way takes of them."""
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
        """For each N and way the share of right choices, and how far it is above the first's.

        `n_with_fewer` items have fewer than N responses; all were considered.
        `above_first` is the mean of the paired differences, its interval a bootstrap over items;
        None for the first sample itself.
        """
        out = []
        for n in self.sizes:
            first = self._right.get((FIRST, n), [])
            for way in dict.fromkeys(way for way, _ in self._right):
                marks = self._right.get((way, n), [])
                if len(marks) != len(first):  # a way that has no choice for this N
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
    """How often the choices of all records are right.

    Attributes:
        numbers: counts and shares for the summary.
        details: fields of the report.
        headline: the end of the headline.
        is_unreadable: there are items to grade, and none of their responses has a readable answer.
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
    """Compute the shares of right choices from what records say of considered responses.

    Args:
        settings: name the field with the gold.
        way: the way by which the system chooses.
        further: ways that have a table of their own, such as powers of a vote.
        field: the record's field with the chosen response.
        label: makes the name of an item from its place and its record.
    """
    graded: list[Mapping[str, Any]] = []
    without: list[str] = []
    wrong: list[tuple[float, int]] = []
    is_unreadable, n_unreadable, n_compared = True, 0, 0
    for place, record in enumerate(records):
        considered = record.get("considered", {})
        if "right" in considered:
            graded.append(considered)
            is_unreadable = is_unreadable and record["right"] is None
            if "n_unreadable" in considered:
                n_unreadable += considered["n_unreadable"]
                n_compared += len(considered["right"])
            if not considered["right"][considered["taken"][way][-1]]:
                wrong.append((-(record.get("confidence") or 0.0), place))
        elif "error" not in record:
            without.append(label(place, record))
    is_unreadable = is_unreadable and bool(graded)
    most = max((len(considered["right"]) for considered in graded), default=1)
    marks = Marks(sizes(most))
    for considered in graded:
        n_responses = len(considered["right"])
        ways = {name: _choice_of(taken, n_responses) for name, taken in considered["taken"].items()}
        marks.add(considered["right"], ways)
    rows = marks.rows(settings.n_bootstrap, settings.seed)
    main = [row for row in rows if row["way"] not in further]
    accuracy = {row["way"]: row["accuracy"] for row in main if row["best_n"] == most}
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
            _wrong_choice(label(place, records[place]), records[place], field, settings.gold)
            for _, place in heapq.nsmallest(MOST_WRONG, wrong)
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
    """Return the way of choosing that took these of the first 1, 2, 4, ... and of all responses."""
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
    """A share with its interval in percent; a dash of fewer than two items."""
    if share.n < ENOUGH or share.mean is None or share.low is None or share.high is None:
        return "-"
    return f"{100 * share.mean:.1f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
