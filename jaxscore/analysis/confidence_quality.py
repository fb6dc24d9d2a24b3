"""Quality of a confidence: its separation of right and wrong responses.

For n responses, with right[1..n] by descending confidence and

    S(k) = right[1] + ... + right[k]        A = 1/n sum_k S(k)/k        p = S(n)/n

    AUROC             probability that a right response has a higher confidence than a wrong one;
                      ties count half (Mann and Whitney 1947); 0.5 for an uninformative confidence
    risk at k/n       1 - S(k)/k, the share of wrong responses among the k most confident, at a
                      coverage of k/n (El-Yaniv and Wiener 2010)
    AURC              1 - A, the mean risk over all coverages (Geifman, Uziel and El-Yaniv 2019);
                      1 - p for an uninformative confidence
    PRR               (A - p) / (A* - p), where A* orders all right responses first: the prediction
                      rejection ratio over all rejection rates, with the share of right responses
                      among the kept ones as quality (arXiv 2406.15627, after Malinin and Gales,
                      arXiv 2002.07650); at most 1, 0 for an uninformative confidence

For responses of equal confidence, S(k) is its mean over all their orders, so results do not depend
on the order of the input.
"""

import dataclasses
import math
from collections.abc import Hashable, Sequence

import numpy as np

from jaxscore.analysis.bootstrap import members_of

DRAWN_TOGETHER = 1 << 20  # weights drawn at a time, which bounds memory for many responses


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with a 95% interval.

    Attributes:
        value: the figure, or None if undefined.
        low, high: the bounds, or None if undefined: with a single group, or if all draws are equal.
    """

    value: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True)
class Quality:
    """The quality of one confidence.

    Attributes:
        n, n_right: the numbers of responses and of right responses.
        undefined: the reason why AUROC and PRR are undefined, or None.
        n_draws: the number of bootstrap draws in which AUROC and PRR are defined; their intervals
            use these draws.
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
        n: their number.
        confidence: the lowest confidence among them.
        risk: the share of wrong responses among them, 0 to 1.
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
    """Compute AUROC, PRR and AURC with percentile bootstrap intervals.

    Args:
        confidence: the confidence of each response; may be infinite.
        right: True for each right response.
        groups: the group of each response, such as its question. Whole groups are drawn (the
            cluster bootstrap: Davison and Hinkley 1997, section 3.8), since responses of one
            question are not independent.
        n_bootstrap, seed: the number of draws and their seed.

    Raises:
        ValueError: the arguments have different lengths, or a confidence is NaN.
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
        rng = np.random.default_rng(seed % 2**128)  # NumPy refuses negative seeds
        batch_size = max(1, DRAWN_TOGETHER // order.n)
        share = np.full(n_groups, 1 / n_groups)
        batches = [
            order.figures(
                rng.multinomial(n_groups, share, size=min(batch_size, n_bootstrap - done))[
                    :, members
                ]
            )
            for done in range(0, n_bootstrap, batch_size)
        ]
        drawn = np.concatenate(batches, axis=1)
    auroc, prr, aurc = (_figure(value, draws) for value, draws in zip(point, drawn, strict=True))
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
    finite = drawn[np.isfinite(drawn)]
    if not len(finite) or finite.min() == finite.max():
        return Figure(float(value), None, None)
    low, high = np.percentile(finite, [2.5, 97.5])
    return Figure(float(value), float(low), float(high))


def risk_coverage(
    confidence: Sequence[float] | np.ndarray,
    right: Sequence[bool] | np.ndarray,
    n_points: int = 10,
) -> list[Kept]:
    """Compute the risk-coverage curve at coverages 1/n_points, 2/n_points, ..., 1.

    Each coverage is rounded up to whole responses. The curve is empty without responses.

    Raises:
        ValueError: the arguments have different lengths, or a confidence is NaN.
    """
    order = _Order(confidence, right)
    if not order.n:
        return []
    ones = np.ones((1, order.n), np.int64)
    total, hits = (drawn[0] for drawn in order.by_level(ones))
    ends, hits_before = np.cumsum(total), np.cumsum(hits) - hits
    out = []
    for k in dict.fromkeys(math.ceil(order.n * i / n_points) for i in range(1, n_points + 1)):
        level = int(np.searchsorted(ends, k))
        n_in_level = k - (ends[level] - total[level])
        n_right = hits_before[level] + hits[level] * n_in_level / total[level]
        out.append(Kept(k / order.n, k, float(order.levels[level]), float(1 - n_right / k)))
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
            raise ValueError("a confidence is NaN, which cannot be ordered")
        self.n = len(values)
        falling, level = np.unique(-values, return_inverse=True)
        self.levels = -falling
        self._order = np.argsort(level, kind="stable")
        self.right = np.asarray(right, bool)[self._order]
        self._starts = np.flatnonzero(np.diff(level[self._order], prepend=-1))

    def by_level(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count the drawn responses, and the right ones, of each level: int [draws, levels].

        Args:
            weights: int [draws, n], the number of times that each response is drawn.
        """
        sorted_weights = weights[:, self._order]
        total = np.add.reduceat(sorted_weights, self._starts, axis=1)
        return total, np.add.reduceat(sorted_weights * self.right, self._starts, axis=1)

    def figures(self, weights: np.ndarray) -> np.ndarray:
        """Compute AUROC, PRR and AURC of each draw, float64 [3, draws]; NaN where undefined.

        Args:
            weights: int [draws, n], the number of times that each response is drawn; each draw has
                at least one response.
        """
        total, hits = self.by_level(weights)
        n, n_right = total.sum(axis=1), hits.sum(axis=1)
        before = np.cumsum(hits, axis=1) - hits
        with np.errstate(divide="ignore", invalid="ignore"):  # draws with only one class
            won = ((total - hits) * (before + hits / 2)).sum(axis=1)
            auroc = won / (n_right * (n - n_right))
            # Within a level from a to b, S(k) = S(a) + (k - a) * share, and
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
