"""PyTorch and jaxscore on the same requests, each in a separate process."""

import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks.llama_cpp import LlamaContender
from tools.benchmarks.token_requests import Tokens

BATCH = 16  # requests a padded PyTorch batch
CONTENDERS = {
    "a": "torch 1 by 1",
    "b": "torch batch 16",
    "c": "jaxscore f32",
    "d": "jaxscore bf16",
    "e": "jaxscore int8",
    "f": "torch f32",
    "g": "torch bf16",
    "h": "jaxscore f32, unshared",
    "l": "llama.cpp",
}


def make_checkpoint(folder: Path, small: bool) -> None:
    """A random GPT-2."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small_shape = {"n_layer": 2, "n_embd": 256, "n_head": 4} if small else {}
    config = GPT2Config(n_positions=2048, eos_token_id=None, bos_token_id=None, **small_shape)
    save_with_tokenizer(GPT2LMHeadModel(config), folder)


def save_with_tokenizer(model: Any, folder: Path) -> None:
    """Save a model, and a tokenizer that is never used but must be there."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
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
                chunk = order[first : first + self.batch]
                longest = max(len(requests[k].ids) for k in chunk)
                ids = torch.zeros(len(chunk), longest, dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, k in enumerate(chunk):
                    n = len(requests[k].ids)
                    ids[row, :n] = torch.from_numpy(requests[k].ids)
                    mask[row, :n] = 1
                extra = {"attention_mask": mask} if len(chunk) > 1 else {}
                logits = self.model(ids, use_cache=False, **extra).logits
                logprob = torch.log_softmax(logits[:, :-1].float(), dim=-1)
                logprob = logprob.gather(2, ids[:, 1:, None])[:, :, 0].numpy()
                for row, k in enumerate(chunk):
                    request = requests[k]
                    out[k] = logprob[row, max(request.start, 1) - 1 : len(request.ids) - 1].copy()
        return out

    def write(self, requests: list[Tokens], n_new: int) -> list[np.ndarray]:
        """Greedy tokens after each request's ids, batches padded on the left."""
        torch = self.torch
        out: list[np.ndarray] = []
        for first in range(0, len(requests), self.batch):
            chunk = requests[first : first + self.batch]
            longest = max(len(request.ids) for request in chunk)
            ids = torch.zeros(len(chunk), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, request in enumerate(chunk):
                ids[row, longest - len(request.ids) :] = torch.from_numpy(request.ids)
                mask[row, longest - len(request.ids) :] = 1
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

    def __init__(
        self, folder: Path, dtype: str, quantize: str | None, reproducible: bool = False
    ) -> None:
        from jaxscore import Scorer

        self.dtype = dtype
        self.scorer = Scorer.from_pretrained(
            str(folder), dtype=dtype, quantize=quantize, reproducible=reproducible
        )

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        from jaxscore.plan.requests import TokenSequence

        scorer = self.scorer
        scorer.begin_output()
        scores = scorer.score_sequences([TokenSequence(r.ids, r.start) for r in requests])
        return [scored.logprob for scored in scores]

    def write(self, requests: list[Tokens], n_new: int) -> list[np.ndarray]:
        from jaxscore.engine.generation import Generator
        from jaxscore.types.requests import GenerationRequest

        generator = Generator(self.scorer)
        generator.encoder = OfIds([request.ids for request in requests], self.scorer.encoder)
        asked = [GenerationRequest(k, str(k), n_new) for k in range(len(requests))]
        return [text.token_ids for text in generator.generate(asked)]

    def facts(self) -> dict[str, Any]:
        s = self.scorer
        counts = s.statistics.facts()["counts"]
        return {
            "compiled": len(s.engine.programs.compiled),
            "compile_s": sum(c.seconds for c in s.engine.programs.compiled),
            "shapes": sorted({c.name for c in s.engine.programs.compiled}),
            "given": counts["tokens_given"],
            "unique": counts["tokens_unique"],
            "scored": counts["tokens_scored"],
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
    """An encoder whose text k is the k-th list of ids, since the benchmark has only ids."""

    def __init__(self, ids: list[np.ndarray], encoder: Any) -> None:
        self.ids, self.tokenizer = ids, encoder.tokenizer

    def prompt_ids(self, prompts: list[str]) -> list[np.ndarray]:
        return [self.ids[int(prompt)] for prompt in prompts]


class SelectiveTorchContender:
    """sdpa attention, batches sorted by length, the LM head at scored positions only.

    Requests that differ in their last token alone, the only scored one, share a forward pass.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        options = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa"}
        location: tuple[Any, dict[str, Any]] = (folder, {})
        if folder.is_file():
            location = folder.parent, {"gguf_file": folder.name}
        self.model = AutoModelForCausalLM.from_pretrained(
            location[0], **location[1], **options
        ).eval()

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        """Log-probabilities of each request's scored tokens."""
        torch = self.torch
        groups: dict[tuple[bytes, int], list[int]] = {}
        for k, request in enumerate(requests):
            is_label = request.start == len(request.ids) - 1
            prefix_ids = request.ids[: request.start] if is_label else request.ids
            groups.setdefault((prefix_ids.tobytes(), -1 if is_label else k), []).append(k)
        order = sorted(groups.values(), key=lambda group: len(requests[group[0]].ids))
        out: list[Any] = [None] * len(requests)
        with torch.inference_mode():
            for first in range(0, len(order), BATCH):
                self._score(requests, order[first : first + BATCH], out)
        return out

    def _score(self, requests: list[Tokens], groups: list[list[int]], out: list[Any]) -> None:
        torch = self.torch
        longest = max(len(requests[group[0]].ids) for group in groups) - 1
        ids = torch.zeros(len(groups), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, group in enumerate(groups):
            input_ids = requests[group[0]].ids[:-1]
            ids[row, : len(input_ids)] = torch.from_numpy(input_ids)
            mask[row, : len(input_ids)] = 1
        states = self.model.base_model(ids, attention_mask=mask, use_cache=False)[0]
        for row, group in enumerate(groups):
            request = requests[group[0]]
            scored = states[row, max(request.start, 1) - 1 : len(request.ids) - 1]
            logprob = torch.log_softmax(self.model.get_output_embeddings()(scored).float(), dim=-1)
            for k in group:
                request = requests[k]
                targets = torch.from_numpy(request.ids[max(request.start, 1) :]).long()
                out[k] = logprob.gather(1, targets[:, None])[:, 0].numpy().copy()

    def facts(self) -> dict[str, Any]:
        return {"compiled": 0, "compile_s": 0.0}


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
    """A contender's process: answers requests, (requests, tokens to write), "facts", "peak" and
    "cpu" (seconds of the process) until it receives None."""
    contender: Any
    if name in "ab":
        contender = TorchContender(folder, 1 if name == "a" else BATCH)
    elif name in "fg":
        contender = SelectiveTorchContender(folder, "float32" if name == "f" else "bfloat16")
    elif name == "l":
        contender = LlamaContender(folder)
    else:
        dtype = "float32" if name in "ch" else "bfloat16"
        contender = JaxContender(folder, dtype, "int8" if name == "e" else None, name == "h")
    while (message := connection.recv()) is not None:
        if message == "peak":
            connection.send(contender.peak())
        elif message == "cpu":
            connection.send(time.process_time())
        elif message == "facts":
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            connection.send({**contender.facts(), "peak_mb": rss})
        else:
            started = time.perf_counter()
            out = (
                contender.write(*message) if isinstance(message, tuple) else contender.run(message)
            )
            connection.send((time.perf_counter() - started, out))


class Worker:
    """The parent's end of a contender."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=serve, args=(name, folder, child_end), daemon=True)
        self.process.start()
        child_end.close()

    def ask(self, message: Any) -> Any:
        self.connection.send(message)
        return self.connection.recv()
