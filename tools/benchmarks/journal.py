"""`journal`: what keeping every score on disk costs, by the clock and inside the journal."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.benchmarks import random_llama
from tools.benchmarks.random_llama import Shape

ALLOWED = 3.0  # per cent


def run(turns: int, *, small: bool) -> None:
    """Print the cost under a tiny model, whose host work shows, and under a realistic one."""
    from jaxscore import Scorer

    models = {"tiny model": (random_llama.TINY, 64 if small else 2000)}
    if not small:
        models["realistic model"] = random_llama.REALISTIC, 60
    for name, (shape, n_sequences) in models.items():
        with tempfile.TemporaryDirectory() as folder:
            random_llama.write(Path(folder), shape)
            scorer = Scorer.from_pretrained(folder, dtype="float32")
            _measure(name, shape, scorer, n_sequences, turns, Path(folder))


class Taken(NamedTuple):
    """Seconds of a run: by the clock, and that the scoring thread itself worked."""

    clock: float
    worked: float


def _measure(
    name: str, shape: Shape, scorer: Any, n_sequences: int, turns: int, folder: Path
) -> None:
    from jaxscore.journal import Journal
    from jaxscore.plan.requests import TokenSequence

    draw = np.random.default_rng(0)
    lengths = draw.integers(40, 200, n_sequences)
    ids = [draw.integers(0, shape.vocab, n).astype(np.int32) for n in lengths]
    sequences = [TokenSequence(sequence, 0) for sequence in ids]

    def run() -> Taken:
        started, worked = time.perf_counter(), time.thread_time()
        scorer.score_sequences(sequences)
        return Taken(time.perf_counter() - started, time.thread_time() - worked)

    def run_with(path: Path) -> tuple[Taken, float]:
        journal = Journal(path, scorer.about)
        scorer.journal = clocked = Clocked(journal)
        taken = run()
        journal.close()
        scorer.journal = None
        return taken, clocked.seconds

    off, again, on, inside = [], [], [], []
    for turn in range(turns + 1):
        # Each goes first in every other turn, so that a machine that slows down hits both.
        kept = run_with(folder / f"{turn}.journal") if turn % 2 else None
        without = run()
        taken, journal_seconds = kept or run_with(folder / f"{turn}.journal")
        control = run()  # the clock's difference of two equal runs
        if turn:  # the first compiles
            off.append(without)
            again.append(control)
            on.append(taken)
            inside.append(journal_seconds)
    seconds = statistics.median(t.clock for t in off)
    worked = statistics.median(b.worked - a.worked for a, b in zip(off, on, strict=True))
    journal_seconds = statistics.median(inside)
    print(
        f"\njournal, {name}: {shape.parameters / 1e6:.1f} million parameters, {n_sequences} "
        f"sequences, {sum(lengths)} tokens, all scored; system load {os.getloadavg()[0]:.2f}\n"
        f"  off {seconds:.2f} s, on {statistics.median(t.clock for t in on):.2f} s: "
        f"{_slower(off, on)}, allowed {ALLOWED:.0f} %\n"
        f"  off once more {_slower(off, again)}: the clock resolves no less\n"
        f"  inside the journal {_share(journal_seconds, seconds, n_sequences)}\n"
        f"  the scoring thread worked {_share(worked, seconds, n_sequences)} more",
        flush=True,
    )


def _slower(first: list[Taken], second: list[Taken]) -> str:
    """Return the median and range of the second's extra time, turn by turn."""
    extra = [100 * (b.clock / a.clock - 1) for a, b in zip(first, second, strict=True)]
    return f"{statistics.median(extra):+.1f} % ({min(extra):+.1f} to {max(extra):+.1f})"


def _share(part_s: float, total_s: float, n_sequences: int) -> str:
    return (
        f"{100 * part_s / total_s:.2f} %, {1e6 * part_s / n_sequences:.0f} microseconds a sequence"
    )


class Clocked:
    """A journal that counts the seconds spent in it: looking up, packing and writing."""

    def __init__(self, journal: Any) -> None:
        self._journal, self.path, self.seconds = journal, journal.path, 0.0

    def has_scores_of(self, about: dict[str, Any]) -> bool:
        return bool(self._journal.has_scores_of(about))

    def read_scores(self, *args: Any) -> Any:
        return self._clocked(self._journal.read_scores, *args)

    def write_scores(self, *args: Any) -> Any:
        return self._clocked(self._journal.write_scores, *args)

    def _clocked(self, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            self.seconds += time.perf_counter() - started
