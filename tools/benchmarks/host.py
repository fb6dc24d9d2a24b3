"""`host`: how many tokens the host can feed to a fast device, and how long the device waits."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tools.benchmarks import random_llama, stream

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 100  # of each request
RATE = 400_000.0  # tokens per second of the device
ENDLESS = 1e12  # of one that answers at once


class Kind(NamedTuple):
    """A kind of work of `host_work.py`, its number of requests, and the device's rate."""

    work: str
    n: int
    rate: float
    name: str


KINDS = (
    Kind("text", 10_000, RATE, "score() of texts"),
    Kind("stream", 40_000, RATE, "stream() of texts"),
    Kind("jsonl", 40_000, RATE, "the command score, JSONL and journal"),
    Kind("text", 10_000, ENDLESS, "score() of texts, a device that answers at once"),
    Kind("jsonl", 40_000, ENDLESS, "the command score, a device that answers at once"),
    Kind("ids", 20_000, ENDLESS, "token ids, a device that answers at once"),
    Kind("plan", 8_192, ENDLESS, "planning of 16 outputs on each prompt"),
)


def run(turns: int, against: Path | None, *, small: bool) -> None:
    """Print tokens per second of each kind of work, of this version and of another in turns."""
    roots = {"here": ROOT} | ({} if against is None else {"against": against.resolve()})
    print(f"\nhost, against a device that takes {RATE:,.0f} tokens per second, medians")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = {version: folder / version for version in roots}
        for version, root in roots.items():  # its package alone, without its tools
            versions[version].mkdir()
            (versions[version] / "jaxscore").symlink_to(root / "jaxscore")
        random_llama.write(folder, random_llama.TINY)
        kinds = [work._replace(n=320) if small else work for work in KINDS]
        stream.write_requests(folder / "requests.jsonl", max(work.n for work in kinds), TOKENS)
        for work in kinds:
            taken: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
            for _ in range(turns):
                for version, root in versions.items():
                    taken[version].append(one_turn(root, work, folder))
            print(f"{work.name}, {work.n} requests")
            for version, facts in taken.items():
                print(f"  {version:8} {describe_result(work, facts)}", flush=True)
            if against is not None:
                pairs = zip(taken["against"], taken["here"], strict=True)
                ratios = [other["seconds"] / current["seconds"] for other, current in pairs]
                print(f"  ratio    {statistics.median(ratios):.2f}", flush=True)


def one_turn(root: Path, work: Kind, folder: Path) -> dict[str, Any]:
    """Measure the package in `root` by `host_work.py` of this folder."""
    script = Path(__file__).with_name("host_work.py")
    paths = f"{root}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, str(script), work.work, str(folder), str(work.n), str(work.rate)],
        env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"host_work.py {work.work} ended with {done.returncode}:\n{done.stderr}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def describe_result(work: Kind, facts: list[dict[str, Any]]) -> str:
    seconds = statistics.median(turn["seconds"] for turn in facts)
    rate = statistics.median(turn["tokens"] / turn["seconds"] for turn in facts)
    busy = statistics.median(turn["busy"] for turn in facts)
    share = f", device busy {100 * busy:.0f} % of the time" if work.rate < ENDLESS else ""
    return f"{seconds:6.2f} s, {rate:9,.0f} unique tokens per second{share}"
