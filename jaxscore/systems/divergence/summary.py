"""What is said of all texts of a run together."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, estimate, estimate_of_groups
from jaxscore.analysis.perplexity import perplexity
from jaxscore.systems.divergence.records import PER_TOKEN
from jaxscore.systems.divergence.worst import Worst
from jaxscore.systems.score.requests_file import Line
from jaxscore.types.results import ScoredRequest, Strip

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
BEFORE = 60  # characters of text before a token in a report
DECODED = 32  # tokens of the continuation that give them
OF_TEXTS = ("binoculars", "binoculars_upstream")
SHOWN_OF_A_TEXT = (
    "mean_kl",
    "mean_js",
    "same_argmax_share",
    "perplexity",
    "reference_perplexity",
    *OF_TEXTS,
    "n_scored",
)


class Totals:
    """Sums of all texts, the KL divergence of each token, and the worst of them.

    Attributes:
        n_scored: tokens.
    """

    def __init__(self, decode: Any) -> None:
        """Args:
        decode: ids of tokens -> their text.
        """
        self._decode = decode
        self._sums: dict[str, list[float]] = {name: [] for name in PER_TOKEN}
        self._counts: list[int] = []
        self._kl: list[np.ndarray] = []
        self._of_texts: dict[str, list[float]] = {name: [] for name in OF_TEXTS}
        self._tokens, self._texts = Worst(), Worst()
        self.n_scored = 0

    def add(
        self,
        line: Line,
        scored: ScoredRequest,
        values: Mapping[str, np.ndarray],
        sums: Mapping[str, Any],
    ) -> None:
        """One text.

        Args:
            values, sums: of `records`.
        """
        n = len(values["kl"])
        if not n:
            return
        self.n_scored += n
        self._counts.append(n)
        self._kl.append(values["kl"])
        for name, column in self._sums.items():
            column.append(float(values[name].sum(dtype=np.float64)))
        for name, ratios in self._of_texts.items():
            if sums[name] is not None:
                ratios.append(sums[name])
        if self._texts.takes(mean := sums["mean_kl"]):
            shown = {"id": scored.id, **{k: sums[k] for k in SHOWN_OF_A_TEXT}}
            self._texts.add(mean, (shown, Strip("", line.request.context, scored)))
        first = scored.n_tokens - n  # a token with nothing before it is the first one
        for k in np.argsort(-values["kl"], kind="stable").tolist():
            kl = float(values["kl"][k])
            if not self._tokens.takes(kl):
                break
            self._tokens.add(kl, self._token(line, scored, values, k, first + k))

    def _token(
        self,
        line: Line,
        scored: ScoredRequest,
        values: Mapping[str, np.ndarray],
        k: int,
        place: int,
    ) -> dict[str, Any]:
        """One of the worst; `place` is its index in the continuation."""
        ids = scored.token_ids[max(0, place - DECODED) : place].tolist()
        head = line.request.context.rstrip() if place <= DECODED else ""
        numbers = {name: float(values[name][k]) for name in PER_TOKEN if name != "same_argmax"}
        return {
            "id": scored.id,
            "place": place,
            "before": (head + self._decode(ids))[-BEFORE:],
            "token": scored.tokens[place],
            **numbers,
            "same_argmax": bool(values["same_argmax"][k]),
        }

    def summary(self, n_bootstrap: int, seed: int) -> dict[str, Any]:
        """Means over all scored tokens, and of the ratios over all texts, with intervals."""
        means = {
            name: estimate_of_groups(column, self._counts, n_bootstrap, seed)
            for name, column in self._sums.items()
        }
        ratios = {
            name: estimate(values, n_bootstrap, seed) for name, values in self._of_texts.items()
        }
        return {
            **means,
            "perplexity": _perplexity(means["logprob"]),
            "reference_perplexity": _perplexity(means["reference_logprob"]),
            **ratios,
            "kl_percentiles": self._percentiles(),
        }

    def _percentiles(self) -> dict[str, Any]:
        """Of the KL divergence of all tokens, in nats; None where fewer than two, or where less
        than one of the tokens would lie above."""
        n = self.n_scored
        kl = np.concatenate(self._kl) if n else np.zeros(0, np.float32)
        # Compared in whole thousandths, since 1 - 99.9 / 100 is no float64.
        known = {
            name: n > 1 and n * round(1000 - 10 * q) >= 1000 for name, q in PERCENTILES.items()
        }
        found = np.percentile(kl, [*PERCENTILES.values()]) if n > 1 else np.zeros(4)
        out: dict[str, Any] = {"n": n}
        for (name, is_known), value in zip(known.items(), found.tolist(), strict=True):
            out[name] = value if is_known else None
        return out | {"max": float(kl.max()) if n > 1 else None}

    def worst_tokens(self) -> list[dict[str, Any]]:
        """The largest KL divergence first; none of 0."""
        return self._tokens.largest_first()

    def worst_texts(self) -> list[dict[str, Any]]:
        """The largest mean first; none of 0."""
        return [shown for shown, _ in self._texts.largest_first()]

    def strips(self) -> list[list[Strip]]:
        """The tokens of each of `worst_texts`."""
        return [[strip] for _, strip in self._texts.largest_first()]


def _perplexity(mean: Estimate) -> Estimate:
    """exp(-mean), whose interval is that of the mean turned round."""
    ends = [perplexity(one) for one in (mean.mean, mean.high, mean.low)]
    if any(one is not None and math.isinf(one) for one in ends):
        ends[1:] = [None, None]
    return Estimate(mean.n, *ends)
