"""Scores to probabilities."""

from collections.abc import Sequence

import numpy as np


def softmax(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """`exp(score) / Σ exp(score)`, float64 [n]; the largest is taken off first, so none overflows.

    Raises:
        ValueError: no scores.
    """
    values = np.asarray(scores, np.float64)
    weights = np.exp(values - values.max())
    return weights / weights.sum()
