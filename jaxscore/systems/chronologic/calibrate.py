"""How far probabilities of answers can be trusted, and what one temperature makes of that."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.brier import brier
from jaxscore.analysis.calibration import expected_calibration_error, reliability
from jaxscore.analysis.softmax import softmax
from jaxscore.errors import InputError

FEWEST = 2  # questions: one to fit on and one to look at


def calibration(
    probabilities: Sequence[Sequence[float]], truth: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """`ece` and `bins` with every answer of every question as an event that is true or not."""
    bins = reliability(_flat(probabilities), _flat(truth))
    return {
        "ece": expected_calibration_error(bins),
        "bins": [dataclasses.asdict(one) for one in bins],
    }


def check_enough(n_questions: int) -> None:
    """Raises InputError where there is nothing to split."""
    if n_questions < FEWEST:
        raise InputError(
            f"calibrate: {n_questions} question to split in two parts, expected at least "
            f"{FEWEST}; take more, or leave calibrate out"
        )


def rescale(results: Sequence[dict[str, Any]], seed: int) -> dict[str, Any] | None:
    """Fit a temperature on half of the questions and apply it to the others.

    Args:
        results: each with `line`, `scores` and `truth`; one with an `error` is left out. The
            answers' truth is divided by its sum for the fit; a question where nothing is true
            has no part in it.
        seed: of the split.

    Returns:
        `temperature`, `at_bound`, the lines of both parts, and brier, cross_entropy, ece and
        bins of the second part `before` and `after`; None where a part would be empty.
    """
    good = [result for result in results if "error" not in result]
    usable = [k for k, result in enumerate(good) if sum(result["truth"])]
    fitted = {usable[k] for k in random.Random(seed).sample(range(len(usable)), len(usable) // 2)}
    first = [result for k, result in enumerate(good) if k in fitted]
    second = [result for k, result in enumerate(good) if k not in fitted]
    if not first or not second:
        return None
    temperature, at_bound = _fit(first)
    return {
        "temperature": temperature,
        "at_bound": at_bound,
        "fitted_on": [result["line"] for result in first],
        "evaluated_on": [result["line"] for result in second],
        "before": _quality(second, 1.0),
        "after": _quality(second, temperature),
    }


def _fit(results: Sequence[dict[str, Any]]) -> tuple[float, bool]:
    """The temperature, and whether it is near a bound of the search."""
    from jaxscore.systems.chronologic.temperature import (  # here: importing it imports JAX
        HIGHEST,
        LOWEST,
        fit_temperature,
    )

    shape = len(results), max(len(result["scores"]) for result in results)
    scores, truth = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    asked = np.zeros(shape, bool)
    for k, result in enumerate(results):
        n = len(result["scores"])
        scores[k, :n] = result["scores"]
        truth[k, :n] = np.array(result["truth"]) / sum(result["truth"])
        asked[k, :n] = True
    temperature = float(fit_temperature(scores, truth, asked))
    return temperature, not 1.2 * LOWEST < temperature < HIGHEST / 1.2


def _quality(results: Sequence[dict[str, Any]], temperature: float) -> dict[str, Any]:
    truth = [result["truth"] for result in results]
    probabilities = [softmax(np.array(r["scores"]) / temperature).tolist() for r in results]
    pairs = list(zip(probabilities, truth, strict=True))
    losses = [cross_entropy(p, t) for p, t in pairs if sum(t)]
    return {
        "brier": float(np.mean([brier(p, t) for p, t in pairs])),
        "cross_entropy": float(np.mean(losses)) if losses else None,
        **calibration(probabilities, truth),
    }


def cross_entropy(probability: Sequence[float], truth: Sequence[float]) -> float:
    """-Σ truth·ln p / Σ truth in nats, infinite where something true has probability 0."""
    p, t = np.array(probability), np.array(truth)
    with np.errstate(divide="ignore"):
        return float(-(t[t > 0] * np.log(p[t > 0])).sum() / t.sum())


def _flat(parts: Sequence[Sequence[float]]) -> list[float]:
    return [value for part in parts for value in part]
