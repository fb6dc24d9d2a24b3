"""`devices`: the same requests on several forced host devices, compared bit for bit."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks import random_llama

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS, SMALL_WORKLOADS = ["answers", "prompt", "paths", "plain"], ["paths"]


def run(counts: list[int], *, small: bool) -> bool:
    """Print a line for each number of devices; return whether all have the same bits."""
    shape = random_llama.TINY if small else random_llama.REALISTIC
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_llama.write(folder, shape)
        print(f"\ndevices: {shape.parameters / 1e6:.1f} million parameters, float32", flush=True)
        print(f"  {'':12}{'given tok/s':>12}{'unique tok/s':>14}  bits", flush=True)
        want: dict[str, np.ndarray] | None = None
        good = True
        for n in counts:
            facts, actual = scored(folder, n, SMALL_WORKLOADS if small else WORKLOADS)
            want = actual if want is None else want
            other = different(want, actual)
            good &= not other
            bits = "the same" if not other else f"DIFFERENT in {other} of {n_numbers(want)} numbers"
            print(
                f"  data={n:<7}{facts['given'] / facts['seconds']:12.0f}"
                f"{facts['unique'] / facts['seconds']:14.0f}  {bits}",
                flush=True,
            )
    return good


def scored(folder: Path, n: int, names: list[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Time and scores of a process with n devices, see `on_devices`."""
    forced = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": forced.strip()}
    out = folder / f"{n}.npz"
    command = [sys.executable, "-m", "tools.benchmarks.on_devices"]
    command += [str(folder), str(n), str(out), *names]
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=True
    )
    with np.load(out) as columns:
        return json.loads(ran.stdout), dict(columns)


def different(want: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> int:
    """Count the numbers with other bits; all of them if their count differs."""
    if {name: a.shape for name, a in want.items()} != {name: a.shape for name, a in actual.items()}:
        return n_numbers(want)
    return sum(int((_bits(want[name]) != _bits(actual[name])).sum()) for name in want)


def n_numbers(columns: dict[str, np.ndarray]) -> int:
    return sum(column.size for column in columns.values())


def _bits(column: np.ndarray) -> np.ndarray:
    """View numbers as integers, so that a NaN equals itself and 0 differs from -0."""
    return column.view(np.uint32) if column.dtype == np.float32 else column
