"""Whether bits of scores depend on order, neighbours, processes and devices.

Two processes score the same texts, the second in another order and with programs that it compiled
itself. Each process reports what it can compare alone; `checks.compare_processes` compares both.
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
from tools.device_check import qwen, random_model, resumed
from tools.device_check.checks import Options, describe_bits, report

DTYPES = ("float32", "bfloat16")
ALONE = "--reproducible"
MODES = {"default": False, ALONE: True}
BY_THEMSELVES = 8  # texts that are also scored one a call


def run(options: Options) -> bool:
    """Check what one process can check, and write its bits for the other."""
    report(None, f"XLA options of --reproducible: {deterministic_options() or 'none needed here'}")
    config = _config(options)
    sequences, others = texts(1, config.vocab_size), texts(2, config.vocab_size)
    verdicts, written = [], {}
    for dtype in DTYPES:
        model = random_model.from_host(config, dtype)
        scorers = {mode: Engine(model, reproducible=flag) for mode, flag in MODES.items()}
        found = {mode: bits(scorer, sequences) for mode, scorer in scorers.items()}
        for mode, scorer in scorers.items():
            verdicts.append(_by_order(f"{dtype}, {mode}", scorer, sequences, found[mode]))
            written[f"{dtype}, {mode}"] = np.concatenate(found[mode])
        verdicts.append(resumed.compare_resumed(f"{dtype}, generation", model, options))
        name, alone = f"{dtype}, {ALONE}", scorers[ALONE]
        verdicts.append(_by_neighbours(name, alone, sequences, others, found[ALONE]))
        if (n := jax.device_count()) > 1:
            spread = random_model.from_host(config, dtype, DeviceMesh(MeshShape(data=n)))
            got = bits(Engine(spread, reproducible=True), sequences)
            verdicts.append(_compare(name, found[ALONE], got, f"on data={n}"))
    if jax.device_count() == 1:
        report(None, "one device: bits on several devices were not compared")
    assert options.out is not None
    np.savez(options.out, **written)
    return all(verdicts)


def again(options: Options) -> bool:
    """Score in another process and order, and write the bits in the order of `run`."""
    config, written = _config(options), {}
    sequences = texts(1, config.vocab_size)[::-1]
    for dtype in DTYPES:
        model = random_model.from_host(config, dtype)
        for mode, flag in MODES.items():
            got = bits(Engine(model, reproducible=flag), sequences)
            written[f"{dtype}, {mode}"] = np.concatenate(got[::-1])
    assert options.out is not None
    np.savez(options.out, **written)
    return True


def _config(options: Options) -> DecoderConfig:
    return qwen.decoder_config("Qwen2.5-0.5B", small=options.small, num_hidden_layers=2)


def texts(seed: int, vocab_size: int) -> list[TokenSequence]:
    """Token ids of lengths that fill two shapes of rows; most share a prefix."""
    draw = np.random.default_rng(seed)
    shared = draw.integers(0, vocab_size, 150)
    out = []
    for k in range(24):
        least, most = ((140, 250), (300, 500))[k % 2]
        n = int(draw.integers(least, most))
        ids = np.concatenate(
            [shared[: int(draw.integers(0, 120))], draw.integers(0, vocab_size, 500)]
        )
        out.append(TokenSequence(ids[:n].astype(np.int32), n - 100))
    return out


def bits(scorer: Engine, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
    """uint32 of each sequence's log-probabilities, entropies and self-certainties."""
    scores = scorer.score_sequences(sequences)
    return [np.concatenate(one[:3]).astype(np.float32).view(np.uint32) for one in scores]


def _by_order(
    name: str,
    scorer: Engine,
    sequences: Sequence[TokenSequence],
    found: Sequence[np.ndarray],
) -> bool:
    order = np.random.default_rng(3).permutation(len(sequences))
    got = bits(scorer, [sequences[k] for k in order])
    return _compare(name, [found[k] for k in order], got, "in another order")


def _by_neighbours(
    name: str,
    scorer: Engine,
    sequences: Sequence[TokenSequence],
    others: Sequence[TokenSequence],
    found: Sequence[np.ndarray],
) -> bool:
    some = sequences[:BY_THEMSELVES]
    alone = [part for one in some for part in bits(scorer, [one])]
    beside = bits(scorer, [*others, *sequences])[len(others) :]
    verdicts = [
        _compare(name, found[: len(some)], alone, "each by itself"),
        _compare(name, found, beside, f"beside {len(others)} others"),
    ]
    return all(verdicts)


def _compare(name: str, want: Sequence[np.ndarray], got: Sequence[np.ndarray], what: str) -> bool:
    one, other = np.concatenate(want), np.concatenate(got)
    return report(np.array_equal(one, other), f"{name}: {describe_bits(one, other)} {what}")
