"""What a device could do: by its datasheet, and by a large product."""

import re
import time

import jax
import jax.numpy as jnp

from jaxscore.device.dots import dot_last

DATASHEET = {  # `device_kind` -> dense bfloat16 FLOP/s
    r"NVIDIA H100( 80GB HBM3)?": 989e12,
    r"NVIDIA H200": 989e12,
    r"NVIDIA A100(?!.*MIG).*": 312e12,  # SXM4 as PCIE; no part of one, which has MIG in its name
    r"NVIDIA L4": 121e12,
    r"TPU v4": 275e12,
    r"TPU v5( lite|e)": 197e12,
    r"TPU v5p?": 459e12,
    r"TPU v6( lite|e)": 918e12,
}


def datasheet(kind: str) -> float | None:
    """FLOP/s of one device of this kind, None for those that are not in the table."""
    return next((peak for name, peak in DATASHEET.items() if re.fullmatch(name, kind)), None)


def measured(n: int) -> float:
    """FLOP/s of a bfloat16 product of [n, n] matrices as the decoder's are: along the last axes,
    summed in float32. The best of five times ten calls.

    Random values: a product of ones takes less power, and shows a clock that no model sees.
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
