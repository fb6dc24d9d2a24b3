"""Process of `devices` with N devices: scores workloads and prints one JSON line.

`python -m tools.benchmarks.on_devices FOLDER N OUT.npz WORKLOAD ...`
"""

import json
import sys
import time

import jax
import numpy as np

from jaxscore import Scorer
from jaxscore.plan.requests import TokenSequence
from tools.benchmarks.token_requests import workloads

BATCH_TOKENS = 512  # small, so that there are more batches than devices
COLUMNS = ("logprob", "entropy", "self_certainty", "greedy")


def main(folder: str, n: int, out: str, names: list[str]) -> None:
    if jax.device_count() != n:
        raise SystemExit(f"found {jax.device_count()} devices, expected {n}")
    scorer = Scorer.from_pretrained(
        folder, dtype="float32", mesh=f"data={n}", batch_tokens=BATCH_TOKENS
    )
    requests_of = workloads(scorer.model.vocab_size)
    sequences = [
        TokenSequence(request.ids, request.start) for name in names for request in requests_of[name]
    ]
    scorer.score_sequences(sequences)  # compiles
    n_given, unique = scorer.statistics.tokens_given, scorer.statistics.tokens_unique
    started = time.perf_counter()
    scores = scorer.score_sequences(sequences)
    seconds = time.perf_counter() - started
    columns = {
        name: np.concatenate([getattr(scored, name) for scored in scores]) for name in COLUMNS
    }
    np.savez(out, **columns)
    json.dump({"seconds": seconds, "given": n_given, "unique": unique}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
