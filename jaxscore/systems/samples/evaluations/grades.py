"""What a report says of graded choices."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.systems.samples.answer_rules import NO_READABLE_ANSWER
from jaxscore.systems.samples.grading import FIRST, Grader

ENOUGH = 2  # items; of fewer no share is told


@dataclasses.dataclass(frozen=True)
class Grades:
    """Shares of right choices, for a summary, a report and people.

    Attributes:
        summary: counts, and by way of choosing the share among all N responses.
        details: fields of the report's JSON file.
        headline: in one line.
        unreadable: no response has a readable answer, so there is no share.
    """

    summary: Mapping[str, Any]
    details: Mapping[str, Any]
    headline: str
    unreadable: bool = False


def grades(
    grader: Grader,
    chosen: str,
    first: Mapping[str, Any],
    n_bootstrap: int,
    seed: int,
    compared: Sequence[str] = (),
) -> Grades:
    """What was found of all items.

    Args:
        grader: has graded them.
        chosen: the way by which the system chooses.
        first: fields of the first item.
        n_bootstrap, seed: as of `estimate`.
        compared: further ways, such as powers of a vote, which have a table of their own.

    Raises:
        NothingUsable: no item has gold.
    """
    grader.check(first)
    rows = grader.marks.rows(n_bootstrap, seed)
    main = [one for one in rows if one["way"] not in compared]
    at_most = {one["way"]: one for one in main if one["best_n"] == grader.marks.sizes[-1]}
    accuracy = {way: one["accuracy"] for way, one in at_most.items()}
    headline, wrong = _headline(grader.marks.n, accuracy, chosen), grader.most_certain_wrong()
    if grader.unreadable:
        accuracy = dict.fromkeys(accuracy, Estimate(0, None, None, None))
        rows = main = wrong = []
        headline = "right: no share, since no response has a readable answer"
    return Grades(
        {
            "n_with_gold": grader.marks.n,
            "n_without_gold": len(grader.without),
            "accuracy": accuracy,
        },
        {
            "chosen_by": chosen,
            "accuracy": main,
            **({"by_power": [one for one in rows if one["way"] in compared]} if compared else {}),
            "without_gold": grader.without,
            "wrong": wrong,
            **({"no_share": NO_READABLE_ANSWER} if grader.unreadable else {}),
        },
        headline,
        grader.unreadable,
    )


def _headline(n: int, accuracy: Mapping[str, Estimate], chosen: str) -> str:
    if n < ENOUGH:
        return f"right: no share, since {n} items have gold"
    one, first = accuracy[chosen], accuracy[FIRST]
    return f"right: {percent(one)} of {n} items, {percent(first)} of the first samples"


def percent(one: Estimate) -> str:
    """A share with its interval in percent; a dash of fewer than two items."""
    if one.n < ENOUGH or one.mean is None or one.low is None or one.high is None:
        return "-"
    return f"{100 * one.mean:.1f} % ({100 * one.low:.0f} to {100 * one.high:.0f})"
