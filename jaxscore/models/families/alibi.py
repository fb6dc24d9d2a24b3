"""Slopes of ALiBi, a head each."""

import math


def slopes(n_heads: int) -> tuple[float, ...]:
    """2^(-8/n), 2^(-16/n), ... for n heads (arXiv 2108.12409).

    Where n is no power of two, those of the power below, and between them those of twice it.
    """

    def powers(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (k + 1) / n) for k in range(n)]

    below = 2 ** int(math.log2(n_heads))
    return tuple(powers(below) + powers(2 * below)[::2][: n_heads - below])
