"""Options of a section, its PASS and FAIL lines, and comparisons between two processes.

No JAX: `tools/check_device.py` imports this, and touches no device.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np


@dataclasses.dataclass(frozen=True)
class Options:
    """Options that all sections share.

    Attributes:
        small: use shapes of two narrow layers, to test the check itself on any machine.
        seconds: no measurement starts after this time.
        batch_tokens: batch sizes to measure.
        out: file for numbers that another process compares.
    """

    small: bool = False
    seconds: float = 300.0
    batch_tokens: tuple[int, ...] = (4096, 16384, 32768)
    out: Path | None = None


def report(passed: bool | None, text: str) -> bool:
    """Print PASS or FAIL, or NOTE for None, and return whether it is no FAIL.

    Every line is flushed: calls on paid machines may be cut off.
    """
    word = "NOTE" if passed is None else "PASS" if passed else "FAIL"
    print(f"{word}  {text}", flush=True)
    return passed is not False


def compare_devices(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> bool:
    """Report a device's float32 numbers against the CPU's, by decoder, each to 1e-4."""
    verdicts = []
    for name in expected:
        worst = float(np.abs(found[name] - expected[name]).max())
        text = f"random decoder against the CPU, {name}: {worst:.1e}"
        verdicts.append(report(worst < 1e-4, text))
    return all(verdicts)


def compare_processes(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Report whether two processes computed the same bits (uint32), by name."""
    verdicts = [
        report(
            np.array_equal(first[name], second[name]),
            f"{name}: {describe_bits(first[name], second[name])} in a second process",
        )
        for name in first
    ]
    return all(verdicts)


def describe_bits(expected: np.ndarray, found: np.ndarray) -> str:
    """How many float32 numbers, passed as uint32, have other bits, and their largest difference."""
    differs = expected != found
    if not differs.any():
        return f"the same bits in {expected.size} numbers"
    largest = np.abs(expected.view(np.float32) - found.view(np.float32)).max()
    return (
        f"other bits in {int(differs.sum())} of {expected.size} numbers, by {largest:.1e} at most,"
    )
