"""Time and memory of a compiled function, and the peak speed of a device."""

import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

LEAST_CALLS, MOST_CALLS = 3, 10
MOST_SECONDS = 5.0  # of repeated calls, in addition to the first LEAST_CALLS
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


def datasheet_peak(device_kind: str) -> float | None:
    """Return the FLOP/s of one device of this kind, or None if the table lacks it."""
    return next((peak for name, peak in DATASHEET.items() if re.fullmatch(name, device_kind)), None)


def median_seconds(call: Callable[[], Any]) -> float:
    """Return the median time of several calls, each of which ends when its result is there.

    Args:
        call: has run before, so that it is compiled and warm; returns arrays or None.
    """
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS or (len(seconds) < MOST_CALLS and sum(seconds) < MOST_SECONDS):
        started = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def temporary_bytes(program: Any) -> int | None:
    """Return the temporary memory of a compiled program, or None if the compiler reports none."""
    analysis = program.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)
