"""`serve`: what requests that come together save, against the same ones one by one."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tools.benchmarks import random_llama

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 32
WARM_UPS = 8
PROMPT, QUESTION, ANSWER, ANSWERS = 300, 40, 8, 4  # tokens, and answers to each question


class Taken(NamedTuple):
    """Duration and counts of one pass over all prompts."""

    seconds: float
    computed: float


def run(turns: int, *, small: bool) -> None:
    """Print requests and tokens per second of one client and of many, as lm-eval asks."""
    shape = random_llama.TINY if small else random_llama.REALISTIC
    prompts = _prompts(8 if small else 50, shape.vocab)
    with tempfile.TemporaryDirectory() as folder:
        random_llama.write(Path(folder), shape)
        command = [sys.executable, "-m", "jaxscore", "serve", "--model", folder, "--port", "0"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [*command, "--quiet"], stdout=subprocess.PIPE, text=True, env=environment
        ) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(":")[2])
            try:
                taken: dict[int, list[Taken]] = {1: [], CLIENTS: []}
                for n in taken:
                    _warm_up(port, prompts, n)
                for _ in range(turns):
                    for n, passes in taken.items():
                        passes.append(_pass(port, prompts, n))
            finally:
                server.terminate()
    n_given = sum(map(len, prompts))
    print(
        f"\nserve: {shape.parameters / 1e6:.1f} million parameters, {len(prompts)} requests of "
        f"one prompt, {n_given} tokens; system load {os.getloadavg()[0]:.2f}"
    )
    for n, passes in taken.items():
        seconds = statistics.median(pass_taken.seconds for pass_taken in passes)
        computed = statistics.median(pass_taken.computed for pass_taken in passes)
        print(
            f"  {n:2} clients: {len(prompts) / seconds:8.1f} requests/s, {n_given / seconds:9.0f} "
            f"tokens/s; {n_given / computed:.2f} tokens given for each computed",
            flush=True,
        )
    ratios = [a.seconds / b.seconds for a, b in zip(*taken.values(), strict=True)]
    print(f"  {CLIENTS} clients are {statistics.median(ratios):.2f} times as fast")


def _prompts(questions: int, vocab: int) -> list[list[int]]:
    """Answers to questions under one prompt, in the order in which a harness asks them."""
    draw = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        return draw.integers(2, vocab, n).tolist()

    shared = ids(PROMPT)
    question_ids = [ids(QUESTION) for _ in range(questions)]
    return [[*shared, *question, *ids(ANSWER)] for question in question_ids for _ in range(ANSWERS)]


def _warm_up(port: int, prompts: list[list[int]], n_clients: int) -> None:
    """Passes until one of them compiles nothing: windows of several sizes are several programs."""
    for _ in range(WARM_UPS):
        before = _counter(port, "programs_compiled")
        _pass(port, prompts, n_clients)
        if _counter(port, "programs_compiled") == before:
            return


def _pass(port: int, prompts: list[list[int]], n_clients: int) -> Taken:
    before, started = _counter(port, "tokens_computed"), time.perf_counter()
    free: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()

    def ask(prompt: list[int]) -> None:
        connection = free.get()
        body = {"prompt": [prompt], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == len(prompt) + 1, answer
        free.put(connection)

    with contextlib.ExitStack() as stack:
        for _ in range(n_clients):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            free.put(stack.enter_context(contextlib.closing(connection)))
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(n_clients))
        list(pool.map(ask, prompts))
    return Taken(time.perf_counter() - started, _counter(port, "tokens_computed") - before)


def _counter(port: int, name: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    prefix = f"jaxscore_{name}_total "
    return next(float(line[len(prefix) :]) for line in text.splitlines() if line.startswith(prefix))
