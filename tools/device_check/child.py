"""One step of a section in a separate process: `python -m tools.device_check.child STEP`.

A process keeps most of an accelerator's memory, some accelerators serve one process only, and a
fault of one section must not end the others. So `tools/check_device.py` itself never touches the
device.

Exit code: 0, or 2 if there is no such device; the records on stdout have the verdicts.
"""

import argparse
import importlib.metadata
import importlib.util
import platform
import sys
import time
from pathlib import Path

import jax

from jaxscore import InputError
from jaxscore.engine import set_gpu_memory
from jaxscore.engine.devices import limit_bytes, use_compilation_cache, use_device
from jaxscore.errors import format_bytes
from jaxscore.version import VERSION
from tools.device_check import (
    against_torch,
    bits,
    families,
    kernels,
    memory,
    speed,
    timing,
    values,
    vocabulary,
)
from tools.device_check.checks import NOTE, Options, guarded, record

PACKAGES = ("jax", "jaxlib", "flax", "transformers", "numpy", "torch")


def about(options: Options) -> None:
    """Record the device and the versions."""
    device_kind, limit = jax.devices()[0].device_kind, limit_bytes()
    memory = "an unknown amount of memory" if limit is None else f"{format_bytes(limit)} of memory"
    peak = timing.datasheet_peak(device_kind)
    peak_text = "unknown, so no MFU" if peak is None else f"{peak / 1e12:.0f} TFLOP/s"
    text = f"{jax.device_count()} x {device_kind}, {memory}, dense bfloat16 peak {peak_text}"
    record(NOTE, f"device: {text}", platform=jax.default_backend())
    versions = [f"jaxscore {VERSION}", f"Python {platform.python_version()}"]
    for package in PACKAGES:
        if importlib.util.find_spec(package) is not None:
            versions.append(f"{package} {importlib.metadata.version(package)}")
    record(NOTE, f"versions: {', '.join(versions)}; {jax.devices()[0].client.platform_version}")


RUN = {
    "about": about,
    "values": values.run,
    "families": families.run,
    "families-cpu": families.on_cpu,
    "kernels": kernels.run,
    "vocabulary": vocabulary.run,
    "bits": bits.run,
    "bits-again": bits.again,
    "memory": memory.run,
    "speed": speed.run,
    "torch": against_torch.run_torch,
    "torch-jaxscore": against_torch.run_jaxscore,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=RUN)
    parser.add_argument("--device")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--part", default="")
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args(arguments)
    ends = time.monotonic() + args.seconds
    if args.step != "torch":  # PyTorch needs the memory that JAX would take
        set_gpu_memory()
        try:
            use_device(args.device)
        except InputError as problem:
            print(problem, file=sys.stderr)
            return 2
        use_compilation_cache()
    options = Options(args.small, ends, args.part, args.folder)
    guarded(args.step, RUN[args.step], options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
