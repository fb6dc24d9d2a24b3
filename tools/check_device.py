"""Is jaxscore right and fast on this machine's accelerator? One call, no PyTorch needed.

    python tools/check_device.py                  the best device there is, under ten minutes
    python tools/check_device.py --device gpu     exit code 2 if there is none
    python tools/check_device.py --only speed     some sections, with all the time
    python tools/check_device.py --small          tiny shapes, to see that the check itself works

    values      every token of the expected values in tests/cases, in float32 to 1e-4; requests
                together and alone; with prefixes and without; each token of greedy text must be
                the most probable one when it is scored
    families    what only some families have (experts, ALiBi, soft caps, norms of queries and
                keys, int8), and wide layers: random decoders in float32 against the same on the
                CPU of this machine, to 1e-4
    kernels     attention and experts by this platform's kernels against the same in XLA's
                operations: numbers and time, at the shapes of several models
    vocabulary  the fused LM head against full logits: numbers, time and memory
    bits        with --reproducible the same bits alone, beside others, in another order, in a
                second process and on more devices; without it in another order and process;
                generation that resumes has the same bits
    memory      a batch far too large for the device is halved, and scoring goes on
    speed       tokens a second and MFU in bfloat16 at the shapes of Qwen2.5 0.5B, 1.5B and 7B,
                random weights; FLOPs are the useful ones, of the datasheet's peak and of a large
                product's

Each line is PASS, FAIL or NOTE. Exit code 1 after a FAIL.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tools.device_check.checks import compare_devices, compare_processes, report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script Python finds this folder and not the repository


SECONDS = {  # time limit of a section; `speed` takes what is left
    "values": 180,
    "families": 150,
    "kernels": 120,
    "vocabulary": 90,
    "bits": 150,
    "memory": 90,
    "speed": 600,
}
ABOUT_SECONDS = 120  # to find the device
UNCACHED = {"JAXSCORE_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}


class Machine(NamedTuple):
    """Runs sections: their common flags, and the time by which all must have ended."""

    flags: list[str]
    ends: float

    def start(
        self, section: str, *flags: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the process of a section; a repeated flag overrides the first."""
        command = [sys.executable, "-m", "tools.device_check.child", section]
        return subprocess.Popen(
            [*command, *self.flags, *flags], cwd=ROOT, env=os.environ | (environment or {})
        )

    def code(self, running: subprocess.Popen[bytes], seconds: float) -> int:
        """Wait for its exit code; -1 if it took too long and was killed."""
        try:
            return running.wait(max(1.0, min(seconds, self.left)))
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return -1

    @property
    def left(self) -> float:
        """Seconds until all must have ended."""
        return self.ends - time.monotonic()


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    flags = ["--seconds", str(60 * args.minutes)]
    flags += ["--batch-tokens", *map(str, args.batch_tokens)]
    flags += ["--device", args.device] if args.device else []
    flags += ["--small"] if args.small else []
    started = time.monotonic()
    machine = Machine(flags, started + 60 * args.minutes)
    if code := machine.code(machine.start("about"), ABOUT_SECONDS):
        return 2 if code == 2 else 1
    wrong = []
    for section in [name for name in SECONDS if name in (args.only or SECONDS)]:
        print(f"\n{section}", flush=True)
        began = time.monotonic()
        good = machine.left > 0 and check(section, machine)
        if not good:
            wrong.append(section)
        report(good, f"{section} in {time.monotonic() - began:.0f} s")
    print()
    seconds = f"in {time.monotonic() - started:.0f} s"
    report(not wrong, f"{', '.join(wrong)} {seconds}" if wrong else f"all sections {seconds}")
    return 1 if wrong else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu", "cuda", "tpu"))
    parser.add_argument("--only", nargs="+", choices=SECONDS, metavar="SECTION")
    parser.add_argument("--small", action="store_true", help="two narrow layers everywhere")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        nargs="+",
        default=[4096, 16384, 32768],
        metavar="N",
        help="sizes of batches for `speed` (default 4096 16384 32768)",
    )
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="after which it ends (default 9.5)"
    )
    return parser.parse_args(arguments)


def check(section: str, machine: Machine) -> bool:
    """Run a section and return whether it passed."""
    with tempfile.TemporaryDirectory() as name:
        outs = Path(name, "first.npz"), Path(name, "second.npz")
        if section == "families":
            here = machine.start(section, "--out", str(outs[1]))
            on_cpu = ("--device", "cpu", "--out", str(outs[0]))
            there = machine.start(section, *on_cpu, environment={"JAX_PLATFORMS": "cpu"})
            codes = [machine.code(one, SECONDS[section]) for one in (here, there)]
            return _ended(section, codes) and compare_devices(*_read(outs))
        if section == "bits":
            codes = [
                machine.code(
                    machine.start(part, "--out", str(out), environment=UNCACHED), SECONDS[section]
                )
                for part, out in zip(("bits", "bits-again"), outs, strict=True)
            ]
            good = _ended(section, codes)
            return all(out.exists() for out in outs) and compare_processes(*_read(outs)) & good
        flags = ("--seconds", f"{machine.left - 20:.0f}")
        return _ended(section, [machine.code(machine.start(section, *flags), SECONDS[section])])


def _ended(section: str, codes: list[int]) -> bool:
    """Report processes that did not end by themselves; return whether all passed."""
    for code in codes:
        if code not in (0, 1):
            why = "took too long and was ended" if code == -1 else f"ended with exit code {code}"
            report(False, f"{section}: its process {why}")
    return not any(codes)


def _read(files: tuple[Path, Path]) -> list[dict[str, np.ndarray]]:
    found = []
    for file in files:
        with np.load(file) as arrays:
            found.append(dict(arrays))
    return found


if __name__ == "__main__":
    sys.exit(main())
