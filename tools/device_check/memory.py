"""Batches far too large for the device: halved until they fit, and scored."""

import jax
import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.errors import InputError, format_bytes
from jaxscore.plan.requests import TokenSequence
from tools.device_check import random_model, shapes
from tools.device_check.checks import SKIPPED, Options, largest_difference, record, report

LENGTH, HEADS = 4096, 32  # attention scores of a row take 4 * HEADS * LENGTH**2 bytes, 2 GB
EXCESS = 2  # times what the device has, for scores alone
MOST_ROWS = 1024


def run(options: Options) -> None:
    """Report whether too large a batch is halved, with the same scores to 1e-5."""
    limit = random_model.memory_limit()
    if limit is None or jax.default_backend() == "cpu":
        return record(SKIPPED, "out of memory: this device does not report a limit")
    rows = -(-EXCESS * limit // (4 * HEADS * LENGTH**2))
    if rows > MOST_ROWS:
        text = f"out of memory: {format_bytes(limit)} hold more than {MOST_ROWS} rows"
        return record(SKIPPED, text)
    # Narrow but for its heads, so that their scores are what fills the memory.
    config = shapes.decoder_config(
        "Qwen2.5-0.5B",
        small=True,
        hidden_size=16 * HEADS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
    )
    model = random_model.on_device(config, "float32")
    draw = np.random.default_rng(0)
    ids = draw.integers(0, config.vocab_size, (rows, LENGTH + 1)).astype(np.int32)
    sequences = [TokenSequence(row, LENGTH - 10) for row in ids]
    scorer = Engine(model, batch_tokens=rows * LENGTH)
    try:
        got = scorer.score_sequences(sequences)
    except InputError as problem:
        report(False, f"out of memory: not survived: {problem}")
        return
    refused = sorted(scorer.dispatch.too_large, reverse=True)
    if not refused:
        return record(SKIPPED, f"out of memory: not reached with {rows} x {LENGTH} tokens")
    one_by_one = Engine(model, batch_tokens=LENGTH).score_sequences(sequences[:4])
    pairs = zip(got[:4], one_by_one, strict=True)
    worst = largest_difference((a.logprob, b.logprob) for a, b in pairs)
    batches = ", ".join(f"{n} x {length}" for n, length in refused)
    report(
        worst < 1e-5,
        f"out of memory: did not fit: {batches}; halved and scored, worst difference {worst:.1e}",
    )
