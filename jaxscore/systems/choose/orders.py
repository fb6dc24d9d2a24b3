"""Options by letters in several orders: does the model choose a text, or a place?

Models prefer some letters whatever stands there (Zheng et al. 2024, arXiv 2309.03882).
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.forecasts import softmax
from jaxscore.errors import InputError

MOST = 720  # orders of an item, those of 6 options


def check_orders(orders: str) -> None:
    """Check a value of the setting `orders`.

    Raises:
        InputError: it is none of `all`, `cyclic` and a number.
    """
    if orders not in ("all", "cyclic") and not (orders.isdecimal() and 1 <= int(orders) <= MOST):
        raise InputError(
            f"setting orders is {orders!r}, expected all, cyclic, or a number from 1 to {MOST}"
        )


def orders_of(n: int, orders: str | None, seed: int) -> list[tuple[int, ...]]:
    """Return orders of n options, the file's first: for each place the index of its option.

    Raises:
        InputError: all orders are requested, and there are too many.
    """
    first = tuple(range(n))
    if orders is None:
        return [first]
    if orders == "cyclic":
        return [first[k:] + first[:k] for k in range(n)]
    n_all = math.factorial(n)
    if orders == "all" or int(orders) >= n_all:
        if n_all > MOST:
            raise InputError(f"{n} options have {n_all} orders; take --orders cyclic, or a number")
        return list(itertools.permutations(first))
    drawn = {first: None}
    # Sorted by drawn numbers: Python keeps what a seed draws from version to version.
    numbers = random.Random(f"orders {seed}")
    while len(drawn) < int(orders):
        drawn[tuple(sorted(first, key=lambda _: numbers.random()))] = None
    return list(drawn)


def order_fields(
    options: Sequence[str], orders: Sequence[Sequence[int]], sums: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Return the fields of an item that was asked in several orders.

    Args:
        sums: for each order the log-probability of the letter at each place.
    """
    chosen = [order[int(np.argmax(row))] for order, row in zip(orders, sums, strict=True)]
    other = [options[index] != options[chosen[0]] for index in chosen]
    return {
        "order_choices": chosen,
        "order_changes": sum(other) / len(other),
        "place_probability": np.mean([softmax(row) for row in sums], axis=0).tolist(),
    }


def mean_places(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean probability of each place, by the number of options."""
    rows: dict[int, list[list[float]]] = {}
    for record in records:
        places = record["place_probability"]
        rows.setdefault(len(places), []).append(places)
    return {
        str(n): {"n_items": len(places), "probability": np.mean(places, axis=0).tolist()}
        for n, places in sorted(rows.items())
    }
