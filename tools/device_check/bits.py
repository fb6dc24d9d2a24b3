"""Check that bits of scores do not depend on order, neighbours, processes and devices.

Two processes score the same texts, the second in another order and with programs that it compiled
itself. The first compares what one process can; the second compares its own bits with the first's.
"""

from collections.abc import Sequence

import jax
import numpy as np

from jaxscore.device.backends import deterministic_options
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import DeviceMesh
from jaxscore.engine.engine import Engine
from jaxscore.plan.requests import TokenSequence
from tools.device_check import random_model, resumed, shapes
from tools.device_check.checks import (
    NOTE,
    SKIPPED,
    Options,
    compare_processes,
    describe_bits,
    record,
    report,
)

FILE = "bits.npz"  # of the first process
DTYPES = ("float32", "bfloat16")
ALONE = "--reproducible"
MODES = {"default": False, ALONE: True}
BY_THEMSELVES = 8  # texts that are also scored one a call


def run(options: Options) -> None:
    """Check what one process can check, and write its bits for the other."""
    record(NOTE, f"XLA options of --reproducible: {deterministic_options() or 'none needed here'}")
    config = _config(options)
    sequences, others = texts(1, config.vocab_size), texts(2, config.vocab_size)
    written = {}
    for dtype in DTYPES[: 1 if options.small else None]:
        if not options.has_time(dtype):
            continue
        model = random_model.from_host(config, dtype)
        scorers = {mode: Engine(model, reproducible=flag) for mode, flag in MODES.items()}
        by_mode = {mode: bits(scorer, sequences) for mode, scorer in scorers.items()}
        for mode, scorer in scorers.items():
            _check_order(f"{dtype}, {mode}", scorer, sequences, by_mode[mode])
            written[f"{dtype}, {mode}"] = np.concatenate(by_mode[mode])
        name, alone = f"{dtype}, {ALONE}", scorers[ALONE]
        if options.has_time(f"{name}, with other neighbours"):
            _check_neighbours(name, alone, sequences, others, by_mode[ALONE])
        if options.has_time(f"{dtype}, generation"):
            resumed.compare_resumed(f"{dtype}, generation", model, options)
        if (n := jax.device_count()) > 1:
            spread = random_model.from_host(config, dtype, DeviceMesh(MeshShape(data=n)))
            got = bits(Engine(spread, reproducible=True), sequences)
            _compare(name, by_mode[ALONE], got, f"on data={n}")
    if jax.device_count() == 1:
        record(SKIPPED, "bits on several devices: there is one")
    np.savez(options.folder / FILE, **written)


def again(options: Options) -> None:
    """Score in another process and order, and compare the bits with those of `run`."""
    with np.load(options.folder / FILE) as file:
        first = dict(file)
    config, second = _config(options), {}
    sequences = texts(1, config.vocab_size)[::-1]
    for dtype in DTYPES:
        if not any(name.startswith(dtype) for name in first) or not options.has_time(dtype):
            continue
        model = random_model.from_host(config, dtype)
        for mode, flag in MODES.items():
            got = bits(Engine(model, reproducible=flag), sequences)
            second[f"{dtype}, {mode}"] = np.concatenate(got[::-1])
    compare_processes(first, second)


def _config(options: Options) -> DecoderConfig:
    return shapes.decoder_config("Qwen2.5-0.5B", small=options.small, num_hidden_layers=2)


def texts(seed: int, vocab_size: int) -> list[TokenSequence]:
    """Token ids of lengths that fill two shapes of rows; most share a prefix."""
    draw = np.random.default_rng(seed)
    shared = draw.integers(0, vocab_size, 150)
    out = []
    for k in range(24):
        shortest, longest = ((140, 250), (300, 500))[k % 2]
        n = int(draw.integers(shortest, longest))
        ids = np.concatenate(
            [shared[: int(draw.integers(0, 120))], draw.integers(0, vocab_size, 500)]
        )
        out.append(TokenSequence(ids[:n].astype(np.int32), n - 100))
    return out


def bits(scorer: Engine, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
    """Return uint32 of each sequence's log-probabilities, entropies and self-certainties."""
    scores = scorer.score_sequences(sequences)
    return [np.concatenate(columns[:3]).astype(np.float32).view(np.uint32) for columns in scores]


def _check_order(
    name: str,
    scorer: Engine,
    sequences: Sequence[TokenSequence],
    expected: Sequence[np.ndarray],
) -> None:
    order = np.random.default_rng(3).permutation(len(sequences))
    got = bits(scorer, [sequences[k] for k in order])
    _compare(name, [expected[k] for k in order], got, "in another order")


def _check_neighbours(
    name: str,
    scorer: Engine,
    sequences: Sequence[TokenSequence],
    others: Sequence[TokenSequence],
    expected: Sequence[np.ndarray],
) -> None:
    alone = [text_bits for text in sequences[:BY_THEMSELVES] for text_bits in bits(scorer, [text])]
    beside = bits(scorer, [*others, *sequences])[len(others) :]
    _compare(name, expected[:BY_THEMSELVES], alone, "each by itself")
    _compare(name, expected, beside, f"beside {len(others)} others")


def _compare(name: str, want: Sequence[np.ndarray], got: Sequence[np.ndarray], how: str) -> None:
    first, second = np.concatenate(want), np.concatenate(got)
    report(np.array_equal(first, second), f"{name}: {describe_bits(first, second)} {how}")
