"""`measures`: the extra time of measures and classes of tokens for texts that share nothing."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.benchmarks import token_requests
from tools.benchmarks.contenders import make_checkpoint

VOCABULARY = 50257  # of the checkpoint
EVERY = ("rank", "renyi2", "varentropy")
CLASSES = {
    "one": [VOCABULARY - 1],
    "hundred": range(100),
    "third": range(0, VOCABULARY, 3),
    "most": range(VOCABULARY - 9),
}
# The second "none" says how much the clock can tell.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "none again": {},
    "varentropy": {"measures": ("varentropy",)},
    "renyi2": {"measures": ("renyi2",)},
    "rank": {"measures": ("rank",)},
    "four classes": {"classes": CLASSES},
    "all three": {"measures": EVERY},
    "all three and top 5": {"measures": EVERY, "top": 5},
    "all three and top 20": {"measures": EVERY, "top": 20},
}


def run(turns: int, *, small: bool) -> None:
    """Print the median time of each choice of measures against the run without, turn by turn."""
    from jaxscore import Scorer
    from jaxscore.plan.requests import TokenSequence

    requests = token_requests.workloads(VOCABULARY)["plain"][: 4 if small else None]
    sequences = [TokenSequence(request.ids, request.start) for request in requests]
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), small)
        for dtype in ("float32", "bfloat16"):
            scorer = Scorer.from_pretrained(folder, dtype=dtype)
            _measure(scorer, sequences, turns)


def _measure(scorer: Any, sequences: list[Any], turns: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for turn in range(turns + 1):
        for name, options in OPTIONS.items():
            started = time.perf_counter()
            scorer.score_sequences(sequences, **options)
            if turn:  # the first compiles
                seconds[name].append(time.perf_counter() - started)
    base = seconds["none"]
    n_scored = sum(sequence.n_scored for sequence in sequences)
    print(
        f"\nmeasures, {scorer.model.dtype}: {len(sequences)} texts that share nothing, {n_scored} "
        f"tokens scored, {statistics.median(base):.2f} s without; medians of {turns} turns; system "
        f"load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(times, base, strict=True)]
        print(
            f"  {name:22}{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
