"""Device arrays from views of mapped files, read in parallel; each byte is copied once.

A parameter is stacked from many tensors (one per layer), so a pool of threads fills its buffer
piece by piece; NumPy copies and casts without the GIL. Row-wise values are computed a few rows at a
time, so that they fit into a core's cache. While one parameter is copied to the device, the next
one is filled. On an accelerator the host holds at most two parameters in addition to the mapped
pages. On the CPU the device array is the buffer itself.
"""

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Sharding

ALIGNMENT = 64  # bytes; JAX uses an aligned buffer as a CPU device array without a copy
PIECE = 16 << 20  # bytes of a buffer that one thread fills at a time
STORED = 1 << 17  # bytes of rows from which values are computed at a time; tuned
TILE = (2048, 128, 16)  # rows, columns, and columns per strip, of a transposed copy; tuned
MAX_THREADS = 16  # more threads do not increase the bandwidth

Bounds = tuple[tuple[int, int], ...]  # (start, stop) on each axis


@dataclasses.dataclass(frozen=True)
class RowWise:
    """Values whose rows are each computed from one stored row.

    Attributes:
        rows: the stored rows, [R, ...].
        compute: a function from stored rows to their values.
    """

    rows: np.ndarray
    compute: Callable[[np.ndarray], np.ndarray]


Read = Callable[[], np.ndarray | RowWise]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter to read, with the functions that read its tensors.

    Attributes:
        shape: the parameter's shape.
        dtype: the dtype to which values are rounded.
        kept: the dtype of the array, of the same width; see `device.dots.storage_dtype`.
        n_leading: the number of axes along which tensors are stacked (layers, experts).
        reads: a function per index along these axes, in C order. It returns a view
            [shape[n_leading:]], or rows from which it is computed.
        computed: if True, a few rows cost as much as a whole tensor, so tensors are not divided.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    kept: np.dtype
    n_leading: int
    reads: Sequence[Read]
    computed: bool = False


@dataclasses.dataclass(frozen=True)
class _Filling:
    """A parameter whose buffers are being filled.

    Attributes:
        buffers: a buffer of `leaf.dtype` for each distinct shard on this host.
        pieces: the copies that fill the buffers.
    """

    leaf: Leaf
    sharding: Sharding
    buffers: dict[Bounds, np.ndarray]
    pieces: list[Future[None]]

    def place(self) -> jax.Array:
        """Wait for the copies and put the buffers on the devices."""
        for piece in self.pieces:
            piece.result()
        shape = self.leaf.shape
        return jax.make_array_from_callback(
            shape,
            self.sharding,
            lambda index: self.buffers[_bounds(index, shape)].view(self.leaf.kept),
        ).block_until_ready()


def device_arrays(leaves: Iterable[tuple[Leaf, Sharding]]) -> Iterator[jax.Array]:
    """Read each parameter to its devices, in order."""
    pool = ThreadPoolExecutor(n_threads(), thread_name_prefix="load")
    try:
        started: collections.deque[_Filling] = collections.deque()
        for leaf, sharding in leaves:
            started.append(_start(pool, leaf, sharding))
            if len(started) > 1:
                yield started.popleft().place()
        while started:
            yield started.popleft().place()
    finally:
        pool.shutdown(cancel_futures=True)


def n_threads() -> int:
    """Return the number of reading threads: one per core that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    n_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(n_cores, MAX_THREADS)


def _start(pool: ThreadPoolExecutor, leaf: Leaf, sharding: Sharding) -> _Filling:
    """Allocate a parameter's buffers and submit the copies that fill them."""
    buffers: dict[Bounds, np.ndarray] = {}
    for index in sharding.addressable_devices_indices_map(leaf.shape).values():
        bounds = _bounds(index, leaf.shape)
        if bounds not in buffers:
            buffers[bounds] = _aligned([stop - start for start, stop in bounds], leaf.dtype)
    leading, tensor_shape = leaf.shape[: leaf.n_leading], leaf.shape[leaf.n_leading :]
    positions = itertools.product(*map(range, leading))
    needed = [
        (position, read)
        for position, read in zip(positions, leaf.reads, strict=True)
        if any(_contains(bounds, position) for bounds in buffers)
    ]
    n_rows, size = tensor_shape[0], math.prod(tensor_shape) * leaf.dtype.itemsize
    step = n_rows if leaf.computed else max(1, PIECE * n_rows // max(1, size))
    # Small tensors share a piece, since each piece has an overhead of about 50 us.
    per_piece = 1 if leaf.computed else max(1, PIECE // max(1, size))
    pieces = [
        pool.submit(_fill, leaf, buffers, needed[k : k + per_piece], start, start + step)
        for k in range(0, len(needed), per_piece)
        for start in range(0, n_rows, step)
    ]
    return _Filling(leaf, sharding, buffers, pieces)


def _fill(
    leaf: Leaf,
    buffers: dict[Bounds, np.ndarray],
    tensors: Sequence[tuple[tuple[int, ...], Read]],
    start: int,
    stop: int,
) -> None:
    """Copy rows [start, stop) of some tensors into every shard that contains any of them."""
    for position, read in tensors:
        view = read()
        for bounds, buffer in buffers.items():
            if not _contains(bounds, position):
                continue
            corner = tuple(at - low for at, (low, _) in zip(position, bounds, strict=False))
            (low, high), *others = bounds[leaf.n_leading :]
            first, last = max(start, low), min(stop, high)
            if first < last:
                target = buffer[corner][first - low : last - low]
                columns = tuple(slice(*pair) for pair in others)
                if isinstance(view, RowWise):
                    write_rows(view.rows[first:last], view.compute, target, columns)
                else:
                    _copy(view[(slice(first, last), *columns)], target)


def write_rows(
    rows: np.ndarray,
    compute: Callable[[np.ndarray], np.ndarray],
    target: np.ndarray,
    columns: tuple[slice, ...] = (),
) -> None:
    """Compute values from stored rows and cast them into `target`, a few rows at a time.

    Args:
        compute: a function from stored rows to their values.
        columns: the columns of the values to write to `target`.
    """
    step = max(1, STORED * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows), step):
        values = compute(rows[start : start + step])
        target[start : start + step] = values[(slice(None), *columns)]


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy and cast.

    A transposed source is first copied to C order, one tile at a time, in strips and without a
    cast. NumPy's order takes ten times as long, and its cast of bfloat16 is fast only along rows.
    """
    if source.ndim != 2 or abs(source.strides[0]) >= abs(source.strides[1]):
        target[...] = source
        return
    same = source.dtype == target.dtype
    bits = np.dtype(f"u{source.dtype.itemsize}")
    rows, columns, strip = TILE
    for i, j in itertools.product(
        range(0, source.shape[0], rows), range(0, source.shape[1], columns)
    ):
        tile = source[i : i + rows, j : j + columns]
        out = target[i : i + rows, j : j + columns]
        straight = out if same else np.empty(tile.shape, source.dtype)
        for k in range(0, columns, strip):
            straight.view(bits)[:, k : k + strip] = tile.view(bits)[:, k : k + strip]
        if not same:
            out[...] = straight


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Allocate an uninitialised array that JAX can use without a copy."""
    n_bytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


def _bounds(index: tuple[slice, ...] | None, shape: Sequence[int]) -> Bounds:
    assert index is not None  # every axis of a parameter has a slice
    ranges = (axis.indices(size) for axis, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in ranges)


def _contains(bounds: Bounds, position: tuple[int, ...]) -> bool:
    return all(low <= at < high for at, (low, high) in zip(position, bounds, strict=False))
