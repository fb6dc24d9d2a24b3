"""What a device has, and what a model's parameters take of it."""

import math
import os
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from jaxscore.engine.defaults import AUTO, BATCH_TOKENS
from jaxscore.io import processes
from jaxscore.models.model import Model


def limit_bytes() -> int | None:
    """Memory of the first device that programs may take in all; None where it does not say, as a
    CPU."""
    told = jax.local_devices()[0].memory_stats() or {}
    return int(told["bytes_limit"]) if "bytes_limit" in told else None


def parameter_bytes(params: Any) -> int:
    """Of a tree of arrays, or of their shapes with their places, on each of its devices."""
    return sum(map(_own_bytes, jax.tree.leaves(params)))


def _own_bytes(leaf: jax.Array) -> int:
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def is_out_of_memory(problem: JaxRuntimeError) -> bool:
    """Whether it says that memory ran out, at compilation or at work."""
    return "RESOURCE_EXHAUSTED" in str(problem)


LENGTH = 1024  # of the rows that are measured: attention makes each token of long ones dearer
MEASURED = (4096, 8192)  # tokens; between two sizes memory grows by a straight line
LEAST, MOST_CPU, MOST_ACCELERATOR = 512, 4096, 32768  # bounds; not measured on accelerators
SHARE = 0.8  # of the memory beside the parameters; the rest is for batches in flight


def batch_tokens(
    asked: int | str | None,
    model: Model,
    *,
    reproducible: bool,
    measures: tuple[str, ...] = (),
) -> int:
    """Tokens in each batch.

    Args:
        asked: a number, "auto", or None: BATCH_TOKENS on a CPU and "auto" on an accelerator,
            which small batches keep waiting for the weights.
        reproducible: batches hold one sequence each, so no number has an effect.
        measures: that every batch computes, of `Model.measures`.

    Raises:
        InputError: as `auto_batch_tokens`.
    """
    if asked is not None and asked != AUTO:
        return int(asked)
    if reproducible or (asked is None and model.platform == "cpu"):
        return BATCH_TOKENS
    return auto_batch_tokens(model, measures=measures)


def auto_batch_tokens(model: Model, free: int | None = None, measures: tuple[str, ...] = ()) -> int:
    """The largest power of two whose batches fit, by what the compiler says they take.

    Args:
        model: loaded, so that what it takes is no longer free.
        free: bytes of the device that batches may take; None asks the device.
        measures: as of `batch_tokens`.

    Raises:
        InputError: the compiler of this device does not say.
    """
    room = free_bytes() if free is None else free
    most = MOST_CPU if model.platform == "cpu" else MOST_ACCELERATOR
    length = min(LENGTH, 1 << (model.max_positions - 1).bit_length())
    small, large = (_measured(model, tokens, length, measures) for tokens in MEASURED)
    a_token = max(0.0, (large - small) / (MEASURED[1] - MEASURED[0]))
    fixed = small - a_token * MEASURED[0]
    tokens = most
    while tokens > LEAST and fixed + a_token * tokens > SHARE * room:
        tokens //= 2
    # Of several processes one decides: another amount of memory would be another plan.
    return int.from_bytes(processes.broadcast_from_first(tokens.to_bytes(8, "little")), "little")


def _measured(model: Model, tokens: int, length: int, measures: tuple[str, ...]) -> int:
    """Bytes beside the parameters, also of a batch that the compiler refuses for its memory."""
    from jaxscore.engine import footprint  # here: a run with a fixed batch size needs no estimate

    rows = max(1, tokens // length)
    try:
        return footprint.measure(model, rows, length, measures=measures).working_bytes
    except JaxRuntimeError as problem:
        if (named := footprint.refused(problem, rows, length)) is None:
            raise
        return named.total_bytes - parameter_bytes(model.params)


def free_bytes() -> int:
    """Memory of the first device beside what is on it; of the machine where it is a CPU."""
    if (limit := limit_bytes()) is not None:
        told = jax.local_devices()[0].memory_stats() or {}
        return limit - int(told.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            [kibibytes] = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
        return int(kibibytes) * 1024
    except (OSError, ValueError):  # no Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
