"""`shards`: short lines over 100 files against a simulated device, beside one file of a tenth."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tools.benchmarks import host, random_llama

FILES = 100
REQUESTS = 1_000_000  # over all files
TOKENS = 12  # of each line
LISTING = 0.01  # most of the time that listing may take
GROWTH = 1.1  # most of the memory in the last tenth relative to the first tenth


def run(n_requests: int | None, *, small: bool) -> bool:
    """Print the rates, memory and share of listing; whether memory and listing are in bounds."""
    n = (n_requests or (FILES * 20 if small else REQUESTS)) // FILES * FILES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_llama.write(folder, random_llama.TINY)
        draw, words = np.random.default_rng(0), one_token_words()
        (folder / "in").mkdir()
        for k in range(FILES):
            write_lines(folder / f"in/{k:03}.jsonl", n // FILES, draw, words)
        write_lines(folder / "requests.jsonl", n // 10, draw, words)
        few = _turn("summaries", n // 10, folder)
        many = _turn("shards", n, folder)
    share = many["listing"] / many["seconds"]
    growth = many["rss"][-1] / many["rss"][0]
    good = share < LISTING and growth < GROWTH
    cpu = [1e6 * turn["cpu"] / n_lines for turn, n_lines in ((many, n), (few, n // 10))]
    print(
        f"\nshards: {n:,} lines of {TOKENS} tokens over {FILES} files, a device that answers at "
        f"once\n  {n / many['seconds']:,.0f} lines a second, {_rate(many) / _rate(few):.2f} of the "
        f"rate of one file of {n // 10:,}; {many['seconds']:.0f} s\n"
        f"  CPU microseconds a line: {cpu[0]:.0f}, of one file {cpu[1]:.0f}\n"
        f"  MB of memory in each tenth: {', '.join(f'{rss / 1e6:.0f}' for rss in many['rss'])}; "
        f"listing {100 * share:.2f} % of the time: "
        f"{'ok' if good else 'TOO MUCH'}; system load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    return good


def one_token_words() -> np.ndarray:
    """Words that are one token each, with their blank."""
    tokenizer = Tokenizer.from_file(str(random_llama.DEMO / "tokenizer.json"))
    names = [tokenizer.decode([id]) for id in range(tokenizer.get_vocab_size())]
    return np.array([name for name in names if name[:1] == " " and name[1:].isalpha()])


def write_lines(path: Path, n: int, draw: np.random.Generator, words: np.ndarray) -> None:
    """n lines of TOKENS tokens, BOS included."""
    with open(path, "w", encoding="utf-8") as file:
        for k, picked in enumerate(draw.integers(len(words), size=(n, TOKENS - 1))):
            text = "".join(words[picked])
            file.write(json.dumps({"id": f"{path.stem}-{k}", "continuation": text}) + "\n")


def _turn(work: str, n: int, folder: Path) -> dict[str, Any]:
    return host.one_turn(host.ROOT, host.Kind(work, n, host.ENDLESS, work), folder)


def _rate(facts: dict[str, Any]) -> float:
    return float(facts["tokens"] / facts["seconds"])
