"""Pretrained models on real text, against PyTorch as its users would write it, and llama.cpp.

PyTorch has its best usual form: sdpa attention, padded batches sorted by length, the LM head only
at scored positions, and for labels one forward pass per question. It computes shared text again in
each row; jaxscore computes it once, and so does llama.cpp here, on the file's own blocks.
"""

import re
import statistics
from pathlib import Path

import numpy as np

from jaxscore.text.tokenizer_files import load_tokenizer
from tools.benchmarks.contenders import CONTENDERS, Worker
from tools.benchmarks.llama_cpp import reason_to_skip
from tools.benchmarks.token_requests import Tokens

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = {"float32": "cf", "bfloat16": "dg"}  # jaxscore and PyTorch
TEXTS, LEAST, MOST = 32, 120, 320
CONTEXTS, CONTEXT, ANSWERS, ANSWER = 12, 150, 4, 8
PROMPT, QUESTIONS, QUESTION, LABELS = 500, 24, 20, 4


def run(models: list[Path], turns: int, small: bool) -> None:
    """Print seconds, CPU seconds, ratios and differences per model, dtype and workload.

    Args:
        models: GGUF files, which PyTorch's side reads by transformers, or folders.
        small: few requests.
    """
    for model in models:
        requests = workloads(token_ids(model), few=small)
        skipped = reason_to_skip(model)
        if skipped:
            print(f"\nllama.cpp is left out: {skipped}")
        for dtype, letters in PAIRS.items():
            sides = letters if skipped else f"{letters}l"
            _compare(f"{model.name}, {dtype}", model, sides, requests, turns)


def token_ids(model: Path) -> np.ndarray:
    """Ids of the repository's pages and modules in the model's tokens, one after another."""
    pages = sorted(REPOSITORY.glob("**/README.md"))
    modules = sorted((REPOSITORY / "jaxscore").glob("*.py"))
    text = "\n\n".join(path.read_text() for path in [*pages, *modules])
    text = re.sub(r"<[a-z_]+>", "", text)  # not the spelling of a special token
    tokenizer = load_tokenizer(model)
    return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)


def workloads(ids: np.ndarray, *, few: bool) -> dict[str, list[Tokens]]:
    """`plain` texts, `answers` behind contexts, and `labels` behind questions and one prompt."""
    rng = np.random.default_rng(0)
    at = 0

    def take(n: int) -> np.ndarray:
        nonlocal at
        at += n
        return ids[at - n : at]

    share = 8 if few else 1
    plain = [Tokens(take(n), 1) for n in rng.integers(LEAST, MOST + 1, TEXTS // share)]
    answers = []
    for _ in range(CONTEXTS // share or 1):
        context = take(CONTEXT)
        answers += [Tokens(np.append(context, take(ANSWER)), CONTEXT) for _ in range(ANSWERS)]
    prompt, label_ids, labels = take(PROMPT), np.unique(take(100))[:LABELS], []
    for _ in range(QUESTIONS // share):
        question = np.append(prompt, take(QUESTION))
        labels += [Tokens(np.append(question, label), len(question)) for label in label_ids]
    return {"plain": plain, "answers": answers, "labels": labels}


def _compare(
    title: str, model: Path, letters: str, requests: dict[str, list[Tokens]], turns: int
) -> None:
    workers = {letter: Worker(letter, model) for letter in letters}
    jax_letter = letters[0]
    print(f"\n{title}\n  {'':9}{'tokens':>8}  {'':14}{'seconds':>9}{'ratio':>7}{'CPU s':>8}"
          f"{'ratio':>7}{'mean diff':>11}")  # fmt: skip
    for name, asked in requests.items():
        times: dict[str, list[float]] = {letter: [] for letter in letters}
        cpu: dict[str, list[float]] = {letter: [] for letter in letters}
        results = {}
        for turn in range(turns + 1):  # the first warms up and compiles
            for letter, worker in workers.items():
                before = worker.ask("cpu")
                seconds, results[letter] = worker.ask(asked)
                if turn:
                    times[letter].append(seconds)
                    cpu[letter].append(worker.ask("cpu") - before)
        for letter in letters:
            ratios = [
                statistics.median(
                    x / y for x, y in zip(taken[letter], taken[jax_letter], strict=True)
                )
                for taken in (times, cpu)
            ]
            pairs = zip(results[letter], results[jax_letter], strict=True)
            difference = np.concatenate([np.abs(x - y) for x, y in pairs]).mean()
            of_all = (name, sum(len(r.ids) for r in asked)) if letter == jax_letter else ("", "")
            print(f"  {of_all[0]:9}{of_all[1]:8}  {CONTENDERS[letter]:14}"
                  f"{statistics.median(times[letter]):9.2f}{ratios[0]:7.2f}"
                  f"{statistics.median(cpu[letter]):8.1f}{ratios[1]:7.2f}{difference:11.1e}",
                  flush=True)  # fmt: skip
    for worker in workers.values():
        worker.connection.send(None)
