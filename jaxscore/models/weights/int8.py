"""Weights as int8 with a scale for each output channel, symmetric, rounded to nearest.

weight[o, i]  ~  values[o, i] * scale[o]        scale[o] = max_i |weight[o, i]| / 127
"""

import numpy as np

LARGEST = 127


def channel_scale(weight: np.ndarray) -> np.ndarray:
    """float32 [out] of a weight [out, in]; 1 where a channel is all zeros."""
    largest = np.abs(weight.astype(np.float32)).max(axis=-1)
    return np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1)).astype(np.float32)


def values(weight: np.ndarray) -> np.ndarray:
    """int8 [out, in] of a weight [out, in].

    Raises:
        ValueError: a weight is not finite, which no integer says.
    """
    weight = weight.astype(np.float32)
    if not np.isfinite(weight).all():
        raise ValueError("a weight is not finite, so it cannot be stored as int8")
    rounded = np.rint(weight / channel_scale(weight)[:, None])
    return np.clip(rounded, -LARGEST, LARGEST).astype(np.int8)
