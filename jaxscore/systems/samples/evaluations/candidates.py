"""Grades of the choices of `select` and `vote`."""

import functools
from collections.abc import Callable, Mapping, Sequence

from jaxscore.systems.samples import grading, selection
from jaxscore.systems.samples.evaluations.choices import Graded
from jaxscore.systems.samples.evaluations.grades import Grades, grades
from jaxscore.systems.samples.grading import Grader, Marks
from jaxscore.systems.samples.sample_items import Result
from jaxscore.systems.samples.selection import Candidates, Unusable
from jaxscore.systems.samples.symbolic import SymbolicComparison

# Of an item and N, the place of the response that a way takes.
Way = Callable[[Candidates, int], int]


class CandidateGrades:
    """Grades choices between candidates, one item after the other."""

    def __init__(
        self,
        known: Sequence[Candidates | Unusable],
        settings: Graded,
        symbolic: SymbolicComparison,
    ) -> None:
        """Nothing is graded yet.

        Args:
            known: all items.
            settings: have a field with the gold.
            symbolic: compares answers of the item that is graded.
        """
        assert settings.gold is not None
        self._known, self._settings, self._symbolic = known, settings, symbolic
        self._grader = Grader(settings.gold, Marks(grading.sizes(selection.available(known) or 1)))

    def grade(self, one: Candidates | Unusable, result: Result, ways: Mapping[str, Way]) -> Result:
        """The result of an item with `right` in its record; see `Grader.grade`."""
        if not isinstance(one, Candidates):
            return self._grader.grade(result, one.given.fields, 0, [], None, {})
        same = self._symbolic.equal if one.rules.symbolic else None
        choosers = {grading.MAJORITY: grading.majority(one.answers, same)}
        choosers |= {name: functools.partial(way, one) for name, way in ways.items()}
        return self._grader.grade(
            result,
            one.given.fields,
            len(one.given.fields["output"]),
            one.answers,
            one.rules,
            choosers,
            same,
        )

    def found(self, chosen: str, compared: Sequence[str] = ()) -> Grades:
        """What was found of all items; see `grades`."""
        settings, first = self._settings, self._known[0].given.fields if self._known else {}
        return grades(self._grader, chosen, first, settings.n_bootstrap, settings.seed, compared)
