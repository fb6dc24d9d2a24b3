"""Measures of one text from its own tokens: perplexity, and detectors of training data and of
text that a machine wrote.

The detectors take float arrays [n] of one text's scored tokens: `logprob` ln p of the token,
`entropy` H of the distribution at its place, `deviation` the standard deviation of ln p under that
distribution, which float32 holds where its square, the varentropy, is 0.
"""

import math

import numpy as np


def perplexity(mean_logprob: float | None) -> float | None:
    """`exp(-mean_logprob)` of nats per token, byte or word; infinity where no float64 holds it."""
    if mean_logprob is None:
        return None
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf


def bits(nats: float) -> float:
    """Nats as bits."""
    return nats / math.log(2)


def min_k(logprob: np.ndarray, fraction: float) -> float | None:
    """Mean ln p of the least probable tokens, nats (Min-K% Prob, arXiv 2310.16789).

    Args:
        fraction: of the tokens, at least one token, rounded down.

    Returns:
        None if there is no token.
    """
    return _lowest(np.asarray(logprob, np.float64), fraction)


def min_k_pp(
    logprob: np.ndarray, entropy: np.ndarray, deviation: np.ndarray, fraction: float
) -> float | None:
    """Mean of the lowest (ln p + H) / deviation (Min-K%++, arXiv 2404.02936).

    H is minus the mean of ln p under the distribution, so each number says by how many standard
    deviations the token's ln p lies above that mean.

    Args:
        fraction: as of `min_k`.

    Returns:
        None if there is no token, or if a token has a deviation of 0 and another ln p
        than its mean, which leaves its number undefined. Where a distribution is certain of its
        token to the last bit the number is 0, its limit.
    """
    excess = np.asarray(logprob, np.float64) + entropy
    spread = np.asarray(deviation, np.float64)
    if (excess[spread == 0] != 0).any():
        return None
    return _lowest(np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0), fraction)


def fast_detect(logprob: np.ndarray, entropy: np.ndarray, deviation: np.ndarray) -> float | None:
    """(sum ln p + sum H) / sqrt(sum deviation^2): the conditional probability curvature of
    Fast-DetectGPT in closed form, one model for sampling and scoring (arXiv 2310.05130).

    Returns:
        None if there is no token, or if no distribution has any spread.
    """
    spread = math.fsum(np.square(np.asarray(deviation, np.float64)))
    return (math.fsum(logprob) + math.fsum(entropy)) / math.sqrt(spread) if spread > 0 else None


def _lowest(values: np.ndarray, fraction: float) -> float | None:
    """Mean of the lowest of them."""
    n = max(1, int(fraction * len(values)))
    return math.fsum(np.partition(values, n - 1)[:n]) / n if len(values) else None
