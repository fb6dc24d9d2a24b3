"""Small integers in 32-bit words.

Element k of a row has its lowest bit at bit `k * bits` of the row's words, which follow each other
from the lowest bit up: so 3 bits may lie in two words.
"""

import math

import numpy as np


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
        bits: 1 to 8, which n words hold a whole number of elements of.
    """
    n_words, columns = words.shape
    n_bytes, n_elements = _run(bits)
    # A row for each byte, so that what lies side by side is computed side by side.
    octets = np.ascontiguousarray(np.moveaxis(_octets(words), -1, 1))
    runs = octets.reshape(n_words * 4 // n_bytes, n_bytes, columns)
    out = np.empty((len(runs), n_elements, columns), np.uint8)
    _unpack(np.moveaxis(runs, 1, 0), np.moveaxis(out, 1, 0), bits)
    return out.reshape(-1, columns)


def _octets(words: np.ndarray) -> np.ndarray:
    """[..., 4]: each word's bytes, the lowest first."""
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    return little.view(np.uint8).reshape(*words.shape, 4)


def _run(bits: int) -> tuple[int, int]:
    """The fewest bytes that hold a whole number of elements, and how many these are."""
    shared = math.gcd(bits, 8)
    return bits // shared, 8 // shared


def _unpack(runs: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Each element [elements, ...] of runs [bytes, ...]."""
    mask = np.uint8((1 << bits) - 1)
    for k in range(len(out)):
        at, low = divmod(k * bits, 8)
        value = runs[at] >> np.uint8(low)
        if low + bits > 8:
            value |= runs[at + 1] << np.uint8(8 - low)
        np.bitwise_and(value, mask, out=out[k])
