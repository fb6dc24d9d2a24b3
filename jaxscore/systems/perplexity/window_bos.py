"""Audit of windows that begin without the BOS of their document.

By default only the first window of a document reads its BOS. Models that were trained with a BOS
before every text, such as Gemma's, predict badly without it. So a sample of the other windows is
scored again with the BOS.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis.text_measures import perplexity
from jaxscore.plan.requests import TextWindows, TokenSequence
from jaxscore.shell.rounding_audit import Draw
from jaxscore.types.results import ScoredRequest

COUNTS = "window_bos"  # counts of a run with this prefix add up
SAMPLED, SAMPLED_TOKENS = 32, 32_768  # windows of a sample and their tokens, or one window
STANDARD_ERRORS = 2.0  # of the tokens' differences


class _Scores(NamedTuple):
    """Log-probabilities of a window's scored tokens, nats."""

    logprob: np.ndarray


class Audit:
    """A sample of windows, scored again with the BOS of their document."""

    def __init__(self, lm: Any, windows: TextWindows, settings: Any) -> None:
        """Start with an empty sample.

        Args:
            windows: the windows of the run; the sample has those with a BOS in each.
            settings: `WindowSettings` with a seed.
        """
        self._lm = lm
        self._bos = list(lm.encoder.prefix) if settings.window_bos == "first" else []
        self._windows = dataclasses.replace(windows, bos=tuple(self._bos))
        n = max(1, min(SAMPLED, SAMPLED_TOKENS // windows.max_length))
        self._draw = Draw(n, settings.seed)

    def add(self, scored: ScoredRequest) -> None:
        """Draw or leave out the windows of a document that do not begin with its BOS."""
        if not self._bos or scored.n_windows < 2:
            return
        ids, n_before = scored.token_ids, 0
        if ids[: len(self._bos)].tolist() != self._bos:
            ids, n_before = np.concatenate([self._bos, ids]).astype(ids.dtype), len(self._bos)
        for span in self._windows.spans(len(ids), n_before):
            if span.begin:
                logprob = scored.logprob[span.first - n_before : span.end - n_before]
                self._draw.add(self._windows.window(ids, span), _Scores(logprob.copy()))

    def counts(self) -> dict[str, float]:
        """Score the sample again, and return sums that add up over runs; none without a sample.

        The BOS replaces the oldest tokens of a window, so that no window reads more than before.

        Returns:
            `n_windows`, `n_tokens` (scored), `sum_logprob` in the run, `sum_gain` and
            `sum_squared_gain` of what the BOS adds to a token's log-probability, in nats; each
            name with the prefix `window_bos.`.
        """
        sample: list[TokenSequence] = [window for window, _ in self._draw.pairs]
        if not sample:
            return {}
        with self._lm.uncounted():
            [scored] = self._lm.engine.run(iter([sample]))
        before = [scores.logprob for _, scores in self._draw.pairs]
        without_bos = np.concatenate(before).astype(np.float64)
        with_bos = np.concatenate([scores.logprob for scores in scored]).astype(np.float64)
        finite = np.isfinite(without_bos) & np.isfinite(with_bos)
        gains = with_bos[finite] - without_bos[finite]
        sums = {
            "n_windows": len(sample),
            "n_tokens": len(gains),
            "sum_logprob": float(without_bos[finite].sum()),
            "sum_gain": float(gains.sum()),
            "sum_squared_gain": float(np.square(gains).sum()),
        }
        return {f"{COUNTS}.{name}": value for name, value in sums.items()}


def findings(counts: Mapping[str, float]) -> list[str]:
    """Return a sentence on what the BOS does to the windows of the sample, if there is one.

    Args:
        counts: those of a run, see `Audit.counts`.
    """
    n = counts.get(f"{COUNTS}.n_tokens", 0)
    if not n:
        return []
    mean, gain = counts[f"{COUNTS}.sum_logprob"] / n, counts[f"{COUNTS}.sum_gain"] / n
    variance = max(0.0, counts[f"{COUNTS}.sum_squared_gain"] / n - gain**2)
    error = STANDARD_ERRORS * math.sqrt(variance / n)
    remedy = "; --window-bos every puts it in each window" if gain > error else ""
    return [
        "windows after a document's first one read no BOS: the perplexity per token of a sample of "
        f"{counts[f'{COUNTS}.n_windows']} of them is {perplexity(mean):.4g}, and "
        f"{perplexity(mean + gain):.4g} with a BOS in place of their oldest token ({gain:+.3g} "
        f"nats per token, standard error {error / STANDARD_ERRORS:.2g}){remedy}"
    ]
