"""Rounding-error audit (`--audit-noise`): how far scores change with the layout of the requests.

The layout around a request (shared prefixes, rows, batches) determines the order of a device's
additions, and with it the last bits of a score. An audit scores some requests of a run again:

    alone               every text in a separate batch, see `jaxscore.plan.row_batches`
    batches of N        together, in batches of another size
    one request per row together, without shared prefixes or rows

The spread of a number is the difference between its largest and smallest value over these layouts
and the run's own layout. In small runs two layouts may coincide.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.margins import Decisions
from jaxscore.lm import LocalLM
from jaxscore.plan.requests import TextWindows
from jaxscore.text.encoder import Boundary
from jaxscore.text.tokenize_requests import Truncate
from jaxscore.types.requests import LabelRequest, Request
from jaxscore.types.results import LabelScores, ScoredRequest

OF_TOKENS = ("logprob", "entropy", "self_certainty")
OF_TWO_MODELS = ("kl", "js")  # measures of a `DivergenceScorer`
OF_REQUESTS = ("sum_logprob", "mean_logprob", "mean_self_certainty")
OF_LABELS = ("logprob", "probability")

Pair = tuple[Any, Any]  # a request and its result


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Spread of one number, in its units: largest and mean over the requests."""

    largest: float
    mean: float


@dataclasses.dataclass(frozen=True, slots=True)
class Noise:
    """Result of a rounding-error audit.

    Attributes:
        n_requests: number of requests scored again, at least one.
        layouts: names for the user, the run's own first.
        spread: by the name of the number: `token_logprob`, `token_entropy`, `token_self_certainty`,
            `token_kl` and `token_js` of a model pair, `sum_logprob`, `mean_logprob` and
            `mean_self_certainty` of scored requests, `label_logprob` and `label_probability` of
            label requests. In nats, except the probability. A request's spread of a token's number
            is that of the token with the largest one; infinite if a number of the run is not
            finite in another layout.
        n_tokens: scored tokens; None for label requests.
        n_greedy_differs: tokens that are the most probable one in some layouts only.
    """

    n_requests: int
    layouts: tuple[str, ...]
    spread: dict[str, Spread]
    n_tokens: int | None = None
    n_greedy_differs: int | None = None

    def record(self, decisions: Sequence[Decisions] = ()) -> dict[str, Any]:
        """Record for JSON, with the consequences for a run's decisions."""
        out = dataclasses.asdict(self)
        return {**out, "decisions": [dataclasses.asdict(decision) for decision in decisions]}


def united_noise(records: Sequence[Mapping[str, Any]]) -> Noise | None:
    """One audit of the requests that several runs have drawn; None without any.

    Args:
        records: results of `Noise.record`, or their JSON.
    """
    if not records:
        return None
    spread = {}
    for name in records[0]["spread"]:
        parts = [(record["n_requests"], record["spread"][name]) for record in records]
        largest = max(float(spread_of["largest"]) for _, spread_of in parts)
        total = math.fsum(n * float(spread_of["mean"]) for n, spread_of in parts)
        spread[name] = Spread(largest, total / sum(n for n, _ in parts))
    counts = {}
    for name in ("n_tokens", "n_greedy_differs"):
        counted = [record[name] for record in records if record[name] is not None]
        counts[name] = sum(counted) if counted else None
    layouts = tuple(dict.fromkeys(name for record in records for name in record["layouts"]))
    n_requests = sum(record["n_requests"] for record in records)
    return Noise(n_requests, layouts, spread, **counts)


class Draw:
    """Draws at most n of a stream of requests and their results, with a seed.

    Every request with finite numbers is equally likely (reservoir sampling: Vitter 1985, algorithm
    R), and only drawn requests are retained.

    Example:
        >>> draw = Draw(16, seed=0)
        >>> for request, result in zip(requests, scorer.score(requests)):
        ...     draw.add(request, result)
        >>> draw.pairs

    Attributes:
        pairs: (request, result) drawn so far.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.pairs: list[Pair] = []
        self._n, self._n_seen = n, 0
        self._random = random.Random(seed)

    def add(self, request: Any, result: Any) -> None:
        """Draw or leave out one request with its result."""
        if not self._n or getattr(result, "error", None) is not None:
            return
        if not np.isfinite(result.logprob).any():
            return
        self._n_seen += 1
        if len(self.pairs) < self._n:
            self.pairs.append((request, result))
        elif (slot := self._random.randrange(self._n_seen)) < self._n:
            self.pairs[slot] = request, result


class OtherLayouts:
    """Scores requests again in other layouts, without the scorer's journal and counters."""

    def __init__(self, lm: LocalLM) -> None:
        self._lm = lm

    @functools.cached_property
    def _others(self) -> Mapping[str, LocalLM]:
        return self._lm.other_layouts()

    def scores(
        self,
        pairs: Sequence[tuple[Request, ScoredRequest]],
        *,
        boundary: Boundary = "joint",
        truncate: Truncate | None = None,
        special_tokens: bool = True,
        text_windows: TextWindows | None = None,
    ) -> Noise | None:
        """Audit results of `Scorer.score`; None without requests.

        Args:
            pairs: see `Draw.pairs`.
            boundary, truncate, special_tokens, text_windows: those of the run.
        """

        options: dict[str, Any] = {
            "boundary": boundary,
            "truncate": truncate,
            "special_tokens": special_tokens,
        }
        if text_windows is not None:
            options["text_windows"] = text_windows

        def again(lm: LocalLM, requests: list[Request]) -> list[ScoredRequest]:
            return lm.score(requests, **options)

        results = self._in_all(pairs, again)
        if not results:
            return None
        spread = {
            f"token_{name}": _spread(_of_entries(each, name) for each in results)
            for name in OF_TOKENS
        }
        spread |= {
            f"token_{name}": _spread(
                _of_measures(request_results, name) for request_results in results
            )
            for name in OF_TWO_MODELS
            if name in results[0][0].measures
        }
        spread |= {
            name: _spread(_of_request(request_results, name) for request_results in results)
            for name in OF_REQUESTS
        }
        return Noise(
            n_requests=len(results),
            layouts=self._names,
            spread=spread,
            n_tokens=sum(request_results[0].n_scored for request_results in results),
            n_greedy_differs=sum(_n_greedy_differs(request_results) for request_results in results),
        )

    def labels(
        self, pairs: Sequence[tuple[LabelRequest, LabelScores]], *, truncate: Truncate | None = None
    ) -> Noise | None:
        """Audit results of `Scorer.label`; None without requests.

        Args:
            pairs: see `Draw.pairs`.
            truncate: the run's value.
        """

        def again(lm: LocalLM, requests: list[LabelRequest]) -> list[LabelScores]:
            return lm.label(requests, truncate=truncate)

        results = self._in_all(pairs, again)
        if not results:
            return None
        spread = {
            f"label_{name}": _spread(
                _of_entries(request_results, name) for request_results in results
            )
            for name in OF_LABELS
        }
        return Noise(len(results), self._names, spread)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("alone" if self._lm.reproducible else "as in the run", *self._others)

    def _in_all(
        self, pairs: Sequence[Pair], again: Callable[[LocalLM, list[Any]], list[Any]]
    ) -> list[tuple[Any, ...]]:
        """Results of each request, the run's own first."""
        if not pairs:
            return []
        requests = [request for request, _ in pairs]
        others = [again(lm, requests) for lm in self._others.values()]
        return list(zip([result for _, result in pairs], *others, strict=True))


def _spread(values: Iterable[float]) -> Spread:
    every = list(values)
    return Spread(max(every), math.fsum(every) / len(every))


def _of_entries(results: Sequence[Any], name: str) -> float:
    """Largest spread of an entry of an array over one request's results."""
    if any(result.error is not None for result in results):
        return math.inf
    return _largest(results, [getattr(result, name) for result in results])


def _of_measures(results: Sequence[ScoredRequest], name: str) -> float:
    if any(result.error is not None for result in results):
        return math.inf
    return _largest(results, [result.measures[name] for result in results])


def _largest(results: Sequence[Any], arrays: Sequence[np.ndarray]) -> float:
    is_scored = np.isfinite(results[0].logprob)
    values = np.stack([array[is_scored].astype(np.float64) for array in arrays])
    return float(np.ptp(values, axis=0).max())


def _of_request(results: Sequence[ScoredRequest], name: str) -> float:
    if any(result.error is not None for result in results):
        return math.inf
    values = [getattr(result, name) for result in results]
    return max(values) - min(values)


def _n_greedy_differs(results: Sequence[ScoredRequest]) -> int:
    greedy = [result.greedy[result.scored] for result in results if result.error is None]
    return int((np.any(greedy, axis=0) != np.all(greedy, axis=0)).sum())
