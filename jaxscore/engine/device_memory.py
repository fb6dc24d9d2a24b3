"""What a device has, and what a model's parameters take of it."""

import math
from typing import Any

import jax


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
