"""How fast jaxscore is against PyTorch, on a GPT-2-124M-shaped random checkpoint made on the spot.

    python tools/bench.py                     all workloads, medians of 3 turns, about 30 minutes
    python tools/bench.py --turns 5 answers   one workload, more turns
    python tools/bench.py trunk --contenders cd
    python tools/bench.py --small             a 2-layer model, to see that it works

Contenders, each in a process of its own, in turns, so that no one's threads or memory disturb
another and a slow minute of the machine hits all:

    a  the published way: PyTorch, one forward a request, log-softmax of all logits
    b  PyTorch, length-sorted padded batches of 16
    c  jaxscore float32
    d  jaxscore bfloat16
    e  jaxscore with int8 weights and bfloat16 products; only where asked for

Two workloads are of another kind. `write` generates 32 tokens for each of 48 prompts, greedily.
`trunk` is 2,000 questions with two answers each on one prompt of 1,500 tokens, which PyTorch
would need hours for: it is held against jaxscore's own cost of a token in texts as long that
share nothing, scored as densely, so 1.0 means that only unique tokens cost anything.

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
WRITTEN = 32  # tokens generated a prompt
CONTENDERS = {
    "a": "torch 1 by 1",
    "b": "torch batch 16",
    "c": "jaxscore f32",
    "d": "jaxscore bf16",
    "e": "jaxscore int8",
}


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
    starts = [Tokens(text(int(n)), 0) for n in rng.integers(40, 120, 48)]
    return {
        "answers": answers,
        "prompt": shared,
        "paths": paths,
        "plain": plain,
        "write": starts,
        "trunk": [],
    }


def trunk_pair(vocab: int, small: bool) -> tuple[list[Tokens], list[Tokens]]:
    """Questions on one long prompt, and whole texts as long with as many scored tokens a token."""
    rng = np.random.default_rng(1)

    def text(n: int) -> np.ndarray:
        return rng.integers(0, vocab, n).astype(np.int32)

    prompt, asked = text(1500), []
    for _ in range(200 if small else 2000):
        question = np.concatenate([prompt, text(24)])
        asked += [Tokens(np.concatenate([question, text(3)]), len(question)) for _ in "ab"]
    # A question's 24 tokens and two answers' first two are nodes; five of them are scored from.
    dense = round(1527 * 5 / 28)
    return asked, [Tokens(text(1527), 1527 - dense) for _ in range(10)]


def make_checkpoint(folder: Path, small: bool) -> None:
    """A random GPT-2 and a tokenizer that is never used but must be there."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    small_shape = {"n_layer": 2, "n_embd": 256, "n_head": 4} if small else {}
    config = GPT2Config(n_positions=2048, eos_token_id=None, bos_token_id=None, **small_shape)
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

    def write(self, requests: list[Tokens], n_new: int) -> list[np.ndarray]:
        """Greedy tokens after each request's ids, batches padded on the left."""
        torch = self.torch
        out: list[np.ndarray] = []
        for first in range(0, len(requests), self.batch):
            part = requests[first : first + self.batch]
            longest = max(len(one.ids) for one in part)
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, one in enumerate(part):
                ids[row, longest - len(one.ids) :] = torch.from_numpy(one.ids)
                mask[row, longest - len(one.ids) :] = 1
            written = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=n_new, do_sample=False, pad_token_id=0
            )
            out += list(written[:, longest:].numpy())
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

    def __init__(self, folder: Path, dtype: str, quantize: str | None) -> None:
        from jaxscore import Scorer

        self.dtype = dtype
        self.scorer = Scorer.from_pretrained(str(folder), dtype=dtype, quantize=quantize)

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        from jaxscore.forest import TokenSequence

        scorer = self.scorer
        scorer.tokens_given = scorer.tokens_unique = scorer.tokens_scored = 0
        scores = scorer.score_sequences([TokenSequence(r.ids, r.start) for r in requests])
        return [one.logprob for one in scores]

    def write(self, requests: list[Tokens], n_new: int) -> list[np.ndarray]:
        from jaxscore.generator import Generator
        from jaxscore.requests import GenerationRequest

        generator = Generator(self.scorer)
        generator.encoder = OfIds([one.ids for one in requests], self.scorer.encoder)
        asked = [GenerationRequest(k, str(k), n_new) for k in range(len(requests))]
        return [one.token_ids for one in generator.generate(asked)]

    def facts(self) -> dict[str, Any]:
        s = self.scorer
        return {
            "compiled": len(s.programs.compiled),
            "compile_s": sum(c.seconds for c in s.programs.compiled),
            "shapes": sorted({c.name for c in s.programs.compiled}),
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


class OfIds:
    """An encoder whose text k is the k-th list of ids: the benchmark has no text."""

    def __init__(self, ids: list[np.ndarray], encoder: Any) -> None:
        self.ids, self.tokenizer = ids, encoder.tokenizer

    def prompt_ids(self, prompts: list[str]) -> list[np.ndarray]:
        return [self.ids[int(prompt)] for prompt in prompts]


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
    """A contender's process: answers requests, (requests, tokens to write), "facts" and "peak"
    until told to stop."""
    made: TorchContender | JaxContender
    if name in "ab":
        made = TorchContender(folder, 1 if name == "a" else BATCH)
    else:
        dtype = "float32" if name == "c" else "bfloat16"
        made = JaxContender(folder, dtype, "int8" if name == "e" else None)
    while (message := connection.recv()) is not None:
        if message == "peak":
            connection.send(made.peak())
        elif message == "facts":
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            connection.send({**made.facts(), "peak_mb": rss})
        else:
            started = time.perf_counter()
            out = made.write(*message) if isinstance(message, tuple) else made.run(message)
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
    parser.add_argument(
        "workloads", nargs="*", help="answers, prompt, paths, plain, write, trunk (default: all)"
    )
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
            if workload == "trunk":
                ours = {letter: worker for letter, worker in workers.items() if letter in "cde"}
                report_trunk(ours, args.turns, *trunk_pair(vocab, args.small))
                continue
            requests = todo[workload]
            message: Any = (requests, WRITTEN) if workload == "write" else requests
            times: dict[str, list[float]] = {letter: [] for letter in workers}
            results: dict[str, list[np.ndarray]] = {}
            for turn in range(args.turns + 1):  # the first warms up and compiles
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
            report(workload, requests, times, results, facts, peaks, (width, layers, vocab))
        for worker in workers.values():
            worker.connection.send(None)
    return 0


def report_write(
    requests: list[Tokens], times: dict[str, list[float]], results: dict[str, list[np.ndarray]]
) -> None:
    """Tokens a second, and how many texts are those of the first contender."""
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


def report_trunk(
    workers: dict[str, Worker], turns: int, asked: list[Tokens], texts: list[Tokens]
) -> None:
    """Seconds a unique token of each, and their ratio."""
    print(f"\ntrunk: {len(asked)} requests on a prompt of 1500 tokens")
    for letter, worker in workers.items():
        ratios, facts = [], {}
        for turn in range(turns + 1):
            whole_s, _ = worker.ask(texts)
            per_token = whole_s / worker.ask("facts")["unique"]
            asked_s, _ = worker.ask(asked)
            facts = worker.ask("facts")
            if turn:
                ratios.append(asked_s / facts["unique"] / per_token)
            print(f"\rtrunk turn {turn} {letter} {asked_s:.1f} s  ", end="", file=sys.stderr)
        print(file=sys.stderr)
        given, unique = facts["given"], facts["unique"]
        print(
            f"  {CONTENDERS[letter]:16}{given} tokens given, {unique} unique; a unique token costs "
            f"{statistics.median(ratios):.2f} of one in texts that share nothing "
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
    """One workload's table; ratios are medians of the turns' ratios."""
    ours = next((facts[k] for k in "cde" if k in facts), None)
    given = sum(len(r.ids) for r in requests)
    line = f"\n{workload}: {len(requests)} requests, {given} tokens given"
    if ours:
        line += f", {ours['unique']} unique, {ours['scored']} scored"
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
