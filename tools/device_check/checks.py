"""Options of a section, its records, and comparisons between two processes.

No JAX: `tools/check_device.py` imports this, and touches no device.
"""

import dataclasses
import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PASS, FAIL, SKIPPED, NOTE = "PASS", "FAIL", "SKIPPED", "NOTE"
RECORD = "@record "  # before each record of a section's process on stdout


@dataclasses.dataclass(frozen=True)
class Options:
    """Options that all sections share.

    Attributes:
        small: use narrow shapes, to test the check itself on any machine.
        ends: time of `time.monotonic()` after which no check starts.
        subject: the model of `speed`, the kernels of `kernels`.
        folder: folder for files that another process reads.
    """

    small: bool = False
    ends: float = float("inf")
    subject: str = ""
    folder: Path = Path()

    def has_time(self, text: str) -> bool:
        """Return True before `ends`; afterwards report that `text` is skipped."""
        if time.monotonic() < self.ends:
            return True
        record(SKIPPED, f"{text}: no time left")
        return False


def record(verdict: str, text: str, **figures: Any) -> None:
    """Print a record for `tools/check_device.py`, as a line of JSON.

    Every line is flushed: calls on rented machines may be cut off.

    Args:
        figures: columns of a row of the table of speeds.
    """
    fields = {"verdict": verdict, "text": text} | ({"figures": figures} if figures else {})
    print(f"{RECORD}{json.dumps(fields)}", flush=True)


def report(passed: bool, text: str, **figures: Any) -> bool:
    """Record PASS or FAIL, see `record`, and return which."""
    record(PASS if passed else FAIL, text, **figures)
    return passed


def guarded(name: str, check: Callable[..., Any], *args: Any) -> None:
    """Run a check; an exception is its FAIL, with the traceback, and the next ones run."""
    try:
        check(*args)
    except Exception as problem:
        error_type = type(problem).__name__
        record(FAIL, f"{name}: {error_type}: {problem}\n{traceback.format_exc()}")


def largest_difference(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the largest absolute difference of all pairs of arrays, NaN if any difference is NaN.

    Python's `max` would drop every NaN but the first number.
    """
    return float(np.max([np.abs(got - expected).max() for got, expected in pairs]))


def compare_devices(expected: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]) -> None:
    """Report a device's float32 numbers against the CPU's, by decoder, each to 1e-4.

    A decoder that the CPU did not score is left out: the CPU's process has recorded the reason.
    """
    for name in [name for name in got if name in expected]:
        worst = largest_difference([(got[name], expected[name])])
        report(worst < 1e-4, f"random decoder against the CPU, {name}: {worst:.1e}")


def compare_processes(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> None:
    """Report whether two processes computed the same bits (uint32), by name.

    A name that `second` lacks is left out: that process has recorded the reason.
    """
    for name in [name for name in first if name in second]:
        report(
            np.array_equal(first[name], second[name]),
            f"{name}: {describe_bits(first[name], second[name])} in a second process",
        )


def describe_bits(expected: np.ndarray, got: np.ndarray) -> str:
    """Describe how many float32 numbers, passed as uint32, have other bits, and by how much."""
    differs = expected != got
    if not differs.any():
        return f"the same bits in {expected.size} numbers"
    largest = np.abs(expected.view(np.float32) - got.view(np.float32)).max()
    return (
        f"other bits in {int(differs.sum())} of {expected.size} numbers, by {largest:.1e} at most,"
    )
