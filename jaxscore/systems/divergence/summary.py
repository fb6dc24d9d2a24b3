"""Numbers of each token and text under two models, and of all texts of a run together."""

import heapq
import itertools
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, estimate, estimate_of_groups
from jaxscore.analysis.text_measures import perplexity
from jaxscore.types.results import ScoredRequest, Strip

NUMBERS = (  # per token, float32 nats; `same_argmax` stands beside them
    "kl",
    "reverse_kl",
    "js",
    "cross_entropy",
    "logprob",
    "reference_logprob",
    "logprob_difference",
    "entropy",
    "reference_entropy",
)
PER_TOKEN = (*NUMBERS, "same_argmax")
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
BEFORE = 60  # characters of text before a token in a report
DECODED = 32  # tokens of the continuation that give them
N_WORST = 50  # tokens, and texts, of a report
RATIOS = ("binoculars", "binoculars_upstream")  # per text
TEXT_FIELDS = (  # of a text in a report
    "mean_kl",
    "mean_js",
    "same_argmax_share",
    "perplexity",
    "reference_perplexity",
    *RATIOS,
    "n_scored",
)


def values_of(scored: ScoredRequest) -> dict[str, np.ndarray]:
    """float32 [n_scored] of each name in `PER_TOKEN`, for the tokens that have a probability."""
    known = scored.scored
    values = {name: measure[known] for name, measure in scored.measures.items()}
    values |= {"logprob": scored.logprob[known], "entropy": scored.entropy[known]}
    # - sum p ln q = H(p) + KL(p || q)
    values["cross_entropy"] = values["entropy"] + values["kl"]
    values["logprob_difference"] = values["logprob"] - values["reference_logprob"]
    return {name: values[name] for name in PER_TOKEN}


def means_of(values: Mapping[str, np.ndarray], n_tokens: int) -> dict[str, Any]:
    """Means over the scored tokens of a text, computed in float64; None if there are none.

    `binoculars` is the score of arXiv 2401.12070 with M1 = p and M2 = q: the log-perplexity under p
    divided by the cross-entropy - sum p ln q. `binoculars_upstream` is what
    the authors' program computes with p as observer and q as performer: its numerator is the
    log-perplexity under q.
    """
    n = len(values["kl"])
    mean = {name: float(values[name].mean(dtype=np.float64)) if n else None for name in PER_TOKEN}
    cross = mean["cross_entropy"]

    def per_cross_entropy(logprob: float | None) -> float | None:
        """None also if both models are certain of every token."""
        return None if logprob is None or not cross else -logprob / cross

    return {
        **{f"mean_{name}": mean[name] for name in NUMBERS},
        "same_argmax_share": mean["same_argmax"],
        "perplexity": perplexity(mean["logprob"]),
        "reference_perplexity": perplexity(mean["reference_logprob"]),
        "binoculars": per_cross_entropy(mean["logprob"]),
        "binoculars_upstream": per_cross_entropy(mean["reference_logprob"]),
        "n_tokens": n_tokens,
        "n_scored": n,
    }


class Worst:
    """The items with the largest values, the first of equal ones."""

    def __init__(self, size: int = N_WORST) -> None:
        """Args:
        size: at most so many are retained.
        """
        self._heap: list[tuple[float, int, Any]] = []
        self._size, self._order = size, itertools.count(0, -1)

    def takes(self, value: float) -> bool:
        """Whether an item of this value would be retained; one of 0 is not."""
        return value > 0 and (len(self._heap) < self._size or value > self._heap[0][0])

    def add(self, value: float, item: Any) -> None:
        """Add an item that `takes` allows; it replaces the one with the smallest value."""
        entry = value, next(self._order), item
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def offer(self, value: float, item: Any) -> None:
        """Add an item if `takes` allows it."""
        if self.takes(value):
            self.add(value, item)

    def largest_first(self) -> list[Any]:
        """The retained items."""
        ordered = sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))
        return [item for _, _, item in ordered]


class Totals:
    """Sums of all texts, the KL divergence of each token, and the worst of them.

    Attributes:
        n_scored: tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Args:
        decode: ids of tokens -> their text.
        """
        self._decode = decode
        self._sums = {name: array("d") for name in PER_TOKEN}
        self._counts, self._kl = array("q"), array("f")
        self._ratios = {name: array("d") for name in RATIOS}
        self._tokens, self._texts = Worst(), Worst()
        self.n_scored = 0

    def add(
        self,
        context: str,
        scored: ScoredRequest,
        values: Mapping[str, np.ndarray],
        means: Mapping[str, Any],
    ) -> None:
        """Add a text.

        Args:
            context: stands before it.
            values, means: `values_of` and `means_of` it.
        """
        if not self.add_values(values, means):
            return
        n = len(values["kl"])
        self.add_text(scored.id, means, lambda: Strip("", context, scored))
        first = scored.n_tokens - n  # a token with nothing before it is the first one
        for k in np.argsort(-values["kl"], kind="stable").tolist():
            kl = float(values["kl"][k])
            if not self._tokens.takes(kl):
                break
            self._tokens.add(kl, self._token(context, scored, values, k, first + k))

    def add_text(self, id: str | int, means: Mapping[str, Any], strip: Callable[[], Strip]) -> None:
        """Add a text to the worst texts, if it is one of them.

        Args:
            strip: makes its tokens.
        """
        if self._texts.takes(mean := means["mean_kl"]):
            text = {"id": id, **{name: means[name] for name in TEXT_FIELDS}}
            self._texts.add(mean, (text, strip()))

    def add_values(self, values: Mapping[str, np.ndarray], means: Mapping[str, Any]) -> int:
        """Add the numbers of a text alone, which then is in no list of the worst.

        Returns:
            The number of its scored tokens.
        """
        n = len(values["kl"])
        if not n:
            return 0
        self.n_scored += n
        self._counts.append(n)
        self._kl.frombytes(values["kl"].astype(np.float32).tobytes())
        for name, column in self._sums.items():
            column.append(float(values[name].sum(dtype=np.float64)))
        for name, ratios in self._ratios.items():
            if means[name] is not None:
                ratios.append(means[name])
        return n

    def _token(
        self,
        context: str,
        scored: ScoredRequest,
        values: Mapping[str, np.ndarray],
        k: int,
        place: int,
    ) -> dict[str, Any]:
        """One of the worst; `place` is its index in the continuation."""
        ids = scored.token_ids[max(0, place - DECODED) : place].tolist()
        head = context.rstrip() if place <= DECODED else ""
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
            name: estimate(values, n_bootstrap, seed) for name, values in self._ratios.items()
        }
        return {
            **means,
            "perplexity": _perplexity(means["logprob"]),
            "reference_perplexity": _perplexity(means["reference_logprob"]),
            **ratios,
            "kl_percentiles": self._percentiles(),
        }

    def _percentiles(self) -> dict[str, Any]:
        """Percentiles of the KL divergence of all tokens, in nats.

        None if there are fewer than two tokens, or less than one of them would lie above.
        """
        n = self.n_scored
        kl = np.array(self._kl)
        # Compared in whole thousandths, since 1 - 99.9 / 100 is no float64.
        known = {
            name: n > 1 and n * round(1000 - 10 * q) >= 1000 for name, q in PERCENTILES.items()
        }
        values = np.percentile(kl, [*PERCENTILES.values()]) if n > 1 else np.zeros(4)
        out: dict[str, Any] = {"n": n}
        for (name, is_known), value in zip(known.items(), values.tolist(), strict=True):
            out[name] = value if is_known else None
        return out | {"max": float(kl.max()) if n > 1 else None}

    def worst_tokens(self) -> list[dict[str, Any]]:
        """The largest KL divergence first; none of 0."""
        return self._tokens.largest_first()

    def worst_texts(self) -> list[dict[str, Any]]:
        """The largest mean first; none of 0."""
        return [text for text, _ in self._texts.largest_first()]

    def strips(self) -> list[list[Strip]]:
        """The tokens of each of `worst_texts`."""
        return [[strip] for _, strip in self._texts.largest_first()]


def _perplexity(mean: Estimate) -> Estimate:
    """exp(-mean), with the interval of the mean in reverse order."""
    ends = [perplexity(value) for value in (mean.mean, mean.high, mean.low)]
    if any(value is not None and math.isinf(value) for value in ends):
        ends[1:] = [None, None]
    return Estimate(mean.n, *ends)
