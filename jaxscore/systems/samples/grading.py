"""How often is the chosen response right? By N, beside the first sample, a vote and an oracle.

Every way of choosing is applied to the first 1, 2, 4, ... responses of the same items, so shares of
two ways differ by pairs: the difference to the first sample is taken item by item.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import estimate, proportion
from jaxscore.errors import InputError
from jaxscore.systems.samples import gold
from jaxscore.systems.samples.answer_rules import AnswerRules
from jaxscore.systems.samples.sample_items import NothingUsable, Result
from jaxscore.systems.samples.selection import vote

FIRST, MAJORITY, ORACLE = "first sample", "majority vote", "oracle"
MOST_WRONG = 50  # wrong choices that are listed

# Of N, the place of the response that a way takes among the first N; None where it has no choice.
Chooser = Callable[[int], int | None]


def sizes(most: int) -> list[int]:
    """1, 2, 4 and so on below `most`, and `most`."""
    return [*(1 << k for k in range((most - 1).bit_length())), most]


def majority(
    answers: Sequence[str | None], same: Callable[[str, str], bool] | None = None
) -> Chooser:
    """The vote in which each response has one voice, the first answer of equal ones."""
    return lambda n: vote([None] * len(answers[:n]), answers[:n], 0.0, same).index


class Marks:
    """Whether each way took a right response, by item and N.

    Attributes:
        sizes: the numbers of first responses that are looked at, the largest last.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.n = 0  # items
        self._lengths: list[int] = []
        self._right: dict[tuple[str, int], list[bool]] = {}

    def add(self, right: Sequence[bool], ways: Mapping[str, Chooser]) -> None:
        """An item: whether each of its responses is right, and what each way takes of them."""
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
        """One for each way and N: the share of right choices, and what it is above the first's.

        `n_with_fewer` items have fewer than N responses, all of which were looked at. `above_first`
        is the mean of the paired differences, its interval a bootstrap over items; None for the
        first sample itself.
        """
        out = []
        for n in self.sizes:
            first = self._right.get((FIRST, n), [])
            for way in dict.fromkeys(way for way, _ in self._right):
                marks = self._right.get((way, n), [])
                if len(marks) != len(first):  # a way that has no choice for this N
                    continue
                pairs = zip(marks, first, strict=True)
                differences = [float(one) - float(other) for one, other in pairs]
                out.append(
                    {
                        "way": way,
                        "best_n": n,
                        "n_with_fewer": sum(length < n for length in self._lengths),
                        "accuracy": proportion(marks),
                        "above_first": None
                        if way == FIRST
                        else estimate(differences, n_bootstrap, seed),
                    }
                )
        return out


@dataclasses.dataclass
class Grader:
    """Grades one item after the other.

    Attributes:
        field: of the items, with their gold.
        marks: of the items that have gold.
        without: names of those that have none.
        unusable: how many have gold that cannot be used.
        wrong: what was chosen where that is wrong.
        n_readable: responses with a readable answer, of items whose gold is compared with answers.
        n_with_verdicts: items whose gold is a verdict on each response.
    """

    field: str
    marks: Marks
    without: list[str] = dataclasses.field(default_factory=list)
    unusable: int = 0
    wrong: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    n_readable: int = 0
    n_with_verdicts: int = 0

    @property
    def unreadable(self) -> bool:
        """Whether there are items to grade and no response of theirs has a readable answer."""
        return self.marks.n > 0 and not self.n_readable and not self.n_with_verdicts

    def grade(
        self,
        result: Result,
        fields: Mapping[str, Any],
        n_responses: int,
        answers: Sequence[str | None],
        rules: AnswerRules | None,
        ways: Mapping[str, Chooser],
        same: Callable[[str, str], bool] | None = None,
    ) -> Result:
        """The result with `right` in its record: None without gold, and where the item failed.

        Args:
            result: of the item, with the place of the response that was chosen.
            fields: the item's own.
            n_responses: that the item has, those after the first N too.
            answers: of the first N.
            rules: by which they were read; None where responses have no answers to compare.
            ways: of choosing.
            same: as of `Gold.right`.
        """
        if result.error is not None or result.index is None:
            return dataclasses.replace(result, record={**result.record, "right": None})
        try:
            found = gold.read(
                fields,
                self.field,
                n_responses,
                answers=rules is not None,
                code=rules is not None and rules.code,
            )
        except InputError as problem:
            self.unusable += 1
            record = {**result.record, "right": None, "error": str(problem)}
            return dataclasses.replace(result, record=record, error=str(problem))
        if found is None:
            self.without.append(result.name)
            return dataclasses.replace(result, record={**result.record, "right": None})
        self.n_with_verdicts += found.verdicts is not None
        self.n_readable += sum(answer is not None for answer in answers)
        right = found.right(rules or AnswerRules("", False, False), answers, same)
        self.marks.add(right, ways)
        if not right[result.index]:
            self._note_wrong(result, fields.get(self.field), right)
        return dataclasses.replace(result, record={**result.record, "right": right[result.index]})

    def _note_wrong(self, result: Result, given: Any, right: Sequence[bool]) -> None:
        chosen = result.record.get("output") or result.record.get("code_list")
        self.wrong.append(
            {
                "name": result.name,
                "confidence": result.record.get("confidence"),
                "n_right": sum(right),
                "n_responses": len(right),
                "chosen": chosen[0] if chosen else None,
                "gold": given,
            }
        )

    def check(self, first: Mapping[str, Any]) -> None:
        """Refuse a field that no item has.

        Args:
            first: fields of the first item.

        Raises:
            NothingUsable: naming the fields that exist.
        """
        if self.without and not self.marks.n and not self.unusable:
            raise NothingUsable(
                f'no item has gold in field "{self.field}"; the first item has the fields '
                f"{', '.join(map(repr, first)) or 'none'}"
            )

    def most_certain_wrong(self) -> list[dict[str, Any]]:
        """The wrong choices, those of the highest confidence first."""

        def rank(one: Mapping[str, Any]) -> float:
            value = one["confidence"]
            return -value if isinstance(value, int | float) else 0.0

        return sorted(self.wrong, key=rank)[:MOST_WRONG]
