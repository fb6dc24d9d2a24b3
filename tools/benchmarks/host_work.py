"""One turn of `host`, in a separate process: `host_work.py WORK FOLDER N RATE`, facts as JSON.

It runs against whichever jaxscore PYTHONPATH names, so that two versions can be compared.
"""

import contextlib
import io
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscore import Scorer
from jaxscore.device.rows import Scores
from jaxscore.engine import dispatch, engine
from jaxscore.engine.planner import ModelFacts, Planner
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import RowBatch

try:
    from jaxscore.cli.main import main as main_function
except ImportError:  # another checkout, whose `jaxscore.cli` is a module
    from jaxscore.cli import main as main_function

BATCH_TOKENS = 16_384  # as `--batch-tokens auto` takes on an accelerator


class SimulatedDevice:
    """Replaces `engine.dispatch.Dispatch`: computes nothing, and answers after a set time.

    Attributes:
        rate: tokens per second, padding left out; a batch is computed after the one before.
        busy: seconds in which something was computed.
        cpu: CPU seconds of the last command, of all threads.
    """

    rate: float
    busy = cpu = 0.0
    together = getattr(dispatch.Dispatch, "together", None)

    def __init__(self, variants: Sequence[Any], mesh: Any) -> None:
        self.variants, self.n_together = variants, None
        self.too_large: set[tuple[int, int]] = set()
        self._free_at = 0.0
        self._ends: deque[float] = deque()

    def prefix(self, variant: int, ids: np.ndarray, progress: Any) -> tuple[Any, ...]:
        self._compute(len(ids))
        return ()

    def send(
        self, variant: int, batches: Sequence[Any], caches: Any, progress: Any, *top: int
    ) -> "dispatch.InFlight":
        # The other checkout of a comparison may have other names, and other arrays below.
        laid_out = getattr(dispatch, "stack_batches", None) or dispatch.side_by_side
        rows = laid_out(batches, None)
        sent = jax.device_put(rows)
        del sent
        self._ends.append(self._compute(sum(_rows(batch).n_tokens for batch in batches)))
        return dispatch.InFlight(variant, batches, caches, *top, None)

    def fetched(
        self, in_flight: "dispatch.InFlight", progress: Any
    ) -> Iterator[tuple[RowBatch, Scores]]:
        time.sleep(max(0.0, self._ends.popleft() - time.perf_counter()))
        [batch] = map(_rows, in_flight.batches)
        old = getattr(batch, "target", None)
        answers = batch.scored.answer if old is None else old
        logprob: Any = np.full(answers.shape, -1.234567, np.float32)
        greedy: Any = np.zeros(answers.shape, bool)
        entropy: Any = np.full(batch.ids.size, 2.345678, np.float32)
        greedy_id: Any = np.zeros(batch.ids.size, np.int32)
        yield batch, Scores(logprob, greedy, entropy, entropy, greedy_id)

    def _compute(self, n_tokens: int) -> float:
        """When these are done."""
        now, seconds = time.perf_counter(), n_tokens / self.rate
        self._free_at = max(now, self._free_at) + seconds
        type(self).busy += seconds
        return self._free_at


def _rows(batch: Any) -> RowBatch:
    """The batch, without what recurrent layers take of it."""
    rows: RowBatch = getattr(batch, "rows", batch)
    return rows


def main() -> None:
    work, folder, n, rate = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    engine.Dispatch = SimulatedDevice  # type: ignore[assignment,misc]
    SimulatedDevice.rate = rate
    took, n_tokens, *more = WORK[work](folder, n)
    facts = {"seconds": took, "tokens": n_tokens, "busy": SimulatedDevice.busy / took}
    facts["cpu"] = SimulatedDevice.cpu
    print(json.dumps({**facts, **(more[0] if more else {})}))


def text(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.score` of texts."""
    texts, scorer = texts_of(folder, n), loaded(folder)
    scorer.score(texts[:10])
    started = time.perf_counter()
    results = scorer.score(texts)
    took = time.perf_counter() - started
    assert len(results) == n
    assert all(result.error is None for result in results)
    return took, sum(result.n_tokens for result in results)


def stream(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.stream` of texts, whose results are dropped."""
    texts, scorer = texts_of(folder, n), loaded(folder)
    scorer.score(texts[:10])
    started = time.perf_counter()
    n_tokens = sum(result.n_tokens for result in scorer.stream(texts))
    return time.perf_counter() - started, n_tokens


def jsonl(folder: Path, n: int) -> tuple[float, int]:
    """The command `score`, from a file of texts to a file of numbers, with its journal."""
    output = folder / "scores.jsonl"
    journal = folder / f"{time.time_ns()}.journal"
    source = folder / "requests.jsonl"
    took = _command(folder, source, output, "--journal", str(journal))
    return took, _unique(output)


def summaries(folder: Path, n: int) -> tuple[float, int]:
    """The command `score --summary-only`, one file."""
    output = folder / "summaries.jsonl"
    return _command(folder, folder / "requests.jsonl", output, "--summary-only"), _unique(output)


def shards(folder: Path, n: int) -> tuple[float, int, dict[str, Any]]:
    """The same over all files of a folder: seconds of listing, most memory in each tenth."""
    from jaxscore.cli import shards as module

    listing, memory, stop = [0.0], [], threading.Event()

    def timed(function: Any) -> Any:
        def run(*values: Any) -> Any:
            started = time.perf_counter()
            result = function(*values)
            result = list(result) if isinstance(result, Iterator) else result
            listing[0] += time.perf_counter() - started
            return result

        return run

    def watch() -> None:
        while not stop.wait(0.2):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory.append(pages * os.sysconf("SC_PAGE_SIZE"))

    for name in ("shards_of", "states_of", "write_listing", "check_apart"):
        setattr(module, name, timed(getattr(module, name)))
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        took = _command(folder, folder / "in", f"{folder}/out/", "--summary-only")
    finally:
        stop.set()
        watching.join()
    parts = np.array_split(memory, 10)
    facts = {"rss": [int(max(chunk)) for chunk in parts if len(chunk)], "listing": listing[0]}
    n_tokens = sum(_unique(path) for path in (folder / "out").glob("*.jsonl"))
    return took, n_tokens, facts


def _command(folder: Path, source: Path, output: Path | str, *more: str) -> float:
    """Seconds of the command `score`, without imports and loading."""
    words = ["score", "--model", str(folder), "--device", "cpu", "--quiet"]
    words += ["--batch-tokens", str(BATCH_TOKENS)]
    words += ["--input", str(source), "--output", str(output), *more]
    scorer = loaded(folder)  # what is imported and loaded once is not what is measured
    scorer.score(["A few", "words"])
    scorer.close()
    SimulatedDevice.busy = 0.0
    started, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        code = main_function(words)
    took = time.perf_counter() - started
    SimulatedDevice.cpu = time.process_time() - cpu
    assert code == 0
    return took


def _unique(output: Path) -> int:
    """Tokens that a finished run computed."""
    manifest = json.loads(Path(f"{output}.run.json").read_text(encoding="utf-8"))
    return int(manifest["counts"]["tokens_unique"])


def ids(folder: Path, n: int) -> tuple[float, int]:
    """`Scorer.score_sequences`, windows of 8,192."""
    draw = np.random.default_rng(0)
    asked = [TokenSequence(draw.integers(2, 800, 100).astype(np.int32), 1) for _ in range(n)]
    scorer = loaded(folder)
    scorer.score_sequences(asked[:10])
    started = time.perf_counter()
    windows = (asked[k : k + 8192] for k in range(0, n, 8192))
    n_found = sum(len(scores) for scores in scorer.engine.run(windows))
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
            sequence = np.concatenate([prompt, output]).astype(np.int32)
            asked.append(TokenSequence(sequence, 300))
    facts: dict[str, Any] = {"width": 896, "max_positions": 32_768, "n_parameters": 494_000_000}
    planner = Planner(
        ModelFacts(**facts, shares_text=True, takes_prefixes=True),
        batch_tokens=16_384,
        reproducible=False,
    )
    started = time.perf_counter()
    window = planner.window(asked)
    n_batches = sum(1 for _, _, planned in window.planned_subforests() for _ in planned.batches())
    took = time.perf_counter() - started
    assert n_batches
    return took, sum(work.forest.n_nodes for work in window.forests)


def texts_of(folder: Path, n: int) -> list[str]:
    with open(folder / "requests.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["continuation"] for line in itertools.islice(file, n)]


def loaded(folder: Path) -> Scorer:
    return Scorer.from_pretrained(str(folder), device="cpu", batch_tokens=BATCH_TOKENS)


WORK: dict[str, Any] = {
    "text": text,
    "stream": stream,
    "jsonl": jsonl,
    "summaries": summaries,
    "shards": shards,
    "ids": ids,
    "plan": plan,
}


if __name__ == "__main__":
    main()
