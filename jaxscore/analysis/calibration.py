"""Calibration: whether events of probability p happen in a share p of the cases."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

N_BINS = 10


@dataclasses.dataclass(frozen=True)
class Bin:
    """The events whose probability is in [low, high), the last bin's in [low, high].

    Attributes:
        n: how many.
        mean_probability, frequency: means of their probabilities and outcomes; None where n is 0.
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

    None where no bin has an event.
    """
    total, gap = 0, 0.0
    for one in bins:
        if one.mean_probability is not None and one.frequency is not None:
            total += one.n
            gap += one.n * abs(one.mean_probability - one.frequency)
    return gap / total if total else None


def calibration(
    probabilities: Sequence[Sequence[float]], truth: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """`ece` and `bins`, as JSON has them, over the answers of all questions as events.

    Args:
        probabilities, truth: of each question's answers, 0 to 1.
    """
    flat = itertools.chain.from_iterable
    bins = reliability(list(flat(probabilities)), list(flat(truth)))
    return {
        "ece": expected_calibration_error(bins),
        "bins": [dataclasses.asdict(one) for one in bins],
    }
