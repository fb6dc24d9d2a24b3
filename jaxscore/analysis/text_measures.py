"""Measures of one text: perplexity, and detectors of training data and machine-written text.

The detectors take float arrays [n] of one text's scored tokens: `logprob`, ln p of the token;
`entropy`, H of the distribution at its position; `deviation`, the standard deviation of ln p under
that distribution. float32 can represent deviations whose square, the varentropy, underflows to 0.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def perplexity(mean_logprob: float | None) -> float | None:
    """Compute `exp(-mean_logprob)` of nats per token, byte or word; infinity on overflow."""
    if mean_logprob is None:
        return None
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf


def bits(nats: Any) -> Any:
    """Convert nats to bits, of a number or an array."""
    return nats / math.log(2)


def min_k(logprob: np.ndarray, fraction: float) -> float | None:
    """Compute the mean ln p of the least probable tokens, nats (Min-K% Prob, arXiv 2310.16789).

    Args:
        fraction: the fraction of the tokens, rounded down, but at least one token.

    Returns:
        The mean, or None without tokens.
    """
    return _lowest(np.asarray(logprob, np.float64), fraction)


def min_k_pp(
    logprob: np.ndarray, entropy: np.ndarray, deviation: np.ndarray, fraction: float
) -> float | None:
    """Compute the mean of the lowest (ln p + H) / deviation (Min-K%++, arXiv 2404.02936).

    H is minus the mean of ln p under the distribution, so each value is the number of standard
    deviations by which the token's ln p exceeds that mean.

    Args:
        fraction: see `min_k`.

    Returns:
        The mean, or None without tokens or if a value is undefined: a token has a deviation of 0
        and an ln p other than the mean. If a distribution is certain of its token to the last bit,
        the value is its limit, 0.
    """
    excess = np.asarray(logprob, np.float64) + entropy
    spread = np.asarray(deviation, np.float64)
    if (excess[spread == 0] != 0).any():
        return None
    return _lowest(np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0), fraction)


def fast_detect(logprob: np.ndarray, entropy: np.ndarray, deviation: np.ndarray) -> float | None:
    """Compute (sum ln p + sum H) / sqrt(sum deviation^2).

    This is the conditional probability curvature of Fast-DetectGPT in closed form, with one model
    for sampling and scoring (arXiv 2310.05130).

    Returns:
        The curvature, or None without tokens or if all deviations are 0.
    """
    spread = math.fsum(np.square(np.asarray(deviation, np.float64)))
    return (math.fsum(logprob) + math.fsum(entropy)) / math.sqrt(spread) if spread > 0 else None


def corrected_words(
    logprob: np.ndarray, mass: np.ndarray, words: Iterable[Sequence[int]], *, starts_text: bool
) -> list[float | None]:
    """Compute ln p of words whose tokens begin with the space before them, nats.

    The probability of a word's tokens includes that of the space before the word, but not that the
    word ends after them. With B the ids that begin with whitespace, and EOS, the correction is
    ln p(B | text through the word) - ln p(B | text before the word) (arXiv 2406.14561, 2406.10851).

    Args:
        logprob: ln p of each of the text's n tokens, NaN if it is not known.
        mass: ln p(B) in place of each token, and after the last one, [n + 1].
        words: indices of the consecutive tokens of each word, with those of whitespace before it.
        starts_text: True if nothing precedes the first token. A word then begins there in any case.

    Returns:
        ln p of each word, or None if one of its numbers is not known.
    """
    out: list[float | None] = []
    for word in words:
        first, after = word[0], word[-1] + 1
        before = 0.0 if starts_text and first == 0 else float(mass[first])
        value = math.fsum(logprob[first:after]) + float(mass[after]) - before
        out.append(None if math.isnan(value) else value)
    return out


def _lowest(values: np.ndarray, fraction: float) -> float | None:
    """Return the mean of the lowest `fraction` of the values, or None without values."""
    n = max(1, int(fraction * len(values)))
    return math.fsum(np.partition(values, n - 1)[:n]) / n if len(values) else None
