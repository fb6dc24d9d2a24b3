"""What a user asks for, and what comes back."""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """Text to score: how probable is `continuation` after `context`?

    A blank between the two belongs to the continuation. An empty context is legal: the
    continuation is then scored from the tokenizer's BOS, or, where it has none, from its
    second token on.
    """

    id: str | int
    context: str
    continuation: str


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredRequest:
    """Per-token results of one request, aligned with its continuation's tokens.

    Attributes:
        id: the request's.
        token_ids: int32 [n].
        tokens: the tokenizer's names of them.
        logprob, entropy, self_certainty: float32 [n], nats; NaN for a token with nothing before
            it, which has no probability and stays out of every sum.
        greedy: bool [n], whether the token is the most probable one.
        truncated: context tokens that were left out at the left, 0 unless asked for.
        error: why the request could not be scored; the arrays are then empty.
    """

    id: str | int
    token_ids: np.ndarray
    tokens: list[str]
    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray
    truncated: int = 0
    error: str | None = None

    @property
    def scored(self) -> np.ndarray:
        """bool [n]: which tokens have a probability."""
        return ~np.isnan(self.logprob)

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_scored(self) -> int:
        return int(self.scored.sum())

    @property
    def sum_logprob(self) -> float | None:
        """Log-probability of the continuation in nats; None where no token was scored."""
        return float(self._values(self.logprob).sum()) if self.n_scored else None

    @property
    def mean_logprob(self) -> float | None:
        """Nats a token; None where no token was scored."""
        return float(self._values(self.logprob).mean()) if self.n_scored else None

    @property
    def perplexity(self) -> float | None:
        """`exp(-mean_logprob)`, infinity where a float64 cannot hold it."""
        mean = self.mean_logprob
        if mean is None:
            return None
        try:
            return math.exp(-mean)
        except OverflowError:
            return math.inf

    @property
    def mean_entropy(self) -> float | None:
        """Nats a token, of the model's distribution at each scored token."""
        return float(self._values(self.entropy).mean()) if self.n_scored else None

    @property
    def mean_self_certainty(self) -> float | None:
        """Nats a token (arXiv 2502.18581)."""
        return float(self._values(self.self_certainty).mean()) if self.n_scored else None

    def _values(self, array: np.ndarray) -> np.ndarray:
        return array[self.scored].astype(np.float64)


def failed(id: str | int, error: str) -> ScoredRequest:
    """The result of a request that could not be scored."""
    nothing = np.zeros(0, np.float32)
    return ScoredRequest(
        id, np.zeros(0, np.int32), [], nothing, nothing, nothing, np.zeros(0, bool), error=error
    )
