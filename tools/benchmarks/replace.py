"""`replace`: rows of finished texts go to the next texts, against groups that wait for their
longest.

Predicted by counting steps, which take as long for idle rows as for others, of 160 texts in 32
rows. Where each text says how long it will be (16 to 256 tokens), a group's texts are of like
length already: 0.93 of the time, 0.73 of the rows in use instead of 0.68. Where all may have 256
tokens and each ends by chance, after 97 on average: 0.58, and 0.67 instead of 0.38. Filling rows
adds about a per cent. With 2,000 texts the ratios would be 0.84 and 0.44.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.benchmarks import random_llama

N_TEXTS = 160
PROMPT = 24  # tokens
SHORTEST, LONGEST = 16, 256  # new ones
MEAN = 100  # of texts that end by chance
CLOCKS = {"wall": time.perf_counter, "CPU": time.process_time}  # the second one heeds no other work


class Rows(NamedTuple):
    """Steps of rows: all of them, and those that wrote a token."""

    all: int
    active: int


def run(turns: int, *, small: bool) -> None:
    """Print for both kinds of texts the use of the rows, and the ratio of time turn by turn."""
    from jaxscore import Scorer

    shape = random_llama.TINY if small else random_llama.REALISTIC
    with tempfile.TemporaryDirectory() as folder:
        random_llama.write(Path(folder), shape)
        scorer = Scorer.from_pretrained(folder, device="cpu", dtype="float32")
        for name, asked in requests(shape.vocab).items():
            _measure(name, scorer, asked, turns)


def requests(vocab: int) -> dict[str, list[Any]]:
    """Texts that say how long they will be, and texts that end by chance.

    The model is nearly uniform over its vocabulary, so that one token of a hundredth of it comes
    after a hundred tokens on average.
    """
    from jaxscore.types.requests import GenerationRequest

    draw = np.random.default_rng(0)
    prompts = draw.integers(2, vocab, (N_TEXTS, PROMPT)).astype(np.int32)
    n_new = draw.integers(SHORTEST, LONGEST + 1, N_TEXTS).tolist()
    ends = tuple(range(2, 2 + vocab // MEAN))
    return {
        "lengths that are requested": [
            GenerationRequest(k, ids, n, eos_ids=())
            for k, (ids, n) in enumerate(zip(prompts, n_new, strict=True))
        ],
        "lengths by chance": [
            GenerationRequest(k, ids, LONGEST, 1.0, seed=k, eos_ids=ends)
            for k, ids in enumerate(prompts)
        ],
    }


def _measure(name: str, scorer: Any, asked: list[Any], turns: int) -> None:
    taken: dict[bool, dict[str, list[float]]] = {
        way: {clock: [] for clock in CLOCKS} for way in (False, True)
    }
    used: dict[bool, Rows] = {}
    texts: dict[bool, list[Any]] = {}
    for turn in range(turns + 1):
        for replaced, seconds in taken.items():
            with _lanes(replaced), _counted() as blocks:
                before = {clock: read() for clock, read in CLOCKS.items()}
                texts[replaced] = scorer.generate(asked)
                turn_seconds = {clock: read() - before[clock] for clock, read in CLOCKS.items()}
            used[replaced] = Rows(*map(sum, zip(*blocks, strict=True)))
            for clock in CLOCKS if turn else ():  # the first compiles
                seconds[clock].append(turn_seconds[clock])
    lengths = [len(text.token_ids) for text in texts[True]]
    same = sum(
        text.token_ids.tolist() == other.token_ids.tolist()
        for text, other in zip(texts[False], texts[True], strict=True)
    )
    share = {way: rows.active / rows.all for way, rows in used.items()}
    print(
        f"\nreplace, {name}: {len(asked)} texts of {min(lengths)} to {max(lengths)} tokens, "
        f"{np.mean(lengths):.0f} on average, {same} of them the same both ways; "
        f"{statistics.median(taken[False]['wall']):.2f} s in groups; medians of {turns} turns; "
        f"system load {os.getloadavg()[0]:.2f}\n"
        f"  rows in use: groups {share[False]:.2f}, replaced {share[True]:.2f}\n"
        f"  steps {used[True].all / used[False].all:.3f}",
        flush=True,
    )
    for clock in CLOCKS:
        pairs = zip(taken[False][clock], taken[True][clock], strict=True)
        ratios = [b / a for a, b in pairs]
        print(
            f"  {clock:6}{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )


@contextmanager
def _lanes(replaced: bool) -> Iterator[None]:
    """Without replacement each group has a cache, which ends when its longest text does."""
    from jaxscore.plan import decode_slots

    genuine = decode_slots.group_by_cache_shape
    if not replaced:
        decode_slots.group_by_cache_shape = lambda groups: [[group] for group in groups]
    try:
        yield
    finally:
        decode_slots.group_by_cache_shape = genuine


@contextmanager
def _counted() -> Iterator[list[Rows]]:
    """The rows of each block of steps."""
    from jaxscore.device.generate import NO_TOKEN
    from jaxscore.engine.generation.slots import SlotTable

    genuine, blocks = SlotTable._decode_block, list[Rows]()

    def counted(self: Any, everything: Any) -> Any:
        everything, tokens = genuine(self, everything)
        written = tokens != NO_TOKEN
        blocks.append(Rows(len(tokens) * int(written.any(axis=0).sum()), int(written.sum())))
        return everything, tokens

    SlotTable._decode_block = counted  # type: ignore[method-assign]
    try:
        yield blocks
    finally:
        SlotTable._decode_block = genuine  # type: ignore[method-assign]
