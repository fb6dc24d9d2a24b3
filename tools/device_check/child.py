"""One section in a process of its own: `python -m tools.device_check.child SECTION`.

A process keeps most of an accelerator's memory, some accelerators serve one process only, and what
brings a section down is not to take the others with it. So `tools/check_device.py` itself never
touches the device.

Exit code: 0 nothing wrong, 1 something wrong, 2 no such device.
"""

import argparse
import sys
from pathlib import Path

import jax

from jaxscore import InputError
from jaxscore.engine.devices import use_device
from jaxscore.errors import format_bytes
from tools.device_check import (
    bits,
    families,
    kernels,
    memory,
    random_model,
    speed,
    values,
    vocabulary,
)
from tools.device_check.checks import Options, report


def about(options: Options) -> bool:
    """What there is to check."""
    device, limit = jax.devices()[0], random_model.memory_limit()
    room = "a memory that it does not tell" if limit is None else f"{format_bytes(limit)} to use"
    return report(
        None, f"jax {jax.__version__}, {jax.device_count()} of {device.device_kind} with {room}"
    )


RUN = {
    "about": about,
    "values": values.run,
    "families": families.run,
    "kernels": kernels.run,
    "vocabulary": vocabulary.run,
    "bits": bits.run,
    "bits-again": bits.again,
    "memory": memory.run,
    "speed": speed.run,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("section", choices=RUN)
    parser.add_argument("--device")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch-tokens", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    try:
        use_device(args.device)
    except InputError as problem:
        print(problem, file=sys.stderr)
        return 2
    options = Options(args.small, args.seconds, tuple(args.batch_tokens), args.out)
    return 0 if RUN[args.section](options) else 1


if __name__ == "__main__":
    sys.exit(main())
