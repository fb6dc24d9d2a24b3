"""Device memory: its limit, the share of the parameters, and `--batch-tokens auto`."""

import math
import os
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from jaxscore.engine.defaults import AUTO, BATCH_TOKENS
from jaxscore.io import processes
from jaxscore.models.model import Model


def limit_bytes() -> int | None:
    """Memory of the first device that programs may use, or None if it does not report it (CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats["bytes_limit"]) if "bytes_limit" in stats else None


def placed_bytes(params: Any) -> int:
    """Bytes on each device of a tree of arrays, or of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(params)
    )


def is_out_of_memory(problem: JaxRuntimeError) -> bool:
    """Whether memory ran out, in compilation or execution."""
    return "RESOURCE_EXHAUSTED" in str(problem)


LENGTH = 1024  # of the measured rows: attention makes each token of longer rows more expensive
MEASURED = (4096, 8192)  # tokens of measured batches; memory is linear in the tokens
LEAST, MOST_CPU, MOST_ACCELERATOR = 512, 4096, 32768  # bounds; not measured on accelerators
SHARE = 0.8  # of the memory beside the parameters; the rest is for batches in flight


def batch_tokens(
    requested: int | str | None,
    model: Model,
    *,
    reproducible: bool,
    measures: tuple[str, ...] = (),
) -> int:
    """Tokens in each batch.

    Args:
        requested: a number, "auto", or None: BATCH_TOKENS on a CPU and "auto" on an accelerator,
            where small batches are limited by reading the weights.
        reproducible: batches hold one sequence each, so the number has no effect.
        measures: names of `Model.measures` that every batch computes.

    Raises:
        InputError: see `auto_batch_tokens`.
    """
    if requested is not None and requested != AUTO:
        return int(requested)
    if reproducible or (requested is None and model.platform == "cpu"):
        return BATCH_TOKENS
    return auto_batch_tokens(model, measures=measures)


def auto_batch_tokens(model: Model, free: int | None = None, measures: tuple[str, ...] = ()) -> int:
    """The largest power of two whose batches fit, by the compiler's memory analysis.

    Args:
        model: loaded, so that its memory is in use already.
        free: bytes of the device that batches may use; None asks the device.
        measures: as in `batch_tokens`.

    Raises:
        InputError: the compiler of this device does not report memory.
    """
    available = free_bytes() if free is None else free
    tokens = MOST_CPU if model.platform == "cpu" else MOST_ACCELERATOR
    length = min(LENGTH, 1 << (model.max_positions - 1).bit_length())
    small, large = (_measured(model, tokens, length, measures) for tokens in MEASURED)
    per_token = max(0.0, (large - small) / (MEASURED[1] - MEASURED[0]))
    fixed = small - per_token * MEASURED[0]
    while tokens > LEAST and fixed + per_token * tokens > SHARE * available:
        tokens //= 2
    # One process decides for all: another amount of memory would be another plan.
    return int.from_bytes(processes.broadcast_from_first(tokens.to_bytes(8, "little")), "little")


def _measured(model: Model, tokens: int, length: int, measures: tuple[str, ...]) -> int:
    """Bytes beside the parameters, also for a batch that the compiler rejects for its memory."""
    from jaxscore.engine import footprint  # here: a run with a fixed batch size needs no estimate

    rows = max(1, tokens // length)
    try:
        return footprint.measure(model, rows, length, measures=measures).working_bytes
    except JaxRuntimeError as problem:
        if (rejected := footprint.refused(problem, rows, length)) is None:
            raise
        return rejected.total_bytes - placed_bytes(model.params)


def free_bytes() -> int:
    """Free memory of the first device, or of the machine if it is a CPU."""
    if (limit := limit_bytes()) is not None:
        stats = jax.local_devices()[0].memory_stats() or {}
        return limit - int(stats.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            [kibibytes] = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
        return int(kibibytes) * 1024
    except (OSError, ValueError):  # not Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
