"""`host`: how many tokens the host can feed to a fast device, and how long the device waits."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.benchmarks import random_llama, stream

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 100  # of each request
SIZES = {"text": 10_000, "stream": 40_000, "jsonl": 40_000, "ids": 20_000, "plan": 8_192}
NAMES = {
    "text": "score() of texts, all planned together",
    "stream": "stream() of texts",
    "jsonl": "the command score, JSONL and journal",
    "ids": "from token ids, the device never waits",
    "plan": "planning of 16 outputs on each prompt",
}


def run(turns: int, against: Path | None, *, small: bool) -> None:
    """Print tokens per second of each kind of work, of this version and of another in turns."""
    roots = {"here": ROOT} | ({} if against is None else {"against": against.resolve()})
    print("\nhost, against a device that takes 400,000 tokens per second, medians")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = {version: folder / version for version in roots}
        for version, root in roots.items():  # its package alone, without its tools
            versions[version].mkdir()
            (versions[version] / "jaxscore").symlink_to(root / "jaxscore")
        random_llama.write(folder, random_llama.TINY)
        sizes = {work: 320 if small else n for work, n in SIZES.items()}
        stream.write_requests(folder / "requests.jsonl", sizes["stream"], TOKENS)
        for work, n in sizes.items():
            taken: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
            for _ in range(turns):
                for version, root in versions.items():
                    taken[version].append(one_turn(root, work, folder, n))
            print(f"{NAMES[work]}, {n} requests")
            for version, facts in taken.items():
                print(f"  {version:8} {told(facts)}", flush=True)
            if against is not None:
                pairs = zip(taken["against"], taken["here"], strict=True)
                ratios = [other["seconds"] / own["seconds"] for other, own in pairs]
                print(f"  ratio    {statistics.median(ratios):.2f}", flush=True)


def one_turn(root: Path, work: str, folder: Path, n: int) -> dict[str, Any]:
    """What `host_work.py` of this folder measures of the package in `root`."""
    script = Path(__file__).with_name("host_work.py")
    paths = f"{root}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, str(script), work, str(folder), str(n)],
        env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"host_work.py {work} ended with {done.returncode}:\n{done.stderr}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def told(facts: list[dict[str, Any]]) -> str:
    seconds = statistics.median(one["seconds"] for one in facts)
    rate = statistics.median(one["tokens"] / one["seconds"] for one in facts)
    busy = [one["busy"] for one in facts if one["busy"] is not None]
    share = f", device busy {100 * statistics.median(busy):.0f} % of the time" if busy else ""
    return f"{seconds:6.2f} s, {rate:9,.0f} unique tokens per second{share}"
