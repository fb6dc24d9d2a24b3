"""llama.cpp on a GGUF file's own blocks, through llama-cpp-python: a shared prefix is computed once
and its cells are given to each sequence."""

import importlib.util
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tools.benchmarks.token_requests import Tokens

CELLS, BATCH, SEQUENCES = 4096, 512, 64
LEAST_PREFIX = 32  # tokens that inputs of one group have in common


def reason_to_skip(model: Path) -> str | None:
    """Why llama.cpp cannot run a model here, or None if it can."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    return None if model.is_file() else f"{model.name} is not a GGUF file"


class LlamaContender:
    """Scores by `llama_decode`, with logits at scored positions alone."""

    def __init__(self, model: Path) -> None:
        import llama_cpp.llama_cpp as api
        import torch

        self.api, self.torch = api, torch
        self.silent = api.llama_log_callback(lambda *_: None)  # kept, since C calls it
        api.llama_log_set(self.silent, None)
        self.model = api.llama_model_load_from_file(
            str(model).encode(), api.llama_model_default_params()
        )
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = CELLS, BATCH, BATCH
        options.n_seq_max, options.kv_unified = SEQUENCES, True
        options.n_threads = options.n_threads_batch = os.cpu_count() or 1
        self.context = api.llama_init_from_model(self.model, options)
        self.memory = api.llama_get_memory(self.context)
        self.n_tokens = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.batch = api.llama_batch_init(BATCH, 0, 1)

    def run(self, requests: list[Tokens]) -> list[np.ndarray]:
        """Log-probabilities of each request's scored tokens."""
        by_input: dict[tuple[int, ...], list[int]] = {}
        for k, request in enumerate(requests):
            by_input.setdefault(tuple(request.ids[:-1].tolist()), []).append(k)
        out: list[Any] = [None] * len(requests)
        for _, group in groupby(sorted(by_input), key=lambda ids: ids[:LEAST_PREFIX]):
            self._score_group(requests, by_input, list(group), out)
        return out

    def _score_group(
        self,
        requests: list[Tokens],
        by_input: dict[tuple[int, ...], list[int]],
        inputs: list[tuple[int, ...]],
        out: list[Any],
    ) -> None:
        """Score inputs with a common prefix, whose cells every other sequence takes over."""
        first, last = inputs[0], inputs[-1]  # of sorted inputs, so they have the least in common
        common = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
        every: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, ids in enumerate(inputs):
            for k in by_input[ids]:
                for position in range(max(requests[k].start, 1) - 1, len(ids)):
                    sequence = 0 if position < common else number + 1
                    every.setdefault((sequence, position), []).append((k, position))
        for k in (k for ids in inputs for k in by_input[ids]):
            n = len(requests[k].ids) - max(requests[k].start, 1)
            out[k] = np.empty(n, np.float32)
        self.api.llama_memory_clear(self.memory, False)
        self._decode(
            [(0, position, first[position]) for position in range(common)], every, requests, out
        )
        for chunk in _chunks(inputs, common):
            for sequence in range(1, len(chunk) + 1):
                self.api.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
            tokens = [
                (number + 1, position, inputs[number][position])
                for number in chunk
                for position in range(common, len(inputs[number]))
            ]
            self._decode(tokens, every, requests, out, chunk.start)
            for sequence in range(1, len(chunk) + 1):
                self.api.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def _decode(
        self,
        tokens: list[tuple[int, int, int]],
        every: dict[tuple[int, int], list[tuple[int, int]]],
        requests: list[Tokens],
        out: list[Any],
        offset: int = 0,
    ) -> None:
        """Compute tokens (sequence, position, id), and what is scored after them."""
        for start in range(0, len(tokens), BATCH):
            chunk = tokens[start : start + BATCH]
            self.batch.n_tokens = len(chunk)
            scored = []
            for row, (sequence, position, token) in enumerate(chunk):
                self.batch.token[row], self.batch.pos[row] = token, position
                self.batch.n_seq_id[row] = 1
                self.batch.seq_id[row][0] = sequence - offset if sequence else 0
                self.batch.logits[row] = (sequence, position) in every
                if self.batch.logits[row]:
                    scored.append((sequence, position))
            if self.api.llama_decode(self.context, self.batch):
                raise RuntimeError("llama_decode failed")
            if not scored:
                continue
            array = np.ctypeslib.as_array(
                self.api.llama_get_logits(self.context), (len(scored), self.n_tokens)
            )
            logits = self.torch.from_numpy(array)
            totals = logits.logsumexp(-1)
            for row, key in enumerate(scored):
                for k, position in every[key]:
                    request = requests[k]
                    logprob = logits[row, int(request.ids[position + 1])] - totals[row]
                    out[k][position + 1 - max(request.start, 1)] = float(logprob)

    def facts(self) -> dict[str, Any]:
        return {"compiled": 0, "compile_s": 0.0}


def _chunks(inputs: list[tuple[int, ...]], common: int) -> Iterator[range]:
    """Yield ranges of inputs that fit the sequences and cells of a context next to the prefix."""
    start, cells = 0, common
    for number, ids in enumerate(inputs):
        more = len(ids) - common
        if number > start and (number - start == SEQUENCES - 1 or cells + more > CELLS):
            yield range(start, number)
            start, cells = number, common
        cells += more
    yield range(start, len(inputs))
