"""How often is the chosen response right? By N, beside the first sample, a vote and an oracle.

Every way of choosing is applied to the first 1, 2, 4, ... responses of the same items, so shares of
two ways differ by pairs: the difference to the first sample is taken item by item.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.errors import InputError, NothingUsable
from jaxscore.io.json_input import STRICT, json_kind
from jaxscore.systems.selection.answers import NO_READABLE_ANSWER, AnswerRules

FIRST, MAJORITY, ORACLE = "first sample", "majority vote", "oracle"
MOST_WRONG = 50  # wrong choices that are listed
ENOUGH = 2  # items; of fewer there is no share
GOLD_FORMS = "an answer, a list of acceptable answers, or a list of true or false for each response"
NO_EQUALITY = "expected a list of true or false for each response: texts of code are not compared"

# Of N, the index of the response that a way takes among the first N; None if it has no choice.
Chooser = Callable[[int], int | None]
# Whether two unequal answers are the same after all.
Same = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Gold:
    """What is right for an item.

    Attributes:
        answers: those that are acceptable; empty if there are verdicts.
        verdicts: whether each response is right; None if answers are compared.
    """

    answers: tuple[str, ...] = ()
    verdicts: tuple[bool, ...] | None = None

    def right(
        self,
        answers: Sequence[str | None],
        rules: AnswerRules | None = None,
        same: Same | None = None,
    ) -> list[bool]:
        """Whether each of the first responses is right; one without an answer is not.

        Args:
            answers: what these responses are compared by.
            rules: by which they were read; None is enough for verdicts.
        """
        if self.verdicts is not None:
            return [*self.verdicts[: len(answers)]]
        assert rules is not None
        accepted = [rules.form(answer) for answer in self.answers]

        def fits(answer: str) -> bool:
            if answer in accepted:
                return True
            return same is not None and any(same(answer, one) for one in accepted)

        return [answer is not None and fits(answer) for answer in answers]


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
    value = fields.get(field)
    if value is None or (isinstance(value, str) and not value.strip()):
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


@dataclasses.dataclass
class Grader:
    """Grades the choices of one item after the other.

    Attributes:
        field: of the items, with their gold.
        marks: of the items that have gold.
        without: names of those that have none.
        wrong: what was chosen if that is wrong.
        n_unusable: items whose gold cannot be used.
        n_readable: responses with a readable answer, of items whose gold is compared with answers.
        n_with_verdicts: items whose gold is a verdict on each response.
    """

    field: str
    marks: Marks
    without: list[str] = dataclasses.field(default_factory=list)
    wrong: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    n_unusable: int = 0
    n_readable: int = 0
    n_with_verdicts: int = 0

    @property
    def is_unreadable(self) -> bool:
        """Whether there are items to grade and none of their responses has a readable answer."""
        return self.marks.n > 0 and not self.n_readable and not self.n_with_verdicts

    def grade(
        self,
        name: str,
        fields: Mapping[str, Any],
        n_responses: int,
        answers: Sequence[str | None],
        rules: AnswerRules | None,
        same: Same | None,
    ) -> list[bool] | None:
        """Whether each of the first N responses of an item is right; None without gold.

        Args:
            name: of the item.
            fields: its own.
            n_responses: all of its responses.
            answers: of the first N.
            rules: by which they were read; None if responses have no answers to compare.

        Raises:
            InputError: the gold cannot be used.
        """
        code = rules is not None and rules.code
        try:
            gold = read_gold(fields, self.field, n_responses, answers=rules is not None, code=code)
        except InputError:
            self.n_unusable += 1
            raise
        if gold is None:
            self.without.append(name)
            return None
        self.n_with_verdicts += gold.verdicts is not None
        self.n_readable += sum(answer is not None for answer in answers)
        return gold.right(answers, rules, same)

    def check(self, first: Mapping[str, Any]) -> None:
        """Refuse a field that no item has.

        Args:
            first: fields of the first item.

        Raises:
            NothingUsable: names the fields that exist.
        """
        if self.without and not self.marks.n and not self.n_unusable:
            raise NothingUsable(
                f'no item has gold in field "{self.field}"; the first item has the fields '
                f"{', '.join(map(repr, first)) or 'none'}"
            )

    def report(
        self, way: str, further: Sequence[str], n_bootstrap: int, seed: int
    ) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Counts and shares for the summary, fields of the report, and the headline.

        Args:
            way: by which the system chooses.
            further: ways that have a table of their own, such as powers of a vote.
        """
        rows = self.marks.rows(n_bootstrap, seed)
        main = [row for row in rows if row["way"] not in further]
        accuracy = {
            row["way"]: row["accuracy"] for row in main if row["best_n"] == self.marks.sizes[-1]
        }
        wrong = sorted(self.wrong, key=_by_confidence)[:MOST_WRONG]
        if self.is_unreadable:
            accuracy = dict.fromkeys(accuracy, Estimate(0, None, None, None))
            rows = main = wrong = []
            headline = "right: no share, since no response has a readable answer"
        elif (n := self.marks.n) < ENOUGH:
            headline = f"right: no share, since {n} items have gold"
        else:
            headline = (
                f"right: {percent(accuracy[way])} of {n} items, {percent(accuracy[FIRST])} of the "
                "first samples"
            )
        counts = {"n_with_gold": self.marks.n, "n_without_gold": len(self.without)}
        details = {
            "chosen_by": way,
            "accuracy": main,
            **({"by_power": [row for row in rows if row["way"] in further]} if further else {}),
            "without_gold": self.without,
            "wrong": wrong,
            **({"no_share": NO_READABLE_ANSWER} if self.is_unreadable else {}),
        }
        return {**counts, "accuracy": accuracy}, details, headline


def _by_confidence(wrong: Mapping[str, Any]) -> float:
    value = wrong["confidence"]
    return -value if isinstance(value, int | float) else 0.0


def percent(share: Estimate) -> str:
    """A share with its interval in percent; a dash of fewer than two items."""
    if share.n < ENOUGH or share.mean is None or share.low is None or share.high is None:
        return "-"
    return f"{100 * share.mean:.1f} % ({100 * share.low:.0f} to {100 * share.high:.0f})"
