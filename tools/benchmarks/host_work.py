"""One turn of `host`, in a process of its own: `host_work.py WORK FOLDER N RATE`, facts as JSON.

It runs against whichever jaxscore PYTHONPATH names, so that two versions can be compared.
"""

import contextlib
import io
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore import Scorer, cli
from jaxscore.engine import engine
from jaxscore.engine.planner import ModelFacts, Planner
from jaxscore.plan.requests import TokenSequence
from tools.benchmarks.simulated_device import SimulatedDevice

BATCH_TOKENS = 16_384  # as `--batch-tokens auto` takes on an accelerator


def main() -> None:
    work, folder, n, rate = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    engine.Dispatch = SimulatedDevice  # type: ignore[assignment,misc]
    SimulatedDevice.rate = rate
    took, n_tokens = WORK[work](folder, n)
    print(json.dumps({"seconds": took, "tokens": n_tokens, "busy": SimulatedDevice.busy / took}))


def text(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.score` of texts."""
    texts, scorer = texts_of(folder, n), loaded(folder)
    scorer.score(texts[:10])
    started = time.perf_counter()
    found = scorer.score(texts)
    took = time.perf_counter() - started
    assert len(found) == n
    assert all(one.error is None for one in found)
    return took, sum(one.n_tokens for one in found)


def stream(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.stream` of texts, whose results nobody keeps."""
    texts, scorer = texts_of(folder, n), loaded(folder)
    scorer.score(texts[:10])
    started = time.perf_counter()
    n_tokens = sum(one.n_tokens for one in scorer.stream(texts))
    return time.perf_counter() - started, n_tokens


def jsonl(folder: Path, n: int) -> tuple[float, int]:
    """The command `score`, from a file of texts to a file of numbers, with its journal."""
    output = folder / "scores.jsonl"
    words = ["score", "--model", str(folder), "--device", "cpu", "--quiet"]
    words += ["--batch-tokens", str(BATCH_TOKENS)]
    words += ["--input", str(folder / "requests.jsonl"), "--output", str(output)]
    words += ["--journal", str(folder / f"{time.time_ns()}.journal")]
    scorer = loaded(folder)  # what is imported and loaded once is not what is measured
    scorer.score(["A few", "words"])
    scorer.close()
    SimulatedDevice.busy = 0.0
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(words)
    took = time.perf_counter() - started
    assert code == 0
    counts = json.loads(Path(f"{output}.run.json").read_text(encoding="utf-8"))["counts"]
    return took, counts["tokens_unique"]


def ids(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.score_sequences`, windows of 8,192."""
    draw = np.random.default_rng(0)
    asked = [TokenSequence(draw.integers(2, 800, 100).astype(np.int32), 1) for _ in range(n)]
    scorer = loaded(folder)
    scorer.score_sequences(asked[:10])
    started = time.perf_counter()
    windows = (asked[k : k + 8192] for k in range(0, n, 8192))
    n_found = sum(len(found) for found in scorer.engine.run(windows))
    took = time.perf_counter() - started
    assert n_found == n
    return took, scorer.statistics.tokens_unique


def plan(folder: Path, n: int) -> tuple[float, int]:
    """Planning sampled outputs, 16 for each prompt of 300 tokens, for a model of 0.5B."""
    draw, asked = np.random.default_rng(0), []
    for _ in range(n // 16):
        prompt, first = draw.integers(0, 50_000, 300), draw.integers(0, 50_000, 200)
        for _ in range(16):
            output = first.copy()
            at = draw.integers(1, 50)
            output[at:] = draw.integers(0, 50_000, 200 - at)
            whole = np.concatenate([prompt, output]).astype(np.int32)
            asked.append(TokenSequence(whole, 300))
    facts: dict[str, Any] = {"width": 896, "max_positions": 32_768, "n_parameters": 494_000_000}
    planner = Planner(
        ModelFacts(**facts, shares_text=True, takes_prefixes=True),
        batch_tokens=16_384,
        reproducible=False,
    )
    started = time.perf_counter()
    window = planner.window(asked)
    n_batches = sum(1 for _, _, planned in window.planned_parts() for _ in planned.batches())
    took = time.perf_counter() - started
    assert n_batches
    return took, sum(work.forest.n_nodes for work in window.forests)


def texts_of(folder: Path, n: int) -> list[str]:
    with open(folder / "requests.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["continuation"] for line in itertools.islice(file, n)]


def loaded(folder: Path) -> Scorer:
    return Scorer.from_pretrained(str(folder), device="cpu", batch_tokens=BATCH_TOKENS)


WORK = {"text": text, "stream": stream, "jsonl": jsonl, "ids": ids, "plan": plan}


if __name__ == "__main__":
    main()
