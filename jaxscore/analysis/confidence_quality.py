"""How well a confidence separates right from wrong.

Of n responses, with right[1..n] in the order of falling confidence and

    S(k) = right[1] + ... + right[k]        A = 1/n sum_k S(k)/k        p = S(n)/n

    AUROC             probability that a right response has a higher confidence than a wrong one,
                      equal ones counted half (Mann and Whitney 1947); 0.5 without information
    risk at k/n       1 - S(k)/k, the share of wrong ones among the k most confident, at a coverage
                      of k/n (El-Yaniv and Wiener 2010)
    AURC              1 - A, the mean risk over all coverages (Geifman, Uziel and El-Yaniv 2019);
                      1 - p without information
    PRR               (A - p) / (A* - p), with A* of all right ones first: the prediction rejection
                      ratio over all rejection rates, with the share of right ones among the kept
                      as quality (arXiv 2406.15627, after Malinin and Gales, arXiv 2002.07650);
                      1 at best, 0 without information

S(k) among responses of equal confidence is its mean over all their orders, so the order in which
they are given has no effect.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np

from jaxscore.analysis.bootstrap import members_of

DRAWN_TOGETHER = 1 << 20  # weights drawn at a time, so that memory stays small on many responses


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with a 95% interval.

    Attributes:
        value: None if it is not defined.
        low, high: None if undefined: responses of one group, or all draws equal.
    """

    value: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class Quality:
    """The quality of one confidence.

    Attributes:
        n, n_right: responses.
        undefined: why AUROC and PRR are not defined, or None if they are.
        n_draws: draws of the bootstrap in which they are defined, which their intervals are of.
    """

    n: int
    n_right: int
    auroc: Figure
    prr: Figure
    aurc: Figure
    undefined: str | None
    n_draws: int


@dataclasses.dataclass(frozen=True)
class Kept:
    """The most confident responses.

    Attributes:
        coverage: their share of all responses, 0 to 1.
        n: how many they are.
        confidence: the lowest among them.
        risk: the share of wrong ones among them, 0 to 1.
    """

    coverage: float
    n: int
    confidence: float
    risk: float


def quality(
    confidence: Sequence[float] | np.ndarray,
    right: Sequence[bool] | np.ndarray,
    groups: Sequence[Hashable] | np.ndarray,
    n_bootstrap: int,
    seed: int,
) -> Quality:
    """AUROC, PRR and AURC with percentile bootstrap intervals.

    Args:
        confidence: of each response; higher is surer. Infinities are taken.
        right: whether it is right.
        groups: the group of each response, such as its question. Whole groups are drawn (the
            cluster bootstrap: Davison and Hinkley 1997, section 3.8), since responses of one
            question are not independent.
        n_bootstrap, seed: draws, and their seed.

    Raises:
        ValueError: the three are of different lengths, or a confidence is NaN.
    """
    order = _Order(confidence, right)
    if len(groups) != order.n:
        raise ValueError(f"{len(groups)} groups of {order.n} responses")
    n_right = int(np.sum(order.right))
    undefined = _undefined(order.n, n_right)
    nothing = Figure(None, None, None)
    if order.n < 2:
        return Quality(order.n, n_right, nothing, nothing, nothing, undefined, 0)
    point = order.figures(np.ones((1, order.n), np.int64))[:, 0]
    members = members_of(groups)
    drawn, n_groups = np.empty((3, 0)), int(members.max()) + 1
    if n_groups >= 2:
        rng = np.random.default_rng(seed % 2**128)  # NumPy takes none below 0
        together = max(1, DRAWN_TOGETHER // order.n)
        share = np.full(n_groups, 1 / n_groups)
        parts = [
            order.figures(
                rng.multinomial(n_groups, share, size=min(together, n_bootstrap - done))[:, members]
            )
            for done in range(0, n_bootstrap, together)
        ]
        drawn = np.concatenate(parts, axis=1)
    auroc, prr, aurc = (_figure(value, some) for value, some in zip(point, drawn, strict=True))
    return Quality(order.n, n_right, auroc, prr, aurc, undefined, int(np.isfinite(drawn[0]).sum()))


def _undefined(n: int, n_right: int) -> str | None:
    if n < 2:
        return "there are fewer than two responses"
    if n_right in (0, n):
        return f"all responses are {'right' if n_right else 'wrong'}"
    return None


def _figure(value: float, drawn: np.ndarray) -> Figure:
    if math.isnan(value):
        return Figure(None, None, None)
    known = drawn[np.isfinite(drawn)]
    if not len(known) or known.min() == known.max():
        return Figure(float(value), None, None)
    low, high = np.percentile(known, [2.5, 97.5])
    return Figure(float(value), float(low), float(high))


def risk_coverage(
    confidence: Sequence[float] | np.ndarray,
    right: Sequence[bool] | np.ndarray,
    n_points: int = 10,
) -> list[Kept]:
    """The risk-coverage curve at coverages 1/n_points, 2/n_points, ..., 1, each rounded up to whole
    responses. Empty without responses.

    Raises:
        ValueError: the two are of different lengths, or a confidence is NaN.
    """
    order = _Order(confidence, right)
    if not order.n:
        return []
    ones = np.ones((1, order.n), np.int64)
    total, hits = (part[0] for part in order.by_level(ones))
    ends, hits_before = np.cumsum(total), np.cumsum(hits) - hits
    out = []
    for k in dict.fromkeys(math.ceil(order.n * one / n_points) for one in range(1, n_points + 1)):
        at = int(np.searchsorted(ends, k))
        inside = k - (ends[at] - total[at])
        found = hits_before[at] + hits[at] * inside / total[at]
        out.append(Kept(k / order.n, k, float(order.levels[at]), float(1 - found / k)))
    return out


class _Order:
    """Responses in levels of equal confidence, the highest first."""

    def __init__(
        self, confidence: Sequence[float] | np.ndarray, right: Sequence[bool] | np.ndarray
    ) -> None:
        values = np.asarray(confidence, np.float64)
        if len(values) != len(right):
            raise ValueError(f"{len(values)} confidences of {len(right)} responses")
        if np.isnan(values).any():
            raise ValueError("a confidence is NaN, which has no place in an order")
        self.n = len(values)
        falling, level = np.unique(-values, return_inverse=True)
        self.levels = -falling
        self._order = np.argsort(level, kind="stable")
        self.right = np.asarray(right, bool)[self._order]
        self._starts = np.flatnonzero(np.diff(level[self._order], prepend=-1))

    def by_level(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How often each level's responses, and its right ones, are drawn: int [draws, levels].

        Args:
            weights: int [draws, n], how often each response is drawn.
        """
        sorted_weights = weights[:, self._order]
        total = np.add.reduceat(sorted_weights, self._starts, axis=1)
        return total, np.add.reduceat(sorted_weights * self.right, self._starts, axis=1)

    def figures(self, weights: np.ndarray) -> np.ndarray:
        """AUROC, PRR and AURC of each draw, float64 [3, draws]; NaN where not defined.

        Args:
            weights: int [draws, n], how often each response is drawn, at least one of them.
        """
        total, hits = self.by_level(weights)
        n, n_right = total.sum(axis=1), hits.sum(axis=1)
        before = np.cumsum(hits, axis=1) - hits
        with np.errstate(divide="ignore", invalid="ignore"):  # one class alone
            won = ((total - hits) * (before + hits / 2)).sum(axis=1)
            auroc = won / (n_right * (n - n_right))
            # Within a level that goes from a to b, S(k) = S(a) + (k - a) * share, and
            # sum_k S(k)/k = (S(a) - a share)(H(b) - H(a)) + share (b - a), H(k) = 1 + ... + 1/k.
            end = np.cumsum(total, axis=1)
            start = end - total
            share = hits / np.maximum(total, 1)
            harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n.max() + 1))])
            sums = (before - start * share) * (harmonic[end] - harmonic[start]) + share * total
            area, p = sums.sum(axis=1) / n, n_right / n
            best = (n_right + n_right * (harmonic[n] - harmonic[n_right])) / n
            prr = np.where((n_right > 0) & (n_right < n), (area - p) / (best - p), np.nan)
        return np.stack([auroc, prr, 1 - area])
