"""CRC-32 of the arrays of a converted checkpoint; each process checks its own shards.

An array has a checksum of the whole, and one of each of the equal parts that it is cut into along
the axis that `model` of a mesh may split, in each dtype that it may be loaded in. A shard consists
of whole parts if the mesh splits that axis alone, into a divisor of `PARTS`; a fraction of a part
is not checked.
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

KINDS = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
PARTS = 128 * 9 * 5 * 7  # an array has gcd(PARTS, length of the axis) parts

PIECE = 64 << 20  # bytes that a thread has of an accelerator's array at a time

# Name of a parameter -> dtype -> of the whole, then of each part.
Checksums = Mapping[str, Mapping[str, list[int]]]


def of_params(arrays: Any) -> Checksums:
    """The checksums of a tree of NumPy arrays."""

    def of_array(name: str, array: np.ndarray) -> dict[str, list[int]]:
        parts = _parts(array, split_axis(name, array.shape))
        return {
            kind: [_crc(part.astype(dtype, copy=False)) for part in (array, *parts)]
            for kind, dtype in KINDS.items()
        }

    leaves = _named(arrays)
    with ThreadPoolExecutor(n_threads()) as pool:
        return dict(zip(leaves, pool.map(of_array, leaves, leaves.values()), strict=True))


def damaged(params: Any, checksums: Checksums) -> list[str]:
    """Names of parameters with a shard in this process whose checksum differs.

    Args:
        params: arrays on devices, as they were restored.
        checksums: from `of_params`; a parameter without them, or with another number of them,
            counts as damaged.
    """

    def is_sound(name: str, array: jax.Array) -> bool:
        expected = checksums.get(name, {}).get(array.dtype.name, [])
        axis = split_axis(name, array.shape)
        n_parts = _n_parts(array.shape, axis)
        return len(expected) == 1 + n_parts and all(
            crc == expected[k] for k, crc in _in_this_process(array, axis, n_parts)
        )

    leaves = _named(params)
    with ThreadPoolExecutor(n_threads()) as pool:
        sound = pool.map(is_sound, leaves, leaves.values())
        return [name for name, good in zip(leaves, sound, strict=True) if not good]


def _named(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(keys_of(path)): leaf for path, leaf in leaves}


def _n_parts(shape: tuple[int, ...], axis: int | None) -> int:
    return 0 if axis is None else math.gcd(shape[axis], PARTS)


def _parts(array: np.ndarray, axis: int | None) -> list[np.ndarray]:
    """Equal parts along the axis; none if the array is whole on each device."""
    return [] if axis is None else np.split(array, _n_parts(array.shape, axis), axis)


def _in_this_process(array: jax.Array, axis: int | None, n_parts: int) -> Iterator[tuple[int, int]]:
    """Index among the expected checksums, and checksum, of everything that this process has."""
    shards = {str(shard.index): shard for shard in array.addressable_shards}  # not their copies
    for shard in shards.values():
        if shard.data.shape == array.shape:
            yield 0, _crc_of_array(shard.data)
        elif axis is not None and n_parts and _splits_only(axis, shard.data.shape, array.shape):
            size = array.shape[axis] // n_parts
            begin = shard.index[axis].start or 0
            for k in range(-(-begin // size), (begin + shard.data.shape[axis]) // size):
                yield 1 + k, _crc(_sliced(shard.data, axis, k * size - begin, size))


def _splits_only(axis: int, part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return part[:axis] + part[axis + 1 :] == whole[:axis] + whole[axis + 1 :]


def _crc_of_array(array: jax.Array) -> int:
    n = len(array)
    step = max(1, PIECE * n // max(1, array.nbytes))
    crc = 0
    for begin in range(0, n, step):
        crc = _crc(_sliced(array, 0, begin, min(step, n - begin)), crc)
    return crc


def _sliced(array: jax.Array, axis: int, begin: int, size: int) -> np.ndarray:
    """On the host. JAX caches the host copy of a whole device array, so slice it."""
    if _is_on_host(array):
        whole = np.moveaxis(np.asarray(array), axis, 0)  # the same memory
        return np.moveaxis(whole[begin : begin + size], 0, axis)
    return np.asarray(jax.lax.dynamic_slice_in_dim(array, begin, size, axis))


def _is_on_host(array: jax.Array) -> bool:
    return next(iter(array.devices())).platform == "cpu"


def _crc(array: np.ndarray, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before)
