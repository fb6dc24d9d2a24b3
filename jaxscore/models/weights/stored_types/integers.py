"""Integers with a scale, and often a zero point, for each group of input channels.

weight[i, o] = (values[i, o] - zeros[g, o]) * scales[g, o]        g = groups[i]
"""

import numpy as np

ROWS = 256  # input channels whose scales are laid out at a time, where groups are mixed


def scaled(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """float32 [in, out], in the order in memory that the values have.

    Args:
        values: integers or float32 [in, out]; G divides `in` where `groups` is None.
        scales: float32 [G, out], or [1, 1] for all.
        zeros: integers, shaped alike; None is zero.
        groups: [in], the group of each input channel; None is as many neighbours for each.
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
        rows, own = out[start : start + ROWS], groups[start : start + ROWS]
        if zeros is not None:
            rows -= zeros[own]
        rows *= scales[own]
    return out
