"""`divergence`: two models at once against the two scored one after the other."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.benchmarks import token_requests
from tools.benchmarks.contenders import make_checkpoint

VOCABULARY = 50257  # of the checkpoint
# What of the reference differs from the model, which is float32.
REFERENCES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantize": "int8"},
}
CLOCKS = {"wall": time.perf_counter, "CPU": time.process_time}  # the second one heeds no other work


def run(turns: int, *, small: bool) -> None:
    """Print the median time of each pair relative to both models one by one, in turns."""
    from jaxscore.plan.requests import TokenSequence

    requests = token_requests.workloads(VOCABULARY)["plain"][: 4 if small else None]
    sequences = [TokenSequence(request.ids, request.start) for request in requests]
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), small)
        for name, options in REFERENCES.items():
            _measure(folder, name, options, sequences, turns)


def _measure(folder: str, name: str, q: dict[str, Any], sequences: list[Any], turns: int) -> None:
    from jaxscore import DivergenceScorer, Scorer

    reference = {f"reference_{key}": value for key, value in q.items()}
    both = DivergenceScorer.from_pretrained(folder, folder, dtype="float32", **reference)
    scorers = Scorer.from_pretrained(folder, dtype="float32"), Scorer.from_pretrained(folder, **q)
    runs = *((scorer, ()) for scorer in scorers), (both, both.model.functions.measures)
    taken: dict[str, list[list[float]]] = {clock: [] for clock in CLOCKS}
    for turn in range(turns + 1):
        turn_seconds: dict[str, list[float]] = {clock: [] for clock in CLOCKS}
        for scorer, measures in runs:
            before = {clock: read() for clock, read in CLOCKS.items()}
            scorer.score_sequences(sequences, measures=measures)
            for clock, read in CLOCKS.items():
                turn_seconds[clock].append(read() - before[clock])
        if turn:  # the first compiles
            for clock, seconds in turn_seconds.items():
                taken[clock].append(seconds)
    apart = statistics.median(p + q for p, q, _ in taken["wall"])
    n_scored = sum(sequence.n_scored for sequence in sequences)
    print(
        f"\ndivergence, float32 against {name}: {len(sequences)} texts that share nothing, "
        f"{n_scored} tokens scored, {apart:.2f} s one after the other; at once, medians of {turns} "
        f"turns; system load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    for clock, turns_of in taken.items():
        ratios = [two / (p + q) for p, q, two in turns_of]
        print(
            f"  {clock:6}{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
