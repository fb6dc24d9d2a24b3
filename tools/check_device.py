"""Check that jaxscore is right and fast on this machine's accelerator. PyTorch is not required.

    python tools/check_device.py                  the best device there is, in eight minutes
    python tools/check_device.py --device gpu     exit code 2 if there is none
    python tools/check_device.py --only speed     some sections, with all the time
    python tools/check_device.py --small          narrow shapes, to see that the check itself works

In this order:

    values      every token of the expected values in tests/cases, in float32 to 1e-4; requests
                together and alone; with prefixes and without; each token of greedy text must be
                the most probable one when it is scored
    kernels     attention and experts by this platform's kernels against the same in XLA's
                operations: numbers and time, at the shapes of several models
    families    random decoders of several families (experts, a latent, ALiBi, soft caps, sinks,
                gated delta rule, int8) in float32 against the CPU of this machine, to 1e-4
    speed       tokens a second and MFU in bfloat16 at the shapes of dense models, of Qwen3.5
                (recurrent layers and attention) and of a mixture, with random weights; many
                continuations of one prompt against texts that share nothing
    torch       scores against PyTorch (transformers, sdpa) to 1e-4, and its speed, where installed
    bits        with --reproducible the same bits alone, beside others, in another order, in a
                second process and on more devices; without it in another order and process;
                generation that resumes has the same bits
    vocabulary  the fused LM head against full logits: numbers, time and memory
    memory      a batch far too large for the device is halved, and scoring goes on

Each line is PASS, FAIL, SKIPPED with the reason, or NOTE. Times are medians of several warm calls,
each of which waits for its result. The tables at the end are Markdown. --output has every line as
soon as it is printed, and the tables. Each section has its share of the time that is left; what no
longer fits is SKIPPED.

Exit code: 0 nothing failed, 1 something failed or nothing passed, 2 wrong usage or no such device.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script Python finds this folder and not the repository

from tools.device_check.checks import FAIL, PASS, RECORD, SKIPPED

NAME = "check_device.md"  # in a folder
MOST_MINUTES = 24 * 60
ABOUT_SECONDS = 120  # to find the device
LEAST_SECONDS = 15  # below which no section starts
MARGIN_SECONDS = 5  # between the last check that starts and the end
GRACE_SECONDS = 60  # for the check in progress when the time of a section is over
PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends
TAIL_LINES = 40  # of what a process printed before it crashed
UNCACHED = {"JAXSCORE_CACHE": "off", "JAX_ENABLE_COMPILATION_CACHE": "false"}


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the check.

    Attributes:
        group: the name for `--only`.
        subject: the kernels or the model; empty for a group of one section.
        weight: its share of the time, relative to the other sections.
        steps: processes that run one after the other, see `tools/device_check/child.py`.
        variables: environment variables of these processes.
    """

    group: str
    subject: str
    weight: int
    steps: tuple[str, ...]
    variables: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.group}: {self.subject}" if self.subject else self.group


SECTIONS = (
    Section("values", "", 6, ("values",)),
    Section("kernels", "attention", 5, ("kernels",)),
    Section("kernels", "experts", 2, ("kernels",)),
    Section("families", "", 5, ("families",)),
    Section("speed", "Qwen2.5-0.5B", 3, ("speed",)),
    Section("speed", "Qwen3.5-4B", 3, ("speed",)),
    Section("speed", "Qwen3-30B-A3B", 3, ("speed",)),
    Section("speed", "shared prompt", 3, ("speed",)),
    Section("torch", "", 3, ("torch", "torch-jaxscore")),
    Section("kernels", "replacement", 2, ("kernels",)),
    Section("bits", "", 4, ("bits", "bits-again"), UNCACHED),
    Section("vocabulary", "", 2, ("vocabulary",)),
    Section("memory", "", 1, ("memory",)),
    Section("speed", "Qwen2.5-7B", 1, ("speed",)),
    Section("speed", "Qwen2.5-1.5B", 1, ("speed",)),
)
GROUPS = tuple(dict.fromkeys(section.group for section in SECTIONS))
SPEEDS = {  # heading -> figure of a row of the table of speeds, and its format
    "tokens/s": ("tokens_per_s", "{:,.0f}"),
    "MFU": ("MFU", "{:.1%}"),
    "device alone, tokens/s": ("program_tokens_per_s", "{:,.0f}"),
    "its MFU": ("program_MFU", "{:.1%}"),
    "MFU of the layers": ("layers_MFU", "{:.1%}"),
}


class Check:
    """A run of the check: starts processes, and prints and writes what they record."""

    def __init__(self, flags: list[str], ends: float, file: TextIO | None) -> None:
        """Prepare a check.

        Args:
            flags: flags of all processes.
            ends: time of `time.monotonic()` by which all must have ended.
            file: file for every printed line.
        """
        self.flags, self.ends, self.file = flags, ends, file
        self.records: list[dict[str, Any]] = []  # of the current section

    def print(self, text: str) -> None:
        """Print a line and write it to the file, at once: rented machines may be cut off."""
        print(text, flush=True)
        if self.file is not None:
            print(text, file=self.file, flush=True)

    def add(self, verdict: str, text: str, figures: dict[str, Any] | None = None) -> None:
        """Add a record to the current section and print it."""
        self.records.append({"verdict": verdict, "text": text, "figures": figures or {}})
        self.print(f"{verdict:8}{text}")

    def run(
        self, step: str, seconds: float, subject: str, folder: str, variables: dict[str, str]
    ) -> int:
        """Run a step in a separate process, add its records, and return its exit code.

        Args:
            seconds: time after which it starts no further check; it is killed GRACE_SECONDS later,
                or when all must have ended.
        """
        command = [sys.executable, "-m", "tools.device_check.child", step, *self.flags]
        command += ["--seconds", f"{seconds:.0f}", "--part", subject, "--folder", folder]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        limit = max(1.0, min(seconds + GRACE_SECONDS, self.ends - time.monotonic()))
        late = threading.Event()
        with (
            tempfile.TemporaryFile("w+", errors="replace") as log,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                start_new_session=True,  # so that its own processes are killed with it
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            ) as process,
        ):

            def kill() -> None:
                late.set()
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)

            timer = threading.Timer(limit, kill)
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(RECORD):
                        self.add(**json.loads(line.removeprefix(RECORD)))
                code = process.wait()
            finally:  # also after Ctrl-C, which processes of another session do not get
                timer.cancel()
                if process.poll() is None:
                    kill()
            log.seek(0)
            tail = log.read().splitlines()[-TAIL_LINES:]
        if late.is_set():
            # A section that is cut short as the time of all is over has not failed. One that is
            # still running GRACE_SECONDS after its own share has.
            is_over = time.monotonic() >= self.ends
            verdict = SKIPPED if is_over else FAIL
            self.add(verdict, f"{step}: ended after {limit:.0f} s; the rest has not run")
        elif code == 2 and step == "about":
            print(*tail[-1:], file=sys.stderr)  # JAX may have warned before
        elif code:
            self.add(FAIL, f"{step}: its process ended with exit code {code}:\n" + "\n".join(tail))
        return code

    def section(self, section: Section, seconds: float, subject: str) -> list[dict[str, Any]]:
        """Run a section and return its records."""
        self.records = []
        self.print(f"\n{section.name}\n")
        if seconds < LEAST_SECONDS:
            self.add(SKIPPED, f"no time left: {seconds:.0f} s")
            return self.records
        with tempfile.TemporaryDirectory() as folder:
            for number, step in enumerate(section.steps):
                share = seconds / (len(section.steps) - number)
                started = time.monotonic()
                if self.run(step, share, subject, folder, section.variables) != 0:
                    break
                seconds -= time.monotonic() - started
        return self.records


def _end_with_parent() -> None:
    """Have this new process killed when the check is, so that it does not keep the device."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    started = time.monotonic()
    flags = (["--device", args.device] if args.device else []) + ["--small"] * args.small
    file = open_output(args.output)
    check = Check(flags, started + 60 * args.minutes, file)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if code := check.run("about", ABOUT_SECONDS, "", folder, {}):
                return 2 if code == 2 else 1
        [about] = [entry for entry in check.records if entry["figures"]]
        lines = [f"`{shlex.join(['python', 'tools/check_device.py', *sys.argv[1:]])}`", ""]
        lines += [f"- {entry['text']}" for entry in check.records]
        todo = [section for section in SECTIONS if section.group in (args.only or GROUPS)]
        results: list[tuple[Section, float, list[dict[str, Any]]]] = []
        for number, section in enumerate(todo):
            began = time.monotonic()
            left = check.ends - began
            weights = sum(later.weight for later in todo[number:])
            # At least what a first compilation takes: a later section is skipped rather.
            share = max(left * section.weight / weights, 2 * LEAST_SECONDS)
            seconds = min(left - MARGIN_SECONDS, share)
            is_torch = section.group == "torch"
            subject = about["figures"]["platform"] if is_torch else section.subject
            records = check.section(section, seconds, subject)
            results.append((section, time.monotonic() - began, records))
        verdicts = [verdict_of(records) for _, _, records in results]
        check.print("\n".join(["", *lines, "", *tables(results)]))
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (PASS, FAIL, SKIPPED))
        minutes = (time.monotonic() - started) / 60
        check.print(f"\n{counts} of {len(verdicts)} sections in {minutes:.1f} minutes")
        return 1 if FAIL in verdicts or PASS not in verdicts else 0
    finally:
        if file is not None:
            file.close()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu", "cuda", "tpu"))
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="SECTION")
    parser.add_argument("--small", action="store_true", help="narrow shapes everywhere")
    parser.add_argument("--minutes", type=float, default=8.0, help="most time (default 8)")
    parser.add_argument("--output", metavar="FILE", help=f"file, or a folder/ for {NAME}")
    args = parser.parse_args(arguments)
    if not 0 < args.minutes <= MOST_MINUTES:
        expected = f"more than 0 and at most {MOST_MINUTES}"
        parser.error(f"--minutes {args.minutes:g}: expected {expected}")
    return args


def open_output(output: str | None) -> TextIO | None:
    """Open the file of --output.

    Args:
        output: a file, or a folder, which is created if its name ends in a slash.

    Raises:
        SystemExit: it cannot be written.
    """
    if output is None:
        return None
    path = Path(output)
    try:
        if output.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        path = path / NAME if path.is_dir() else path
        return path.open("w", encoding="utf-8")
    except OSError as problem:
        print(f"--output {output}: {problem.strerror}", file=sys.stderr)
        raise SystemExit(2) from None


def verdict_of(records: list[dict[str, Any]]) -> str:
    """Return FAIL after any FAIL, PASS if something passed, otherwise SKIPPED."""
    verdicts = [entry["verdict"] for entry in records]
    return next((verdict for verdict in (FAIL, PASS) if verdict in verdicts), SKIPPED)


def tables(results: list[tuple[Section, float, list[dict[str, Any]]]]) -> list[str]:
    """Return the lines of the tables of sections and of speeds."""
    lines = ["| section | result | passed | failed | skipped | seconds | first reason |"]
    lines += ["|---|---|---|---|---|---|---|"]
    speeds = []
    for section, seconds, records in results:
        verdicts = [entry["verdict"] for entry in records]
        counts = [str(verdicts.count(verdict)) for verdict in (PASS, FAIL, SKIPPED)]
        reasons = [e["text"] for v in (FAIL, SKIPPED) for e in records if e["verdict"] == v]
        reason = reasons[0].splitlines()[0].replace("|", "\\|") if reasons else ""
        cells = [section.name, verdict_of(records), *counts, f"{seconds:.0f}", reason]
        lines.append(f"| {' | '.join(cells)} |")
        speeds += [entry["figures"] for entry in records if "tokens_per_s" in entry["figures"]]
    if speeds:
        headings = ["bfloat16", "batch", *SPEEDS]
        lines += ["", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
        for row in speeds:
            cells = [
                "" if row.get(name) is None else form.format(row[name])
                for name, form in SPEEDS.values()
            ]
            lines.append(f"| {' | '.join([row['model'], row['batch'], *cells])} |")
    return lines


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the section's processes, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
