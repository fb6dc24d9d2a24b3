"""`vote` as one call: the answer of each item with the most votes."""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Evaluation, refuse_source
from jaxscore.systems.samples import sample_items, selection
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.evaluations.candidates import CandidateGrades, Way
from jaxscore.systems.samples.selection import Candidates, vote
from jaxscore.systems.samples.symbolic import TIME_LIMIT, SymbolicComparison

DAY = 86400.0  # seconds
BORDA = "Borda vote"
POWERS = (0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)  # whose votes are graded beside the one asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(choices.FirstN, choices.Answers):
    """Settings of `vote`; N is 64 and the power 0.5 as in the published script.

    Attributes:
        power: rank r, from 0, of n responses gives (n - r)^power votes.
        time_limit: seconds for SymPy to read or compare two answers.
    """

    best_n: int = 64
    power: float = 0.5
    time_limit: float = TIME_LIMIT

    def __post_init__(self) -> None:
        """Check all values; see `choices.FirstN`."""
        super().__post_init__()
        choices.check_number("power", self.power)
        choices.check_number("time_limit", self.time_limit)
        if not 0 < self.time_limit <= DAY:
            raise InputError(
                f"setting time_limit is {self.time_limit}, expected seconds above 0 and at most a "
                "day"
            )


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Borda voting over each item's first N responses."""
    refuse_source("vote", source)
    started = time.perf_counter()
    known = selection.read(items, settings.best_n, settings.answer_rule, settings.gold)
    with SymbolicComparison(settings.time_limit) as symbolic:
        voted = selection.evaluate_vote(known, settings.power, symbolic)
        if settings.gold is None:
            results, grades = [*voted], None
        else:
            graded = CandidateGrades(known, settings, symbolic)
            ways = _ways(settings.power, symbolic)
            results = [
                graded.grade(one, result, ways) for one, result in zip(known, voted, strict=True)
            ]
            grades = graded.found(BORDA, [name for name in ways if name != BORDA])
    found = sample_items.summarise(results)
    summary = {
        **choices.decisions(found, [*selection.FALLBACKS]),
        **choices.response_counts([one.given for one in known], settings.best_n),
        **choices.answer_counts(selection.forms(known)),
    }
    return choices.evaluation(
        results,
        summary,
        choices.decided_by("votes", summary),
        "output",
        time.perf_counter() - started,
        grades,
    )


def _ways(power: float, symbolic: SymbolicComparison) -> dict[str, Way]:
    """The vote of this run, and votes of other powers."""

    def way(power: float) -> Way:
        def index(one: Candidates, n: int) -> int:
            same = symbolic.equal if one.rules.symbolic else None
            return vote(one.confidences[:n], one.answers[:n], power, same).index

        return index

    return {BORDA: way(power), **{f"power {p:g}": way(p) for p in sorted({*POWERS, power})}}
