"""Integers packed into 32-bit words, with a scale and often a zero point per group.

The lowest bit of element k of a row is bit `k * bits` of the row's words, counted from the lowest
bit of the first word: an element of 3 bits may span two words.

    weight[i, o] = (values[i, o] - zeros[g, o]) * scales[g, o]        g = groups[i]
"""

import math

import numpy as np

ROWS = 256  # input channels whose scales are gathered at a time, if groups are mixed


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """uint8 [..., count] of int32 words [..., ceil(count * bits / 32)], along the last axis.

    Args:
        bits: 1 to 8.
    """
    octets = _octets(words).reshape(*words.shape[:-1], -1)
    n_bytes, n_elements = _run(bits)
    n_runs = math.ceil(count / n_elements)
    missing = n_runs * n_bytes - octets.shape[-1]
    if missing > 0:
        octets = np.pad(octets, [(0, 0)] * (octets.ndim - 1) + [(0, missing)])
    runs = octets[..., : n_runs * n_bytes].reshape(*words.shape[:-1], n_runs, n_bytes)
    out = np.empty((*words.shape[:-1], n_runs, n_elements), np.uint8)
    _unpack(np.moveaxis(runs, -1, 0), np.moveaxis(out, -1, 0), bits)
    return out.reshape(*words.shape[:-1], n_runs * n_elements)[..., :count]


def unpacked_rows(words: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [n * 32 / bits, columns] of int32 words [n, columns], along the first axis.

    Args:
        bits: 1 to 8; n words must hold a whole number of elements.
    """
    n_words, columns = words.shape
    n_bytes, n_elements = _run(bits)
    # One row per byte, so that the inner loop runs over contiguous memory.
    octets = np.ascontiguousarray(np.moveaxis(_octets(words), -1, 1))
    runs = octets.reshape(n_words * 4 // n_bytes, n_bytes, columns)
    out = np.empty((len(runs), n_elements, columns), np.uint8)
    _unpack(np.moveaxis(runs, 1, 0), np.moveaxis(out, 1, 0), bits)
    return out.reshape(-1, columns)


def _octets(words: np.ndarray) -> np.ndarray:
    """Bytes of each word [..., 4], the lowest first."""
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    return little.view(np.uint8).reshape(*words.shape, 4)


def _run(bits: int) -> tuple[int, int]:
    """Smallest number of bytes with a whole number of elements, and that number of elements."""
    shared = math.gcd(bits, 8)
    return bits // shared, 8 // shared


def _unpack(runs: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Unpack runs [bytes, ...] into elements [elements, ...]."""
    mask = np.uint8((1 << bits) - 1)
    for k in range(len(out)):
        at, low = divmod(k * bits, 8)
        value = runs[at] >> np.uint8(low)
        if low + bits > 8:
            value |= runs[at + 1] << np.uint8(8 - low)
        np.bitwise_and(value, mask, out=out[k])


def scaled(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Weights, float32 [in, out], in the memory order of the values.

    Args:
        values: integers or float32 [in, out]; G divides `in` if `groups` is None.
        scales: float32 [G, out], or [1, 1] for all.
        zeros: integers of the same shape; None is zero.
        groups: [in], the group of each input channel; None for consecutive groups of equal size.
    """
    out = values.astype(np.float32)
    zeros = None if zeros is None else zeros.astype(np.float32)
    if groups is None:
        n_in, n_out = out.shape
        view = out.reshape(len(scales), n_in // len(scales), n_out)  # no copy: an axis is split
        if zeros is not None:
            view -= zeros[:, None]
        view *= scales[:, None]
        return out
    for start in range(0, len(out), ROWS):
        rows, group = out[start : start + ROWS], groups[start : start + ROWS]
        if zeros is not None:
            rows -= zeros[group]
        rows *= scales[group]
    return out
