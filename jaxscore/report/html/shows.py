"""What the tokens of a page can be coloured by, and how the page holds these numbers."""

import math
from typing import Any, NamedTuple

import numpy as np

LARGEST = 32_767  # what is held of a number at most; a larger one is shown as "at least"
MISSING = -32_768  # in place of a number that does not exist
PER_NAT = 1000  # numbers of every page are held in thousandths of a nat
SHARE = 99.0  # percent of the tokens that have no darker colour than the darkest, of `Show.scaled`
DARKEST = 6.0  # nats below 0 from which on a log-probability has the darkest colour
RANKS = 10_000  # the rank from which on, in a scale of powers of ten


class Show(NamedTuple):
    """One number of each token.

    Attributes:
        key: name of its array.
        name, unit: for people.
        sign: 1: the larger the darker; -1: the smaller the darker; 0: numbers below 0 have another
            colour than those above, and the farther from 0 the darker.
        scaled: it is held in parts of its own largest value, and not of a nat.
    """

    key: str
    name: str
    unit: str = "nats"
    sign: int = 1
    scaled: bool = False


EVERY = (
    Show("logprob", "Log-probability", "nats below 0", -1),
    Show("entropy", "Entropy"),
    Show("self_certainty", "Self-certainty"),
)
RANK = Show("rank", "Rank", "")


def scaled(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Numbers of any size, int16 [n], and of how many parts 1 consists; NaN becomes `MISSING`."""
    known = np.abs(values[np.isfinite(values)].astype(np.float64))
    per = LARGEST / float(known.max()) if known.any() else float(PER_NAT)
    return thousandths(values, per), per


def thousandths(values: np.ndarray, per: float = PER_NAT) -> np.ndarray:
    """int16 [n]: numbers in thousandths, or in other parts of 1; NaN becomes `MISSING`."""
    missing = np.isnan(values)
    whole = np.clip(np.rint(values.astype(np.float64) * per), -LARGEST, LARGEST)
    whole[missing] = MISSING
    return whole.astype(np.int16)


def header(show: Show, held: np.ndarray, per: float, vocabulary: int | None) -> dict[str, Any]:
    """What the page's script has to know of a number.

    Args:
        held: int16 or, of ranks, uint32 [n].
        vocabulary: columns of the model's distribution.
    """
    return {
        "key": show.key,
        "name": show.name,
        "unit": f"{show.unit} · " if show.unit else "",
        "sign": show.sign,
        "per": per,
        "top": _top(show, held, per, vocabulary),
        "log": show is RANK,
    }


def _top(show: Show, held: np.ndarray, per: float, vocabulary: int | None) -> float:
    """The number from which on a token has the darkest colour."""
    if show is RANK:
        return RANKS
    if show.sign < 0:
        return DARKEST
    if show.key == "entropy" and vocabulary is not None and vocabulary > 1:
        return math.log(vocabulary)
    known = np.abs(held[held != MISSING].astype(np.int64))
    if show.scaled:
        return (float(np.percentile(known, SHARE)) or 1.0) / per if known.any() else 1.0
    return max(1, math.ceil(float(known.max(initial=0)) / per))
