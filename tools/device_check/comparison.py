"""The numbers of two processes against each other. No JAX: this runs where no device is touched."""

from collections.abc import Mapping

import numpy as np

from tools.device_check.verdict import say


def of_devices(want: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> bool:
    """A device's float32 numbers against the CPU's, by decoder, each to 1e-4."""
    verdicts = []
    for name in want:
        worst = float(np.abs(got[name] - want[name]).max())
        verdicts.append(say(worst < 1e-4, f"random decoder against the CPU, {name}: {worst:.1e}"))
    return all(verdicts)


def of_processes(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """The bits of two processes, uint32, by what was computed how."""
    verdicts = [
        say(
            np.array_equal(first[name], second[name]),
            f"{name}: {moved(first[name], second[name])} in a second process",
        )
        for name in first
    ]
    return all(verdicts)


def moved(want: np.ndarray, got: np.ndarray) -> str:
    """How many float32 numbers, given as uint32, have other bits, and how far they are off."""
    other = want != got
    if not other.any():
        return f"the same bits in {want.size} numbers"
    far = np.abs(want.view(np.float32) - got.view(np.float32)).max()
    return f"other bits in {int(other.sum())} of {want.size} numbers, by {far:.1e} at most,"
