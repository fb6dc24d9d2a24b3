"""Measures of the probabilities of a question's answers: softmax, Brier, skill, calibration."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

N_BINS = 10


def softmax(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Compute `exp(score) / Σ exp(score)`, float64 [n], without overflow.

    Raises:
        ValueError: `scores` is empty.
    """
    values = np.asarray(scores, np.float64)
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def brier(probability: Sequence[float] | np.ndarray, truth: Sequence[float] | np.ndarray) -> float:
    """Compute the mean of (p - truth)² over the answers: 0 is best, 1 is worst.

    Brier 1950, divided by the number of answers, so that the weight of a question does not depend
    on it.

    Args:
        probability, truth: [n], each 0 to 1.
    """
    return float(np.mean((np.asarray(probability, np.float64) - np.asarray(truth)) ** 2))


def uniform_brier(truth: Sequence[float] | np.ndarray) -> float:
    """Return the Brier score of a forecast with equal probabilities of all n answers."""
    return brier(np.full(len(truth), 1 / len(truth)), truth)


def skill(correct: bool, n_correct: int, n_choices: int) -> float:
    """Compute (observed - chance) / (1 - chance) of one question, chance = n_correct / n_choices.

    The skill is 1 for a right answer and negative for a wrong one; guessing gives 0 on average. It
    is 1 if every choice is correct.

    Raises:
        ValueError: 1 <= n_correct <= n_choices does not hold.
    """
    if not 1 <= n_correct <= n_choices:
        raise ValueError(f"{n_correct} correct of {n_choices} choices")
    if n_correct == n_choices:
        return 1.0
    chance = n_correct / n_choices
    return (float(correct) - chance) / (1.0 - chance)


@dataclasses.dataclass(frozen=True)
class Bin:
    """Events with a probability in [low, high), or in [low, high] for the last bin.

    Attributes:
        n: the number of events.
        mean_probability, frequency: the means of probabilities and outcomes; None if n is 0.
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
    """Compute the reliability table over bins of equal width from 0 to 1.

    Args:
        probability: [n], each 0 to 1.
        outcome: [n], 1 if the event happened, 0 if not, or a share in between.
    """
    values, happened = np.asarray(probability, np.float64), np.asarray(outcome, np.float64)
    bin_index = np.minimum((values * n_bins).astype(int), n_bins - 1)
    bins = []
    for k in range(n_bins):
        inside = bin_index == k
        n = int(inside.sum())
        means = [float(each[inside].mean()) if n else None for each in (values, happened)]
        bins.append(Bin(k / n_bins, (k + 1) / n_bins, n, *means))
    return bins


def expected_calibration_error(bins: Sequence[Bin]) -> float | None:
    """Compute Σ n·|mean probability - frequency| / Σ n over the bins, or None without events.

    Naeini et al. 2015, Guo et al. 2017.
    """
    total, gap = 0, 0.0
    for b in bins:
        if b.mean_probability is not None and b.frequency is not None:
            total += b.n
            gap += b.n * abs(b.mean_probability - b.frequency)
    return gap / total if total else None


def calibration(
    probabilities: Iterable[Sequence[float]], truth: Iterable[Sequence[float]]
) -> dict[str, Any]:
    """Compute `ece` and `bins` as JSON values, with the answers of all questions as events.

    Args:
        probabilities, truth: the values of each question's answers, 0 to 1.
    """
    flat = itertools.chain.from_iterable
    bins = reliability(
        np.fromiter(flat(probabilities), np.float64), np.fromiter(flat(truth), np.float64)
    )
    return {
        "ece": expected_calibration_error(bins),
        "bins": [dataclasses.asdict(b) for b in bins],
    }
