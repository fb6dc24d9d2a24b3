"""Recurrent layers: prefix sharing against one text per row, ours and PyTorch's.

A random checkpoint of Qwen3.5-0.8B's sizes with 4 of its 24 layers and as much of its vocabulary.
PyTorch has its best usual form, see `contenders.SelectiveTorchContender`.
"""

import statistics
import tempfile
from pathlib import Path

import numpy as np

from tools.benchmarks.contenders import CONTENDERS, Worker, save_with_tokenizer
from tools.benchmarks.token_requests import Tokens

LETTERS = "chf"  # sharing, one text per row, PyTorch
VOCABULARY = 41_472  # of 248,320, as 4 of 24 layers
SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
CONTINUATIONS, SAMPLED = 400, 32  # the second: of those that contenders without sharing compute


def run(turns: int, *, small: bool) -> None:
    """Print CPU seconds of each contender and their ratios, turn by turn.

    Args:
        small: a small model and few requests.
    """
    todo = workloads(few=small)
    with tempfile.TemporaryDirectory() as name:
        make_checkpoint(Path(name), small)
        workers = {letter: Worker(letter, Path(name)) for letter in LETTERS}
        for workload, (requests, n_sampled) in todo.items():
            _compare(workload, requests, n_sampled, workers, turns)
        for worker in workers.values():
            worker.connection.send(None)


def make_checkpoint(folder: Path, small: bool) -> None:
    """A random hybrid of 3 recurrent layers and one with attention."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        **(SMALL if small else SIZES),
        num_hidden_layers=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    save_with_tokenizer(Qwen3_5ForCausalLM(config), folder)


def workloads(*, few: bool) -> dict[str, tuple[list[Tokens], int]]:
    """Requests of each workload, and how many of them contenders without sharing compute."""
    rng = np.random.default_rng(0)
    share = 16 if few else 1

    def text(n: int) -> np.ndarray:
        return rng.integers(0, VOCABULARY, n).astype(np.int32)

    answers = []
    for _ in range(16 // share):
        context = text(100)
        answers += [Tokens(np.append(context, text(5)), 100) for _ in range(5)]
    prompt = text(300)
    continued = [Tokens(np.append(prompt, text(20)), 300) for _ in range(CONTINUATIONS // share)]
    plain = [Tokens(text(n), 1) for n in rng.integers(120, 321, 16 // share)]
    return {
        "answers": (answers, len(answers)),
        "continuations": (continued, SAMPLED // share),
        "plain": (plain, len(plain)),
    }


def _compare(
    workload: str,
    requests: list[Tokens],
    n_sampled: int,
    workers: dict[str, Worker],
    turns: int,
) -> None:
    cpu: dict[str, list[float]] = {letter: [] for letter in workers}
    results: dict[str, list[np.ndarray]] = {}
    for turn in range(turns + 1):  # the first warms up and compiles
        for letter, worker in workers.items():
            asked = requests if letter == LETTERS[0] else requests[:n_sampled]
            before = worker.ask("cpu")
            _, results[letter] = worker.ask(asked)
            if turn:
                cpu[letter].append((worker.ask("cpu") - before) * len(requests) / len(asked))
    sampled = "" if n_sampled == len(requests) else f" ({n_sampled} without sharing, scaled)"
    print(f"\n{workload}: {len(requests)} requests{sampled}, {sum(len(r.ids) for r in requests)} "
          f"tokens; CPU seconds, medians of {turns} turns", flush=True)  # fmt: skip
    jax_seconds = cpu[LETTERS[0]]
    for letter, seconds in cpu.items():
        ratios = [a / b for a, b in zip(seconds, jax_seconds, strict=True)]
        pairs = zip(results[letter], results[LETTERS[0]], strict=False)
        far = max(float(np.abs(x - y).max()) for x, y in pairs)
        print(f"  {CONTENDERS[letter]:24}{statistics.median(seconds):9.2f} s"
              f"{statistics.median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
              f"{far:11.1e}", flush=True)  # fmt: skip
