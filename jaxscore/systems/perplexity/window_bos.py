"""Audit of windows that begin without the BOS of their document.

Only the first window of a document reads its BOS. Models that were trained with a BOS before every
text, such as Gemma's, predict badly without it. So a sample of the other windows is scored again
with the document's BOS.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.text_measures import perplexity
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.shell.rounding_audit import Draw

COUNTS = "window_bos"  # counts of a run with this prefix add up
SAMPLED, SAMPLED_TOKENS = 32, 32_768  # windows of a sample and their tokens, or one window
# Nats per token, about 1% of the perplexity, and standard errors of the tokens' differences.
LEAST_GAIN, STANDARD_ERRORS = 0.01, 3.0


class Audit:
    """A sample of windows, scored again with the BOS of their document."""

    def __init__(self, lm: Any, max_length: int, seed: int) -> None:
        """Start with an empty sample.

        Args:
            max_length: the maximum number of tokens that a window reads.
            seed: the seed of the draw.
        """
        self._lm = lm
        self._draw = Draw(max(1, min(SAMPLED, SAMPLED_TOKENS // max_length)), seed)

    def add(self, bos: Sequence[int], window: TokenSequence, scores: SequenceScores) -> None:
        """Draw or leave out a window.

        Args:
            bos: special tokens that its document begins with; a window that begins with them, or
                of a document without any, is left out.
        """
        if bos and window.ids[: len(bos)].tolist() != [*bos]:
            self._draw.add((bos, window), scores)

    def counts(self) -> dict[str, float]:
        """Score the sample again, and return sums that add up over runs; none without a sample.

        The BOS replaces the oldest tokens of a window, so that no window reads more than before.

        Returns:
            `n_windows`, `n_tokens` (scored), `sum_logprob` in the run, `sum_gain` and
            `sum_squared_gain` of what the BOS adds to a token's log-probability, in nats; each
            name with the prefix `window_bos.`.
        """
        pairs = self._draw.pairs
        windows = []
        for (bos, window), _ in pairs:
            n_left_out = min(len(bos), window.start)
            ids = np.concatenate([np.array(bos, np.int32), window.ids[n_left_out:]])
            windows.append(TokenSequence(ids, window.start + len(bos) - n_left_out))
        complaints = self._lm.engine.complaints(windows)
        usable = [k for k in range(len(windows)) if k not in complaints]
        if not usable:
            return {}
        with self._lm.uncounted():
            [scored] = self._lm.engine.run(iter([[windows[k] for k in usable]]))
        own = np.concatenate([pairs[k][1].logprob for k in usable]).astype(np.float64)
        with_bos = np.concatenate([scores.logprob for scores in scored]).astype(np.float64)
        finite = np.isfinite(own) & np.isfinite(with_bos)
        gains = with_bos[finite] - own[finite]
        sums = {
            "n_windows": len(usable),
            "n_tokens": len(gains),
            "sum_logprob": float(own[finite].sum()),
            "sum_gain": float(gains.sum()),
            "sum_squared_gain": float(np.square(gains).sum()),
        }
        return {f"{COUNTS}.{name}": value for name, value in sums.items()}


def findings(counts: Mapping[str, float]) -> list[str]:
    """Return a sentence if the BOS raises the probabilities of the sample by more than noise.

    Args:
        counts: those of a run, see `Audit.counts`.
    """
    n = counts.get(f"{COUNTS}.n_tokens", 0)
    if not n:
        return []
    mean, gain = counts[f"{COUNTS}.sum_logprob"] / n, counts[f"{COUNTS}.sum_gain"] / n
    variance = max(0.0, counts[f"{COUNTS}.sum_squared_gain"] / n - gain**2)
    if gain < LEAST_GAIN or gain <= STANDARD_ERRORS * math.sqrt(variance / n):
        return []
    return [
        "windows after a document's first one read no BOS: the perplexity per token of a sample of "
        f"{counts[f'{COUNTS}.n_windows']} of them is {perplexity(mean):.4g}, and "
        f"{perplexity(mean + gain):.4g} with a BOS in place of their oldest token; a larger "
        "--max-length has fewer such windows"
    ]
