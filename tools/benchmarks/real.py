"""Pretrained models on real text, against PyTorch as its users would write it.

PyTorch has its best usual form: sdpa attention, padded batches sorted by length, the LM head only
at scored positions, and for labels one forward pass per question. It computes shared text again in
each row; jaxscore computes it once.
"""

import re
import statistics
from pathlib import Path

import numpy as np

from jaxscore.text.tokenizer import load_tokenizer
from tools.benchmarks.contenders import CONTENDERS, Worker
from tools.benchmarks.token_requests import Tokens

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = {"float32": "fc", "bfloat16": "gd"}  # PyTorch and jaxscore
TEXTS, LEAST, MOST = 32, 120, 320
CONTEXTS, CONTEXT, ANSWERS, ANSWER = 12, 150, 4, 8
PROMPT, QUESTIONS, QUESTION, LABELS = 500, 24, 20, 4


def run(models: list[Path], turns: int, small: bool) -> None:
    """Print the seconds of each side, and the ratio, per model, dtype and workload.

    Args:
        models: GGUF files, which PyTorch's side reads by transformers, or folders.
        small: few requests.
    """
    for model in models:
        requests = workloads(token_ids(model), few=small)
        for dtype, letters in PAIRS.items():
            _compare(f"{model.name}, {dtype}", model, letters, requests, turns)


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
    theirs, ours = letters
    print(f"\n{title}\n  {'':9}{'tokens':>8}" + "".join(f"{CONTENDERS[k]:>16}" for k in letters)
          + f"{'ratio':>8}{'CPU s':>14}{'mean diff':>11}")  # fmt: skip
    for name, own in requests.items():
        times: dict[str, list[float]] = {letter: [] for letter in letters}
        cpu: dict[str, list[float]] = {letter: [] for letter in letters}
        results = {}
        for turn in range(turns + 1):  # the first warms up and compiles
            for letter, worker in workers.items():
                before = worker.ask("cpu")
                seconds, results[letter] = worker.ask(own)
                if turn:
                    times[letter].append(seconds)
                    cpu[letter].append(worker.ask("cpu") - before)
        medians = [statistics.median(times[k]) for k in letters]
        ratio = statistics.median(x / y for x, y in zip(times[theirs], times[ours], strict=True))
        spent = " / ".join(f"{statistics.median(cpu[k]):.1f}" for k in letters)
        pairs = zip(results[theirs], results[ours], strict=True)
        differences = np.concatenate([np.abs(x - y) for x, y in pairs])
        print(f"  {name:9}{sum(len(r.ids) for r in own):8}"
              + "".join(f"{seconds:14.2f} s" for seconds in medians)
              + f"{ratio:8.2f}{spent:>14}{differences.mean():11.1e}", flush=True)  # fmt: skip
    for worker in workers.values():
        worker.connection.send(None)
