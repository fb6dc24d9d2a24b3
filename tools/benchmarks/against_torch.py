"""The workloads that hold jaxscore against PyTorch, and their tables."""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks.contenders import CONTENDERS, Worker, make_checkpoint
from tools.benchmarks.token_requests import Tokens, prefix_pair, workloads

WRITTEN = 32  # tokens generated a prompt
VOCABULARY = 50257
NAMES = ("answers", "prompt", "paths", "plain", "write", "prefix")


def run(chosen: list[str], turns: int, letters: str, small: bool) -> None:
    """Print a table for each of the chosen workloads.

    Args:
        chosen: some of NAMES.
        letters: the letters of CONTENDERS to run.
        small: 2 layers of width 256.
    """
    layers, width = (2, 256) if small else (12, 768)
    todo = workloads(VOCABULARY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, small)
        workers = {letter: Worker(letter, folder) for letter in letters}
        peaks = {letter: worker.ask("peak") for letter, worker in workers.items()}
        print("matmul peak, GFLOP/s:", {CONTENDERS[k]: round(v) for k, v in peaks.items()})
        for workload in chosen:
            if workload == "prefix":
                jax_workers = {
                    letter: worker for letter, worker in workers.items() if letter in "cde"
                }
                report_prefix(jax_workers, turns, *prefix_pair(VOCABULARY, small))
                continue
            requests = todo[workload]
            message: Any = (requests, WRITTEN) if workload == "write" else requests
            times: dict[str, list[float]] = {letter: [] for letter in workers}
            results: dict[str, list[np.ndarray]] = {}
            for turn in range(turns + 1):  # the first warms up and compiles
                for letter, worker in workers.items():
                    seconds, results[letter] = worker.ask(message)
                    if turn:
                        times[letter].append(seconds)
                    print(f"\r{workload} turn {turn} {letter} {seconds:.2f} s  ", end="",
                          file=sys.stderr, flush=True)  # fmt: skip
            print(file=sys.stderr)
            facts = {letter: worker.ask("facts") for letter, worker in workers.items()}
            if workload == "write":
                report_write(requests, times, results)
                continue
            report(workload, requests, times, results, facts, peaks, (width, layers, VOCABULARY))
        for worker in workers.values():
            worker.connection.send(None)


def flops(requests: list[Tokens], facts: dict[str, Any], width: int, layers: int, V: int) -> float:
    """Count the products of a perfect scorer: linear layers of unique tokens, the head of scored
    ones. Attention, a few per cent here, is left out."""
    return 2.0 * (facts["unique"] * 12 * layers * width**2 + facts["scored"] * width * V)


def report_write(
    requests: list[Tokens], times: dict[str, list[float]], results: dict[str, list[np.ndarray]]
) -> None:
    """Print tokens per second, and how many texts equal those of the first contender."""
    print(f"\nwrite: {len(requests)} prompts, {WRITTEN} tokens each")
    reference = next(iter(results.values()))
    for letter, seconds in times.items():
        ratios = " ".join(
            f"vs {k} {statistics.median(x / y for x, y in zip(times[k], seconds, strict=True)):.2f}"
            for k in ("abd" if letter == "e" else "ab")
            if k in times
        )
        same = sum(map(np.array_equal, results[letter], reference))
        rate = len(requests) * WRITTEN / statistics.median(seconds)
        print(f"  {CONTENDERS[letter]:16}{rate:8.0f} tok/s  {ratios}  {same} texts the same")


def report_prefix(
    workers: dict[str, Worker], turns: int, asked: list[Tokens], texts: list[Tokens]
) -> None:
    """Seconds a unique token of each, and their ratio."""
    print(f"\nprefix: {len(asked)} requests on a prompt of 1500 tokens")
    for letter, worker in workers.items():
        ratios, facts = [], {}
        for turn in range(turns + 1):
            whole_s, _ = worker.ask(texts)
            per_token = whole_s / worker.ask("facts")["unique"]
            asked_s, _ = worker.ask(asked)
            facts = worker.ask("facts")
            if turn:
                ratios.append(asked_s / facts["unique"] / per_token)
            print(f"\rprefix turn {turn} {letter} {asked_s:.1f} s  ", end="", file=sys.stderr)
        print(file=sys.stderr)
        n_tokens, unique = facts["given"], facts["unique"]
        print(
            f"  {CONTENDERS[letter]:16}{n_tokens} tokens given, {unique} unique; a unique token "
            f"costs {statistics.median(ratios):.2f} of one in texts that share nothing "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
        print(f"  programs: {facts['shapes']}")


def report(
    workload: str,
    requests: list[Tokens],
    times: dict[str, list[float]],
    results: dict[str, list[np.ndarray]],
    facts: dict[str, dict[str, Any]],
    peaks: dict[str, float],
    shape: tuple[int, int, int],
) -> None:
    """Print one workload's table; ratios are medians of the turns' ratios."""
    jax_facts = next((facts[k] for k in "cde" if k in facts), None)
    n_tokens = sum(len(r.ids) for r in requests)
    line = f"\n{workload}: {len(requests)} requests, {n_tokens} tokens given"
    if jax_facts:
        line += f", {jax_facts['unique']} unique, {jax_facts['scored']} scored"
    print(line)
    print(f"  {'':16}{'median s':>9}{'given tok/s':>13}{'vs a':>7}{'vs b':>7}"
          f"{'of peak':>9}{'MB so far':>10}{'compiles':>10}{'worst diff':>12}")  # fmt: skip
    reference = next((results[k] for k in "abc" if k in results), None)
    for letter, seconds in times.items():
        median = statistics.median(seconds)
        ratios = [
            f"{statistics.median(x / y for x, y in zip(times[k], seconds, strict=True)):.2f}"
            if k in times
            else "-"
            for k in "ab"
        ]
        share = (
            f"{flops(requests, jax_facts, *shape) / median / 1e9 / peaks[letter]:.0%}"
            if jax_facts
            else "-"
        )
        fact = facts[letter]
        compiles = f"{fact['compiled']}/{fact['compile_s']:.1f}s" if fact["compiled"] else "-"
        worst = max(
            float(np.abs(x - y).max())
            for x, y in zip(results[letter], reference or results[letter], strict=True)
            if len(x)
        )
        print(
            f"  {CONTENDERS[letter]:16}{median:9.2f}{n_tokens / median:13.0f}{ratios[0]:>7}"
            f"{ratios[1]:>7}{share:>9}{fact['peak_mb']:10.0f}{compiles:>10}{worst:12.1e}"
        )
    if jax_facts:
        print(f"  shapes compiled so far (rows, row length): {jax_facts['shapes']}")
