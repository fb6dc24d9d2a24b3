"""The noise floor: how far the numbers move when the same requests are laid out in other ways.

What stands beside a request (shared text, rows, batches) decides the order in which a device adds
up, and with it the last bits of a score. An audit scores some requests of a run again:

    alone               every text in a batch of its own, see `jaxscore.plan.row_batches`
    batches of N        together, in batches of another size
    one request a row   together, without shared text or shared rows

The spread of a number is its largest value less its smallest, over these layouts and that of the
run itself. On small runs two of them may coincide.
"""

import dataclasses
import functools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxscore.types.requests import LabelRequest, Request
from jaxscore.types.results import LabelScores, ScoredRequest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OF_TOKENS = ("logprob", "entropy", "self_certainty")
OF_TWO_MODELS = ("kl", "js")  # measures of a `DivergenceScorer`
OF_REQUESTS = ("sum_logprob", "mean_logprob", "mean_self_certainty")
OF_LABELS = ("logprob", "probability")

Pair = tuple[Any, Any]  # a request and its result


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Of one number, in its units: the largest of all requests, and the requests' mean."""

    largest: float
    mean: float


@dataclasses.dataclass(frozen=True, slots=True)
class Noise:
    """What an audit found.

    Attributes:
        n_requests: scored again, at least one.
        layouts: for people; the run's own first.
        spread: by the number's name: `token_logprob`, `token_entropy`, `token_self_certainty`,
            of two models `token_kl` and `token_js`, `sum_logprob`, `mean_logprob` and
            `mean_self_certainty` of scored requests, `label_logprob` and `label_probability` of
            label requests. Nats, but for the probability. A request's spread of a token's number is
            that of the token which moves most; infinite where a number that the run had is not
            finite in another layout.
        n_tokens: scored tokens of scored requests; None for label requests.
        n_greedy_differs: those of them that are the most probable token in some layouts only.
    """

    n_requests: int
    layouts: tuple[str, ...]
    spread: dict[str, Spread]
    n_tokens: int | None = None
    n_greedy_differs: int | None = None

    def record(self, decisions: Sequence["DataclassInstance"] = ()) -> dict[str, Any]:
        """As JSON has it, with what follows for a run's decisions."""
        out = dataclasses.asdict(self)
        return {**out, "decisions": [dataclasses.asdict(one) for one in decisions]}


class Draw:
    """At most n of the requests that pass by, with their results, drawn by a seed.

    Each request that has numbers is as likely as another (a reservoir: Vitter 1985, algorithm R),
    and only those drawn are kept.

    Example:
        >>> draw = Draw(16, seed=0)
        >>> scored = list(draw.results(scorer.score(draw.watch(requests))))
        >>> draw.pairs

    Attributes:
        pairs: (request, result), by now.
    """

    def __init__(self, n: int, seed: int) -> None:
        self.pairs: list[Pair] = []
        self._n, self._n_seen = n, 0
        self._random = random.Random(seed)
        self._waiting: deque[Any] = deque()  # for their results

    def watch(self, requests: Iterable[Any]) -> Iterator[Any]:
        """The same requests."""
        for request in requests:
            if self._n:
                self._waiting.append(request)
            yield request

    def results(self, results: Iterable[Any]) -> Iterator[Any]:
        """The same results, in the order of their requests."""
        for result in results:
            if self._n:
                self._take(self._waiting.popleft(), result)
            yield result

    def _take(self, request: Any, result: Any) -> None:
        if result.error is not None or not np.isfinite(result.logprob).any():
            return
        self._n_seen += 1
        if len(self.pairs) < self._n:
            self.pairs.append((request, result))
        elif (place := self._random.randrange(self._n_seen)) < self._n:
            self.pairs[place] = request, result


class AuditedScorer(Protocol):
    """What an audit needs of a scorer; see `jaxscore.scorer.Scorer`."""

    @property
    def reproducible(self) -> bool: ...

    def other_layouts(self) -> Mapping[str, "AuditedScorer"]: ...

    def score(
        self, requests: Iterable[Request], *, boundary: Any, truncate: Any, special_tokens: bool
    ) -> list[ScoredRequest]: ...

    def label(self, requests: Iterable[LabelRequest], *, truncate: Any) -> list[LabelScores]: ...


class OtherLayouts:
    """Scores requests again under a scorer's model, without its journal and its counters."""

    def __init__(self, scorer: AuditedScorer) -> None:
        self._scorer = scorer

    @functools.cached_property
    def _others(self) -> Mapping[str, AuditedScorer]:
        return self._scorer.other_layouts()

    def scores(
        self,
        pairs: Sequence[tuple[Request, ScoredRequest]],
        *,
        boundary: str = "joint",
        truncate: str | None = None,
        special_tokens: bool = True,
    ) -> Noise | None:
        """The noise of `Scorer.score`; None without requests.

        Args:
            pairs: as `Draw` has them.
            boundary, truncate, special_tokens: of the first scoring.
        """

        def again(scorer: AuditedScorer, requests: list[Request]) -> list[ScoredRequest]:
            return scorer.score(
                requests, boundary=boundary, truncate=truncate, special_tokens=special_tokens
            )

        found = self._in_all(pairs, again)
        if not found:
            return None
        spread = {f"token_{name}": _spread(_of_entries(own, name) for own in found)
                  for name in OF_TOKENS}  # fmt: skip
        spread |= {
            f"token_{name}": _spread(_of_measures(own, name) for own in found)
            for name in OF_TWO_MODELS
            if name in found[0][0].measures
        }
        spread |= {name: _spread(_of_request(own, name) for own in found) for name in OF_REQUESTS}
        return Noise(
            n_requests=len(found),
            layouts=self._names,
            spread=spread,
            n_tokens=sum(own[0].n_scored for own in found),
            n_greedy_differs=sum(_n_greedy_differs(own) for own in found),
        )

    def labels(
        self, pairs: Sequence[tuple[LabelRequest, LabelScores]], *, truncate: str | None = None
    ) -> Noise | None:
        """The noise of `Scorer.label`; None without requests.

        Args:
            pairs: as `Draw` has them.
            truncate: of the first scoring.
        """

        def again(scorer: AuditedScorer, requests: list[LabelRequest]) -> list[LabelScores]:
            return scorer.label(requests, truncate=truncate)

        found = self._in_all(pairs, again)
        if not found:
            return None
        spread = {
            f"label_{name}": _spread(_of_entries(own, name) for own in found) for name in OF_LABELS
        }
        return Noise(len(found), self._names, spread)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("alone" if self._scorer.reproducible else "as in the run", *self._others)

    def _in_all(
        self, pairs: Sequence[Pair], again: Callable[[AuditedScorer, list[Any]], list[Any]]
    ) -> list[tuple[Any, ...]]:
        """For each request its results, the run's own first."""
        if not pairs:
            return []
        requests = [request for request, _ in pairs]
        others = [again(scorer, requests) for scorer in self._others.values()]
        return list(zip([result for _, result in pairs], *others, strict=True))


def _spread(values: Iterable[float]) -> Spread:
    every = list(values)
    return Spread(max(every), math.fsum(every) / len(every))


def _of_entries(own: Sequence[Any], name: str) -> float:
    """The largest spread of one entry of an array, over one request's results."""
    if any(one.error is not None for one in own):
        return math.inf
    return _largest(own, [getattr(one, name) for one in own])


def _of_measures(own: Sequence[ScoredRequest], name: str) -> float:
    if any(one.error is not None for one in own):
        return math.inf
    return _largest(own, [one.measures[name] for one in own])


def _largest(own: Sequence[Any], arrays: Sequence[np.ndarray]) -> float:
    known = np.isfinite(own[0].logprob)
    values = np.stack([array[known].astype(np.float64) for array in arrays])
    return float(np.ptp(values, axis=0).max())


def _of_request(own: Sequence[ScoredRequest], name: str) -> float:
    if any(one.error is not None for one in own):
        return math.inf
    values = [getattr(one, name) for one in own]
    return max(values) - min(values)


def _n_greedy_differs(own: Sequence[ScoredRequest]) -> int:
    known = [one.greedy[one.scored] for one in own if one.error is None]
    return int((np.any(known, axis=0) != np.all(known, axis=0)).sum())
