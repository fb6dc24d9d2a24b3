"""Log-probabilities as perplexities and bits."""

import math


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
