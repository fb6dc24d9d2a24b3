"""CRC-32 checksums of the arrays of a converted checkpoint; each process checks its shards.

For each dtype in which it may be loaded, an array has one checksum of the whole and one for each of
equal parts along the axis that the mesh axis `model` may shard. A process checks the parts that are
completely in its shards. Parts that are divided among processes are reported as unchecked.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxscore.device.sharding import keys_of, split_axis
from jaxscore.models.weights.filling import n_threads

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
PARTS = 128 * 9 * 5 * 7  # an array is cut into gcd(PARTS, length of the axis) parts

PIECE = 64 << 20  # bytes of an accelerator's array that a thread copies to the host at a time

# Parameter name -> dtype -> checksum of the whole, then of each part
Checksums = Mapping[str, Mapping[str, list[int]]]


def of_params(arrays: Any) -> Checksums:
    """Compute the checksums of a tree of NumPy arrays."""

    def of_array(name: str, array: np.ndarray) -> dict[str, list[int]]:
        axis = split_axis(name, array.shape)
        parts = [] if axis is None else np.split(array, _n_parts(array.shape, axis), axis)
        return {
            name: [_crc(values.astype(dtype, copy=False)) for values in (array, *parts)]
            for name, dtype in DTYPES.items()
        }

    leaves = _named(arrays)
    with ThreadPoolExecutor(n_threads()) as pool:
        return dict(zip(leaves, pool.map(of_array, leaves, leaves.values()), strict=True))


def damaged_and_unchecked(params: Any, checksums: Checksums) -> tuple[list[str], list[str]]:
    """Return the names of damaged parameters, and of those not completely checked in this process.

    Args:
        params: restored arrays on devices.
        checksums: the result of `of_params`; a parameter without checksums, or with another number
            of them, counts as damaged.
    """

    def check(name: str, array: jax.Array) -> tuple[bool, bool]:
        expected = checksums.get(name, {}).get(array.dtype.name, [])
        axis = split_axis(name, array.shape)
        n_parts = _n_parts(array.shape, axis)
        if len(expected) != 1 + n_parts:
            return True, False
        shards, n_checked = _distinct_shards(array), 0
        for k, crc, size in _in_this_process(array, shards, axis, n_parts):
            if crc != expected[k]:
                return True, False
            n_checked += size
        return False, n_checked < sum(shard.data.size for shard in shards)

    leaves = _named(params)
    with ThreadPoolExecutor(n_threads()) as pool:
        results = [*zip(leaves, pool.map(check, leaves, leaves.values()), strict=True)]
    damaged = [name for name, (is_damaged, _) in results if is_damaged]
    return damaged, [name for name, (_, is_unchecked) in results if is_unchecked]


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(keys_of(path)): leaf for path, leaf in leaves}


def _n_parts(shape: tuple[int, ...], axis: int | None) -> int:
    return 0 if axis is None else math.gcd(shape[axis], PARTS)


def _distinct_shards(array: jax.Array) -> list[Any]:
    """Return the shards of this process without replicas."""
    return [*{str(shard.index): shard for shard in array.addressable_shards}.values()]


def _in_this_process(
    array: jax.Array, shards: list[Any], axis: int | None, n_parts: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (index among the expected checksums, checksum, size) of each complete part."""
    if shards[0].data.shape == array.shape:
        yield 0, _crc_of_array(shards[0].data), array.size
        return
    along = axis or 0  # an array without parts is checked as one
    size = array.shape[along] // max(1, n_parts)
    shape = (*array.shape[:along], size, *array.shape[along + 1 :])
    for k in range(max(1, n_parts)):
        pieces = []
        for shard in shards:
            start = shard.index[along].start or 0
            low = max(start, k * size)
            high = min(start + shard.data.shape[along], (k + 1) * size)
            if low < high:
                pieces.append((shard, low - start, low - k * size, high - low))
        held = sum(n * shard.data.size // shard.data.shape[along] for shard, _, _, n in pieces)
        if held == math.prod(shape):
            yield k + bool(n_parts), _crc(_joined(shape, array.dtype, along, pieces)), held


def _joined(
    shape: tuple[int, ...], dtype: Any, axis: int, pieces: list[tuple[Any, int, int, int]]
) -> np.ndarray:
    """Copy a part to the host.

    Args:
        pieces: (shard, start in the shard, start in the part, length) along the axis of each
            piece of the part.
    """
    if len(pieces) == 1:
        shard, begin, _, n = pieces[0]
        return _sliced(shard.data, axis, begin, n)
    out = np.empty(shape, dtype)
    for shard, begin, at, n in pieces:
        index = [*shard.index]
        index[axis] = slice(at, at + n)
        out[tuple(index)] = _sliced(shard.data, axis, begin, n)
    return out


def _crc_of_array(array: jax.Array) -> int:
    n = len(array)
    step = max(1, PIECE * n // max(1, array.nbytes))
    crc = 0
    for begin in range(0, n, step):
        crc = _crc(_sliced(array, 0, begin, min(step, n - begin)), crc)
    return crc


def _sliced(array: jax.Array, axis: int, begin: int, size: int) -> np.ndarray:
    """Copy a slice to the host; a copy of the whole device array would stay in JAX's cache."""
    if _is_on_host(array):
        view = np.moveaxis(np.asarray(array), axis, 0)  # the same memory
        return np.moveaxis(view[begin : begin + size], 0, axis)
    return np.asarray(jax.lax.dynamic_slice_in_dim(array, begin, size, axis))


def _is_on_host(array: jax.Array) -> bool:
    return next(iter(array.devices())).platform == "cpu"


def _crc(array: np.ndarray, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)
