"""Probabilities of the answers of a question: softmax, Brier score, skill score, calibration."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

N_BINS = 10


def softmax(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """`exp(score) / Σ exp(score)`, float64 [n]; the largest is taken off first, so none overflows.

    Raises:
        ValueError: no scores.
    """
    values = np.asarray(scores, np.float64)
    weights = np.exp(values - values.max())
    return weights / weights.sum()


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


def skill(correct: bool, n_correct: int, n_choices: int) -> float:
    """(observed - chance) / (1 - chance) of one question, chance being n_correct / n_choices.

    1 is right, 0 what guessing gets on average, below 0 is wrong. Where every choice is correct
    nobody can be wrong, and it is 1.

    Raises:
        ValueError: unless 1 <= n_correct <= n_choices.
    """
    if not 1 <= n_correct <= n_choices:
        raise ValueError(f"{n_correct} correct of {n_choices} choices")
    if n_correct == n_choices:
        return 1.0
    chance = n_correct / n_choices
    return (float(correct) - chance) / (1.0 - chance)


@dataclasses.dataclass(frozen=True)
class Bin:
    """The events whose probability is in [low, high), the last bin's in [low, high].

    Attributes:
        n: how many.
        mean_probability, frequency: means of their probabilities and outcomes; None if n is 0.
    """

    low: float
    high: float
    n: int
    mean_probability: float | None
    frequency: float | None


def reliability(
    probability: Sequence[float] | np.ndarray,
    outcome: Sequence[float] | np.ndarray,
    n_bins: int = N_BINS,
) -> list[Bin]:
    """The reliability table over bins of equal width from 0 to 1.

    Args:
        probability: [n], each 0 to 1.
        outcome: [n], 1 where the event happened, 0 where not; a share in between is taken as is.
    """
    values, happened = np.asarray(probability, np.float64), np.asarray(outcome, np.float64)
    where = np.minimum((values * n_bins).astype(int), n_bins - 1)
    bins = []
    for k in range(n_bins):
        inside = where == k
        n = int(inside.sum())
        means = [float(each[inside].mean()) if n else None for each in (values, happened)]
        bins.append(Bin(k / n_bins, (k + 1) / n_bins, n, *means))
    return bins


def expected_calibration_error(bins: Sequence[Bin]) -> float | None:
    """Σ n·|mean probability - frequency| / Σ n over the bins (Naeini et al. 2015, Guo et al. 2017).

    None if no bin has an event.
    """
    total, gap = 0, 0.0
    for one in bins:
        if one.mean_probability is not None and one.frequency is not None:
            total += one.n
            gap += one.n * abs(one.mean_probability - one.frequency)
    return gap / total if total else None


def calibration(
    probabilities: Iterable[Sequence[float]], truth: Iterable[Sequence[float]]
) -> dict[str, Any]:
    """`ece` and `bins`, as JSON has them, over the answers of all questions as events.

    Args:
        probabilities, truth: of each question's answers, 0 to 1.
    """
    flat = itertools.chain.from_iterable
    bins = reliability(
        np.fromiter(flat(probabilities), np.float64), np.fromiter(flat(truth), np.float64)
    )
    return {
        "ece": expected_calibration_error(bins),
        "bins": [dataclasses.asdict(one) for one in bins],
    }
