"""Temperature scaling: calibration of probabilities by a single parameter.

Scores are divided by a temperature T before the softmax (Guo et al. 2017, arXiv 1706.04599). It is
fitted on half of the questions and evaluated on the others. Importing this module imports JAX.
"""

import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from jaxscore.analysis.forecasts import brier, calibration, softmax
from jaxscore.device import jax_settings
from jaxscore.io.json_output import Lazy, where

LOWEST, HIGHEST = 0.01, 100.0
N_STARTS = 41  # from bound to bound, a factor of 1.26 between them
N_STEPS = 200
LARGEST_STEP = 0.02  # of the temperature's logarithm: a dozen lead from one start to the next


def rescale(results: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any] | None:
    """Fit a temperature on half of the questions and apply it to the others.

    Args:
        results: records with `line`, `scores` and `truth`; those with an `error` are left out.
            The fit divides the answers' truth by its sum, and ignores questions where it is 0.
        seed: the seed of the split.

    Returns:
        `temperature`, `at_bound`, the lines of both parts, and brier, cross_entropy, ece and
        bins of the second part `before` and `after`; None if a part would be empty.
    """
    good = where(results, lambda result: "error" not in result)
    usable = [k for k, result in enumerate(good) if sum(result["truth"])]
    fitted = np.zeros(len(good), bool)
    for k in random.Random(seed).sample(range(len(usable)), len(usable) // 2):
        fitted[usable[k]] = True
    first, second = (Lazy(np.flatnonzero(mask), good.__getitem__) for mask in (fitted, ~fitted))
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


@jax_settings.isolated()
def _fit(results: Sequence[Mapping[str, Any]]) -> tuple[float, bool]:
    """Return the temperature, and True if it is near a bound of the search."""
    shape = len(results), max(len(result["scores"]) for result in results)
    scores, truth = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    is_answer = np.zeros(shape, bool)
    for k, result in enumerate(results):
        n = len(result["scores"])
        scores[k, :n] = result["scores"]
        truth[k, :n] = np.array(result["truth"]) / sum(result["truth"])
        is_answer[k, :n] = True
    temperature = float(fit_temperature(scores, truth, is_answer))
    return temperature, not 1.2 * LOWEST < temperature < HIGHEST / 1.2


def _quality(results: Sequence[Mapping[str, Any]], temperature: float) -> dict[str, Any]:
    probabilities, truth, briers, losses = (array("d") for _ in range(4))
    for result in results:
        scores = np.array(result["scores"], np.float64)  # infinities are texts
        p, t = softmax(scores / temperature).tolist(), result["truth"]
        probabilities.extend(p)
        truth.extend(t)
        briers.append(brier(p, t))
        if sum(t):
            losses.append(cross_entropy(p, t))
    return {
        "brier": float(np.mean(briers)),
        "cross_entropy": float(np.mean(losses)) if losses else None,
        **calibration([probabilities], [truth]),
    }


def cross_entropy(probability: Sequence[float], truth: Sequence[float]) -> float:
    """Return -Σ truth·ln p / Σ truth in nats; infinite if a true answer has probability 0."""
    p, t = np.array(probability), np.array(truth)
    with np.errstate(divide="ignore"):
        return float(-(t[t > 0] * np.log(p[t > 0])).sum() / t.sum())


def fit_loss(
    log_temperature: Float[Array, ""],
    scores_NK: Float[Array, "N K"],
    truth_NK: Float[Array, "N K"],
    is_answer_NK: Bool[Array, "N K"],
) -> Float[Array, ""]:
    """Return the mean over the questions of -Σ truth·ln softmax(score / T), in nats.

    Args:
        scores_NK: the scores of K answers to N questions.
        truth_NK: the truth, which sums to 1 over the answers of a question.
        is_answer_NK: False for padding.
    """
    scaled_NK = jnp.where(is_answer_NK, scores_NK * jnp.exp(-log_temperature), -1e30)
    logprob_NK = jax.nn.log_softmax(scaled_NK)
    return -jnp.where(is_answer_NK, truth_NK * logprob_NK, 0.0).sum(-1).mean()


@jax.jit
def fit_temperature(
    scores_NK: Float[Array, "N K"],
    truth_NK: Float[Array, "N K"],
    is_answer_NK: Bool[Array, "N K"],
) -> Float[Array, ""]:
    """Return the T from LOWEST to HIGHEST with the least cross-entropy (Guo et al. 2017).

    Above 1 the model was overconfident. The cross-entropy is convex in 1 / T, so the minimum is
    unique; if it is beyond a bound (all right, or worse than chance), T is that bound. It is flat
    far from 1, so the best of a few starts is refined.
    """
    starts = jnp.linspace(jnp.log(LOWEST), jnp.log(HIGHEST), N_STARTS)
    losses = jax.lax.map(lambda start: fit_loss(start, scores_NK, truth_NK, is_answer_NK), starts)
    start = starts[jnp.argmin(losses)]
    optimizer = optax.adam(optax.cosine_decay_schedule(LARGEST_STEP, N_STEPS))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        log_temperature, state = carry
        slope = jax.grad(fit_loss)(log_temperature, scores_NK, truth_NK, is_answer_NK)
        update, state = optimizer.update(slope, state)
        log_temperature = jnp.clip(
            optax.apply_updates(log_temperature, update), jnp.log(LOWEST), jnp.log(HIGHEST)
        )
        return (log_temperature, state), None

    (log_temperature, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=N_STEPS)
    return jnp.exp(log_temperature)
