"""How far probabilities are from the truth."""

from collections.abc import Sequence

import numpy as np


def brier(probability: Sequence[float] | np.ndarray, truth: Sequence[float] | np.ndarray) -> float:
    """Mean over the answers of (p - truth)²: 0 is perfect, 1 is sure of every wrong answer.

    Brier 1950, divided by the number of answers, so that questions with many do not weigh more.

    Args:
        probability, truth: [n], each 0 to 1.
    """
    return float(np.mean((np.asarray(probability, np.float64) - np.asarray(truth)) ** 2))


def uniform_brier(truth: Sequence[float] | np.ndarray) -> float:
    """The Brier score of a forecaster who finds all n answers equally probable."""
    return brier(np.full(len(truth), 1 / len(truth)), truth)
