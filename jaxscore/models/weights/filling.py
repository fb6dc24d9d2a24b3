"""Device arrays out of views of mapped files: read in parallel, each byte copied once.

A parameter is stacked from many tensors (one a layer), so its buffer is filled piece by piece
by a pool of threads; NumPy copies and casts without Python's lock. While one parameter goes to
the device the next is filled, and no third is begun: on an accelerator the host holds two
parameters beside the mapped pages. On the CPU the device array is the buffer itself.
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

ALIGNED = 64  # bytes: where a buffer starts that JAX takes for a CPU device array as it is
PIECE = 16 << 20  # bytes of a buffer that one thread fills at a time
TILE = (2048, 128, 16)  # rows, columns and columns at a time of what is transposed: measured
MOST_THREADS = 16  # more of them saturate no memory that we know

Bounds = tuple[tuple[int, int], ...]  # (start, stop) on each axis


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A parameter that is to be read.

    Attributes:
        shape: of the parameter.
        dtype: what its values are rounded to.
        kept: what the array is kept as, of the same width; see `device.dots.storage_dtype`.
        n_leading: axes along which tensors are stacked: layers, experts.
        reads: for each place along these axes, in C order, what gives its view
            [shape[n_leading:]].
        computed: whether `reads` compute what they give, so that a piece is a whole one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    kept: np.dtype
    n_leading: int
    reads: Sequence[Callable[[], np.ndarray]]
    computed: bool = False


def device_arrays(leaves: Iterable[tuple[Leaf, Sharding]]) -> Iterator[jax.Array]:
    """Each parameter on its devices, in order."""
    pool = ThreadPoolExecutor(n_threads(), thread_name_prefix="load")
    try:
        begun: collections.deque[_Begun] = collections.deque()
        for leaf, sharding in leaves:
            begun.append(_begin(pool, leaf, sharding))
            if len(begun) > 1:
                yield _placed(begun.popleft())
        while begun:
            yield _placed(begun.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def n_threads() -> int:
    """Threads that read: one a core that this process may use."""
    ours = hasattr(os, "sched_getaffinity")  # macOS and Windows do not tell
    return min(len(os.sched_getaffinity(0)) if ours else os.cpu_count() or 1, MOST_THREADS)


@dataclasses.dataclass(frozen=True)
class _Begun:
    leaf: Leaf
    sharding: Sharding
    buffers: dict[Bounds, np.ndarray]  # of `leaf.dtype`, one a different shard on this host
    pieces: list[Future[None]]


def _begin(pool: ThreadPoolExecutor, leaf: Leaf, sharding: Sharding) -> _Begun:
    indices = sharding.addressable_devices_indices_map(leaf.shape).values()
    buffers: dict[Bounds, np.ndarray] = {}
    for index in indices:
        bounds = _bounds(index, leaf.shape)
        if bounds not in buffers:
            buffers[bounds] = _aligned([stop - start for start, stop in bounds], leaf.dtype)
    leading, one = leaf.shape[: leaf.n_leading], leaf.shape[leaf.n_leading :]
    places = list(itertools.product(*map(range, leading)))
    wanted = [
        (place, read)
        for place, read in zip(places, leaf.reads, strict=True)
        if any(_within(place, bounds) for bounds in buffers)
    ]
    size = math.prod(one) * leaf.dtype.itemsize
    step = one[0] if leaf.computed else max(1, PIECE * one[0] // max(1, size))
    # Small ones together: a piece costs a thread some 50 us, whatever it holds.
    together = max(1, PIECE // max(1, size)) if not leaf.computed else 1
    pieces = [
        pool.submit(_fill, leaf, buffers, wanted[k : k + together], start, start + step)
        for k in range(0, len(wanted), together)
        for start in range(0, one[0], step)
    ]
    return _Begun(leaf, sharding, buffers, pieces)


def _fill(
    leaf: Leaf,
    buffers: dict[Bounds, np.ndarray],
    wanted: Sequence[tuple[tuple[int, ...], Callable[[], np.ndarray]]],
    start: int,
    stop: int,
) -> None:
    """Rows [start, stop) of some tensors into every shard that holds some of them."""
    for place, read in wanted:
        view = read()
        for bounds, buffer in buffers.items():
            if not _within(place, bounds):
                continue
            corner = tuple(at - low for at, (low, _) in zip(place, bounds, strict=False))
            (low, high), *others = bounds[leaf.n_leading :]
            first, last = max(start, low), min(stop, high)
            if first < last:
                source = view[(slice(first, last), *(slice(*pair) for pair in others))]
                _copy(source, buffer[corner][first - low : last - low])


def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Cast and copy.

    What is transposed becomes straight first, a tile at a time, in strips and without a cast:
    NumPy's own order takes ten times as long, and it casts bfloat16 fast along rows alone.
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
        turned = source[i : i + rows, j : j + columns]
        out = target[i : i + rows, j : j + columns]
        straight = out if same else np.empty(turned.shape, source.dtype)
        for k in range(0, columns, strip):
            straight.view(bits)[:, k : k + strip] = turned.view(bits)[:, k : k + strip]
        if not same:
            out[...] = straight


def _placed(begun: _Begun) -> jax.Array:
    for piece in begun.pieces:
        piece.result()
    leaf = begun.leaf

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        return begun.buffers[_bounds(index, leaf.shape)].view(leaf.kept)

    return jax.make_array_from_callback(leaf.shape, begun.sharding, shard).block_until_ready()


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array that is not filled yet, where JAX need not copy it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNED, np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)


def _bounds(index: tuple[slice, ...] | None, shape: Sequence[int]) -> Bounds:
    assert index is not None  # every axis of a parameter has a slice
    ranges = (part.indices(size) for part, size in zip(index, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in ranges)


def _within(place: tuple[int, ...], bounds: Bounds) -> bool:
    return all(low <= at < high for at, (low, high) in zip(place, bounds, strict=False))
