"""Five-shot multiple choice through lm-evaluation-harness: jaxscore against its own `hf` model.

    drawn    the five examples are drawn for each document
    fixed    all documents have the same five
    letters  the same five, and choices of one token

Every contender has the same requests as texts, in a separate process, in turns.
"""

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks.contenders import make_checkpoint

SHOTS, CHOICES = 5, 4
QUESTION, ANSWER = 120, 20  # tokens: 840 in all, with five examples
BATCH = 16
WORKLOADS = ("drawn", "fixed", "letters")
CONTENDERS = {"hf": "hf batch 16", "f32": "jaxscore f32", "bf16": "jaxscore bf16"}
VOCABULARY = 50257


def run(turns: int, *, small: bool, documents: int | None) -> None:
    """Print a table for each workload; the first turn warms up and compiles."""
    n_documents = documents or (4 if small else 16)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, small)
        _write_tokenizer(folder)
        workers = {contender: _Worker(contender, folder) for contender in CONTENDERS}
        for workload in WORKLOADS:
            requests = _requests(workload, n_documents)
            times: dict[str, list[float]] = {contender: [] for contender in workers}
            results: dict[str, Any] = {}
            for turn in range(turns + 1):
                for contender, worker in workers.items():
                    seconds, results[contender], n_given, computed = worker.ask(requests)
                    if turn:
                        times[contender].append(seconds)
                    print(f"\r{workload} turn {turn} {contender} {seconds:.1f} s  ", end="",
                          file=sys.stderr, flush=True)  # fmt: skip
            print(file=sys.stderr)
            print(
                f"\n{workload}: {n_documents} documents, {len(requests)} requests; jaxscore: "
                f"{n_given} tokens given, {computed} computed"
            )
            _report(times, results)
        for worker in workers.values():
            worker.connection.send(None)


def _report(times: dict[str, list[float]], results: dict[str, Any]) -> None:
    """Ratios are medians of the turns' ratios; differences are of log-likelihoods, in nats."""
    for contender, seconds in times.items():
        ratios = [a / b for a, b in zip(times["hf"], seconds, strict=True)]
        worst = np.abs(np.array(results[contender]) - np.array(results["hf"])).max()
        print(
            f"  {CONTENDERS[contender]:14}{statistics.median(seconds):9.2f} s  "
            f"{statistics.median(ratios):6.2f} x hf ({min(ratios):.2f} to {max(ratios):.2f})  "
            f"worst difference {worst:.1e}"
        )


def _write_tokenizer(folder: Path) -> None:
    """A word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[EOS]": 0} | {f"w{k}": k for k in range(1, VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[EOS]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[EOS]").save_pretrained(folder)


def _requests(workload: str, n_documents: int) -> list[tuple[str, str]]:
    """(context, continuation), four of each document."""
    draw = np.random.default_rng(0)

    def text(n: int) -> str:
        return " ".join(f"w{k}" for k in draw.integers(1, VOCABULARY, n))

    n_answer = 1 if workload == "letters" else ANSWER
    examples = [f"{text(QUESTION)} {text(n_answer)}" for _ in range(64)]
    out = []
    for _ in range(n_documents):
        chosen = draw.choice(64, SHOTS, replace=False) if workload == "drawn" else range(SHOTS)
        context = " ".join([*(examples[k] for k in chosen), text(QUESTION)])
        out += [(context, f" {text(n_answer)}") for _ in range(CHOICES)]
    return out


class _Worker:
    """One contender in its own process; `connection` takes requests, None ends it."""

    def __init__(self, contender: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, contender, folder), daemon=True)
        self.process.start()

    def ask(self, requests: list[tuple[str, str]]) -> Any:
        self.connection.send(json.dumps(requests))
        return self.connection.recv()


def _serve(connection: Connection, contender: str, folder: Path) -> None:
    from lm_eval.api.instance import Instance

    model: Any
    if contender == "hf":
        from lm_eval.models.huggingface import HFLM

        model = HFLM(str(folder), dtype="float32", device="cpu", batch_size=BATCH)
    else:
        from jaxscore.adapters.lm_eval import JaxscoreLM

        dtype = {"f32": "float32", "bf16": "bfloat16"}[contender]
        model = JaxscoreLM(str(folder), dtype=dtype)
    while (message := connection.recv()) is not None:
        requests = [
            Instance("loglikelihood", {}, tuple(pair), k % CHOICES, ("bench", k // CHOICES, 1))
            for k, pair in enumerate(json.loads(message))
        ]
        before = _counts(model)
        started = time.perf_counter()
        results = model.loglikelihood(requests, disable_tqdm=True)
        seconds = time.perf_counter() - started
        n_given, computed = (now - then for now, then in zip(_counts(model), before, strict=True))
        connection.send((seconds, [total for total, _ in results], n_given, computed))


def _counts(model: Any) -> tuple[int, int]:
    """Input tokens and computed tokens so far; none for `hf`."""
    if not hasattr(model, "scorer"):
        return 0, 0
    counts = model.scorer.facts()["counts"]
    return counts["tokens_given"], counts["tokens_unique"]
