"""What a compiled function gives, and what it takes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

CALLS = 10


def measured(function: Callable[..., Any], *args: Any) -> tuple[Any, float, int | None]:
    """Its result on the host, the median of its calls in seconds, its bytes of temporary memory."""
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
