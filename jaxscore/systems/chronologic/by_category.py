"""Means over all questions and over each category."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion

Means = dict[str, Estimate]  # column -> its mean


class Column(NamedTuple):
    """A number of each result.

    Attributes:
        field: of a result.
        share: whether it is true or false, so that its mean is a share with Wilson's interval;
            the intervals of other means are bootstrapped.
    """

    field: str
    share: bool = False


def summarise(
    results: Sequence[dict[str, Any]],
    columns: Mapping[str, Column],
    n_bootstrap: int,
    seed: int,
    category: str = "question_category",
) -> dict[str, Any]:
    """`{"overall": Means, "by_category": {category: Means}}`, categories in alphabetical order.

    Args:
        results: each with its category and the columns' fields, numbers or true and false. One
            with an `error` is left out, and a field that is None where it is None.
        columns: by name.
        category: the field that has the category.
    """
    good = [result for result in results if "error" not in result]

    def mean(part: Sequence[dict[str, Any]], column: Column) -> Estimate:
        values = [r[column.field] for r in part if r[column.field] is not None]
        return proportion(values) if column.share else estimate(values, n_bootstrap, seed)

    def means(part: Sequence[dict[str, Any]]) -> Means:
        return {name: mean(part, column) for name, column in columns.items()}

    names = sorted({result[category] for result in good})
    return {
        "overall": means(good),
        "by_category": {name: means([r for r in good if r[category] == name]) for name in names},
    }
