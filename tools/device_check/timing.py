"""Time and memory of a compiled function, and the peak speed of a device."""

import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxscore.device.dots import dot_last

CALLS = 10
DATASHEET = {  # `device_kind` -> dense bfloat16 FLOP/s
    r"NVIDIA H100( 80GB HBM3)?": 989e12,
    r"NVIDIA H200": 989e12,
    r"NVIDIA A100(?!.*MIG).*": 312e12,  # SXM4 and PCIe; a MIG slice has MIG in its name
    r"NVIDIA L4": 121e12,
    r"TPU v4": 275e12,
    r"TPU v5( lite|e)": 197e12,
    r"TPU v5p?": 459e12,
    r"TPU v6( lite|e)": 918e12,
}


def time_call(function: Callable[..., Any], *args: Any) -> tuple[Any, float, int | None]:
    """Result on the host, median seconds of a call, bytes of temporary memory."""
    program = jax.jit(function).lower(*args).compile()
    analysis = program.memory_analysis()
    found = jax.device_get(program(*args))
    seconds = []
    for _ in range(CALLS):
        started = time.perf_counter()
        jax.block_until_ready(program(*args))
        seconds.append(time.perf_counter() - started)
    size = None if analysis is None else int(analysis.temp_size_in_bytes)
    return found, statistics.median(seconds), size


def datasheet_peak(kind: str) -> float | None:
    """FLOP/s of one device of this kind, or None if the table lacks it."""
    return next((peak for name, peak in DATASHEET.items() if re.fullmatch(name, kind)), None)


def measure_peak(n: int) -> float:
    """FLOP/s of a bfloat16 product of [n, n] matrices, summed in float32 along the last axes.

    The best of five times ten calls. Values are random: a product of ones takes less power, and
    reaches a clock that no model reaches.
    """
    x, y = (jax.random.normal(jax.random.key(k), (n, n)).astype(jnp.bfloat16) for k in (0, 1))
    product = jax.jit(dot_last)
    product(x, y).block_until_ready()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(10):
            last = product(x, y)
        last.block_until_ready()
        seconds.append((time.perf_counter() - started) / 10)
    return 2 * n**3 / min(seconds)
