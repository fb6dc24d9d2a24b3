"""Means over all questions and over each category."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.metrics.bootstrap import Estimate, estimate

Means = dict[str, Estimate]  # column -> its mean


def summarise(
    results: Sequence[dict[str, Any]], columns: Mapping[str, str], n_bootstrap: int, seed: int
) -> dict[str, Any]:
    """`{"overall": Means, "by_category": {category: Means}}`, categories in alphabetical order.

    Args:
        results: each with `question_category` and the columns' fields, numbers or true and
            false. One with an `error` is left out, and a field that is None where it is None.
        columns: name -> the field of a result that it is the mean of.
    """
    good = [result for result in results if "error" not in result]

    def means(part: Sequence[dict[str, Any]]) -> Means:
        return {
            column: estimate(
                [float(r[field]) for r in part if r[field] is not None], n_bootstrap, seed
            )
            for column, field in columns.items()
        }

    names = sorted({result["question_category"] for result in good})
    return {
        "overall": means(good),
        "by_category": {
            name: means([r for r in good if r["question_category"] == name]) for name in names
        },
    }
