"""How fast jaxscore is against PyTorch, on a GPT-2-124M-shaped random checkpoint made on the spot.

    python tools/bench.py                     all workloads, medians of 3 turns, about 10 minutes
    python tools/bench.py --turns 5 answers   one workload, more turns
    python tools/bench.py --small             a 2-layer model, to see that it works

Contenders, each in a process of its own, in turns, so that no one's threads or memory disturb
another and a slow minute of the machine hits all:

    a  the published way: PyTorch, one forward a request, log-softmax of all logits
    b  PyTorch, length-sorted padded batches of 16
    c  jaxscore float32
    d  jaxscore bfloat16

Needs the `test` extra (PyTorch). Run it on a quiet machine.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 16  # requests a padded PyTorch batch
CONTENDERS = {"a": "torch 1 by 1", "b": "torch batch 16", "c": "jaxscore f32", "d": "jaxscore bf16"}


@dataclass(frozen=True)
class Tokens:
    """A request: int32 ids, scored from `start` on."""

    ids: np.ndarray
    start: int


def workloads(vocab: int) -> dict[str, list[Tokens]]:
    """Random ids, shaped as the systems' requests are."""
    rng = np.random.default_rng(0)

    def text(n: int) -> np.ndarray:
        return rng.integers(0, vocab, n).astype(np.int32)

    def request(*parts: np.ndarray) -> Tokens:
        ids = np.concatenate(parts)
        return Tokens(ids, len(ids) - len(parts[-1]))

    questions = [text(120) for _ in range(16)]
    answers = [request(q, text(12)) for q in questions for _ in range(5)]
    prompt = text(300)
    shared = [
        request(prompt, question, text(4))
        for question in [text(15) for _ in range(40)]
        for _ in "ab"
    ]
    systems, paths = [text(20), text(12)], []
    for _ in range(20):
        support, question, answer = text(14), text(12), text(3)
        for system in systems:
            paths += [request(system, question, answer), request(system, support, question, answer)]
    plain = [Tokens(text(int(n)), 0) for n in rng.integers(40, 200, 64)]
    return {"answers": answers, "prompt": shared, "paths": paths, "plain": plain}


def make_checkpoint(folder: Path, small: bool) -> None:
    """A random GPT-2 and a tokenizer that is never used but must be there."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=256, n_head=4) if small else GPT2Config()
    GPT2LMHeadModel(config).save_pretrained(folder)
    words = {"a": 0, "[UNK]": 1}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)


class TorchContender:
    """Full logits, as the published scripts have them."""

    def __init__(self, folder: Path, batch: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.batch = torch, batch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        """Log-probabilities of each request's scored tokens."""
        torch = self.torch
        order = sorted(range(len(requests)), key=lambda k: len(requests[k].ids))
        out: list[Any] = [None] * len(requests)
        with torch.inference_mode():
            for first in range(0, len(order), self.batch):
                part = order[first : first + self.batch]
                longest = max(len(requests[k].ids) for k in part)
                ids = torch.zeros(len(part), longest, dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, k in enumerate(part):
                    n = len(requests[k].ids)
                    ids[row, :n] = torch.from_numpy(requests[k].ids)
                    mask[row, :n] = 1
                extra = {"attention_mask": mask} if len(part) > 1 else {}
                logits = self.model(ids, use_cache=False, **extra).logits
                logprob = torch.log_softmax(logits[:, :-1].float(), dim=-1)
                logprob = logprob.gather(2, ids[:, 1:, None])[:, :, 0].numpy()
                for row, k in enumerate(part):
                    request = requests[k]
                    out[k] = logprob[row, max(request.start, 1) - 1 : len(request.ids) - 1].copy()
        return out

    def facts(self) -> dict[str, Any]:
        return {"compiled": 0, "compile_s": 0.0}

    def peak(self) -> float:
        """GFLOP/s of this library's best product of the model's kind."""
        torch = self.torch
        x, w = torch.randn(2048, 768), torch.randn(3072, 768)
        return best_rate(lambda: torch.nn.functional.linear(x, w), 2 * 2048 * 768 * 3072)


class JaxContender:
    """The public API, from token ids."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from jaxscore import Scorer

        self.dtype = dtype
        self.scorer = Scorer.from_pretrained(str(folder), dtype=dtype)

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        from jaxscore.forest import TokenSequence

        scorer = self.scorer
        scorer.tokens_given = scorer.tokens_unique = scorer.tokens_scored = 0
        scores = scorer.score_sequences([TokenSequence(r.ids, r.start) for r in requests])
        return [one.logprob for one in scores]

    def facts(self) -> dict[str, Any]:
        s = self.scorer
        return {
            "compiled": len(s.compiled),
            "compile_s": sum(c.seconds for c in s.compiled),
            "shapes": sorted({(c.rows, c.row_length) for c in s.compiled}),
            "given": s.tokens_given,
            "unique": s.tokens_unique,
            "scored": s.tokens_scored,
        }

    def peak(self) -> float:
        import jax
        import jax.numpy as jnp

        from jaxscore.device.dots import dot_last

        x = jnp.ones((2048, 768))
        w = jnp.ones((3072, 768), self.dtype)
        product = jax.jit(dot_last)
        return best_rate(lambda: product(x, w).block_until_ready(), 2 * 2048 * 768 * 3072)


def best_rate(product: Any, flops: float) -> float:
    """GFLOP/s of the fastest of 20 calls."""
    product()
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - started)
    return flops / min(seconds) / 1e9


def serve(name: str, folder: Path, connection: Connection) -> None:
    """A contender's process: answers ("run", requests), "facts" and "peak" until told to stop."""
    made: TorchContender | JaxContender
    if name in "ab":
        made = TorchContender(folder, 1 if name == "a" else BATCH)
    else:
        made = JaxContender(folder, "float32" if name == "c" else "bfloat16")
    while (message := connection.recv()) is not None:
        if message == "peak":
            connection.send(made.peak())
        elif message == "facts":
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            connection.send({**made.facts(), "peak_mb": rss})
        else:
            started = time.perf_counter()
            out = made.run(message)
            connection.send((time.perf_counter() - started, out))


class Worker:
    """The parent's end of a contender."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, folder, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, message: Any) -> Any:
        self.connection.send(message)
        return self.connection.recv()


def flops(requests: list[Tokens], facts: dict[str, Any], width: int, layers: int, V: int) -> float:
    """Of the products that a perfect scorer must do: linear layers of unique tokens, the head of
    scored ones. Attention is left out: it is a few per cent here."""
    return 2.0 * (facts["unique"] * 12 * layers * width**2 + facts["scored"] * width * V)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help="answers, prompt, paths, plain (default: all)")
    parser.add_argument("--turns", type=int, default=3, help="timed turns of each (default 3)")
    parser.add_argument("--small", action="store_true", help="2 layers of width 256")
    parser.add_argument(
        "--contenders", default="abcd", help="letters of those to run (default abcd)"
    )
    args = parser.parse_args()
    if strange := sorted(set(args.contenders) - set(CONTENDERS)):
        parser.error(f"no contender {strange}; there are {', '.join(CONTENDERS)}")
    layers, width, vocab = (2, 256, 50257) if args.small else (12, 768, 50257)
    todo = workloads(vocab)
    if unknown := sorted(set(args.workloads) - set(todo)):
        parser.error(f"no workload {unknown}; there are {', '.join(todo)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, args.small)
        workers = {letter: Worker(letter, folder) for letter in args.contenders}
        peaks = {letter: worker.ask("peak") for letter, worker in workers.items()}
        print("matmul peak, GFLOP/s:", {CONTENDERS[k]: round(v) for k, v in peaks.items()})
        for workload in args.workloads or todo:
            requests = todo[workload]
            times: dict[str, list[float]] = {letter: [] for letter in workers}
            results: dict[str, list[np.ndarray]] = {}
            for turn in range(args.turns + 1):  # the first warms up and compiles
                for letter, worker in workers.items():
                    seconds, results[letter] = worker.ask(requests)
                    if turn:
                        times[letter].append(seconds)
                    print(f"\r{workload} turn {turn} {letter} {seconds:.2f} s  ", end="",
                          file=sys.stderr, flush=True)  # fmt: skip
            print(file=sys.stderr)
            facts = {letter: worker.ask("facts") for letter, worker in workers.items()}
            report(workload, requests, times, results, facts, peaks, (width, layers, vocab))
        for worker in workers.values():
            worker.connection.send(None)
    return 0


def report(
    workload: str,
    requests: list[Tokens],
    times: dict[str, list[float]],
    results: dict[str, list[np.ndarray]],
    facts: dict[str, dict[str, Any]],
    peaks: dict[str, float],
    shape: tuple[int, int, int],
) -> None:
    """One workload's table; ratios are medians of the turns' ratios."""
    ours = next((facts[k] for k in "cd" if k in facts), None)
    given = sum(len(r.ids) for r in requests)
    line = f"\n{workload}: {len(requests)} requests, {given} tokens given"
    if ours:
        line += f", {ours['unique']} unique, {ours['scored']} scored"
    print(line)
    print(f"  {'':16}{'median s':>9}{'given tok/s':>13}{'vs a':>7}{'vs b':>7}"
          f"{'of peak':>9}{'MB so far':>10}{'compiles':>10}{'worst diff':>12}")  # fmt: skip
    reference = results.get("a") or results.get("b")
    for letter, seconds in times.items():
        median = statistics.median(seconds)
        ratios = [
            f"{statistics.median(x / y for x, y in zip(times[k], seconds, strict=True)):.2f}"
            if k in times
            else "-"
            for k in "ab"
        ]
        share = (
            f"{flops(requests, ours, *shape) / median / 1e9 / peaks[letter]:.0%}" if ours else "-"
        )
        fact = facts[letter]
        compiles = f"{fact['compiled']}/{fact['compile_s']:.1f}s" if fact["compiled"] else "-"
        worst = max(
            float(np.abs(x - y).max())
            for x, y in zip(results[letter], reference or results[letter], strict=True)
            if len(x)
        )
        print(
            f"  {CONTENDERS[letter]:16}{median:9.2f}{given / median:13.0f}{ratios[0]:>7}"
            f"{ratios[1]:>7}{share:>9}{fact['peak_mb']:10.0f}{compiles:>10}{worst:12.1e}"
        )
    if ours:
        print(f"  shapes compiled so far (rows, row length): {ours['shapes']}")


if __name__ == "__main__":
    sys.exit(main())
