"""`stream`: many requests through the command line, in bounded memory."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from tools.benchmarks import random_llama

ROOT = Path(__file__).resolve().parents[2]
REQUESTS, TOKENS = 100_000, 200
ALLOWED = 1.5e9  # bytes


def run(n_requests: int | None, *, small: bool) -> bool:
    """Print requests a second and peak memory; whether it is below ALLOWED."""
    n = n_requests or (200 if small else REQUESTS)
    taken = measured(n)
    good = taken.peak_bytes < ALLOWED
    print(
        f"\nstream: {n} requests, {taken.tokens_given / n:.0f} tokens each, "
        f"{taken.tokens_scored / n:.0f} of them scored\n"
        f"  {n / taken.seconds:.0f} requests a second, {taken.seconds:.0f} s; "
        f"{taken.written_bytes / 1e6:.0f} MB written, journal included\n"
        f"  peak memory {taken.peak_bytes / 1e6:.0f} MB, allowed {ALLOWED / 1e6:.0f} MB: "
        f"{'ok' if good else 'TOO MUCH'}; system load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    return good


class Taken(NamedTuple):
    """Time of a run, and the peak memory of its process."""

    seconds: float
    peak_bytes: int
    tokens_given: int
    tokens_scored: int
    written_bytes: int


def measured(n: int) -> Taken:
    """Score n requests through the command line, with its default flags.

    Raises:
        SystemExit: it ended with another exit code than 0.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_llama.write(folder, random_llama.TINY)
        source, output = folder / "requests.jsonl", folder / "scores.jsonl"
        write_requests(source, n)
        report = folder / "report.json"
        command = [sys.executable, str(Path(__file__).with_name("child_memory.py")), str(report)]
        command += [sys.executable, "-m", "jaxscore", "score", "--device", "cpu"]
        command += ["--model", str(folder), "--input", str(source), "--output", str(output)]
        with open(folder / "stderr", "w+", encoding="utf-8") as said:
            code = subprocess.run(command, cwd=ROOT, stderr=said, check=False).returncode
            if code:
                said.seek(0)
                raise SystemExit(f"jaxscore score ended with exit code {code}:\n{said.read()}")
        counts = json.loads(Path(f"{output}.run.json").read_text(encoding="utf-8"))["counts"]
        return Taken(
            **json.loads(report.read_text(encoding="utf-8")),
            tokens_given=counts["tokens_given"],
            tokens_scored=counts["tokens_scored"],
            written_bytes=sum(file.stat().st_size for file in folder.rglob("scores.jsonl*")),
        )


def write_requests(path: Path, n: int, tokens: int = TOKENS) -> None:
    """Texts of so many tokens, BOS included, of random words that are one token each."""
    tokenizer = Tokenizer.from_file(str(random_llama.DEMO / "tokenizer.json"))
    names = [tokenizer.decode([id]) for id in range(tokenizer.get_vocab_size())]
    words = np.array([w for w in names if w[:1] == " " and w[1:].isalpha()])
    draw = np.random.default_rng(0)
    with open(path, "w", encoding="utf-8") as file:
        for k in range(n):
            text = "".join(draw.choice(words, tokens - 1))
            file.write(json.dumps({"id": k, "continuation": text}) + "\n")
