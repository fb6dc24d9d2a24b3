"""Tokens a second in bfloat16 at the shapes of published models with random weights, and MFU.

FLOPs are the useful ones of `models.costs`: products with weights (of a mixture, those of a token's
own experts), attention to the tokens that are seen, and the unembedding of scored tokens; nothing
for padding, for masked pairs, or for the states of recurrent layers. MFU is their rate as a share
of the datasheet's dense peak, and left out for a device whose peak `timing.DATASHEET` lacks.
"""

import functools
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.engine import BATCH_TOKENS
from jaxscore.engine.engine import Engine
from jaxscore.errors import format_bytes
from jaxscore.models import costs
from jaxscore.models.model import Model
from jaxscore.models.native import NUMPY_DTYPES
from jaxscore.models.weights.params import shapes_of
from jaxscore.plan.requests import TokenSequence
from tools.device_check import random_model, shapes
from tools.device_check.checks import NOTE, SKIPPED, Options, guarded, record, report
from tools.device_check.timing import datasheet_peak, median_seconds

DTYPE = "bfloat16"
LAYERS = {"Qwen3.5-4B": 8, "Qwen3-30B-A3B": 8}  # so that they are drawn and compiled in time
SHARED = "shared prompt"
LENGTHS, SMALL_LENGTHS = (512, 2048), (64,)  # tokens a row
BATCH_ACCELERATOR, BATCH_SMALL = 16384, 256  # tokens a batch
LEAST_SECONDS = 0.5  # of the batches that are scored at once
MOST_BATCHES = 16
FITS = 0.9  # of the device's memory, that parameters may take
# Tokens of the prompt, continuations of it, tokens of each, texts of as many tokens without sharing
PROMPT, SMALL_PROMPT = (2048, 1024, 20, 32), (96, 16, 8, 4)


def run(options: Options) -> None:
    """Measure the model of SHAPES, or the shared prompt, that `options.subject` names."""
    name = "Qwen2.5-0.5B" if options.subject == SHARED else options.subject
    changed = {"num_hidden_layers": LAYERS[name]} if name in LAYERS and not options.small else {}
    config = shapes.decoder_config(name, small=options.small, **changed)
    label = f"{name}, {layers_text(name, config)}"
    size, limit = random_model.n_bytes(config, DTYPE), random_model.memory_limit()
    if limit is not None and size > FITS * limit:
        sizes = f"{format_bytes(size)} of parameters, {format_bytes(limit)} of memory"
        return record(SKIPPED, f"{label}: does not fit: {sizes}")
    model = random_model.on_device(config, DTYPE)
    if options.subject == SHARED:
        return measure_shared(label, model, SMALL_PROMPT if options.small else PROMPT)
    for length in SMALL_LENGTHS if options.small else LENGTHS:
        if options.has_time(f"{label}, rows of {length}"):
            guarded(label, measure, label, config, model, batch_tokens(options.small), length)


def layers_text(name: str, config: DecoderConfig) -> str:
    """Describe how many of its layers a model has here."""
    published = shapes.SHAPES[name]["num_hidden_layers"]
    return f"{config.n_layers} of {published} layers, width {config.width}"


def batch_tokens(small: bool) -> int:
    """Return the tokens of each batch."""
    if small:
        return BATCH_SMALL
    return BATCH_TOKENS if jax.default_backend() == "cpu" else BATCH_ACCELERATOR


def measure(
    label: str, config: DecoderConfig, model: Model, tokens_of_batch: int, length: int
) -> float:
    """Report the speed of texts that share nothing, fill their rows and are scored entirely.

    Returns:
        Tokens a second of whole batches, the host's part included.
    """
    rows = tokens_of_batch // length
    draw = np.random.default_rng(0)
    engine = Engine(model, batch_tokens=tokens_of_batch)

    def texts(n: int) -> list[TokenSequence]:
        ids = draw.integers(0, config.vocab_size, (n, length + 1)).astype(np.int32)
        ids[:, 0] = np.arange(n) % config.vocab_size  # nothing is shared
        return [TokenSequence(row, 0) for row in ids]

    sequences = texts(rows)
    scores = engine.score_sequences(sequences)  # compiles
    is_finite = all(np.isfinite(columns.logprob).all() for columns in scores)
    if engine.dispatch.too_large:
        record(SKIPPED, f"{label}: a batch of {rows} x {length} does not fit in memory")
        return 0.0
    program_s = _program_seconds(engine, sequences)
    # The LM head computes scored positions alone: with one of each text it costs next to nothing.
    layers_s = _program_seconds(
        engine, [TokenSequence(sequence.ids, length) for sequence in sequences]
    )
    n_batches = int(np.clip(LEAST_SECONDS / program_s, 1, MOST_BATCHES))
    sequences = texts(n_batches * rows)
    engine.score_sequences(sequences)
    whole_s = median_seconds(functools.partial(_score, engine, sequences)) / n_batches
    flops = rows * _row_flops(config, length)
    of_layers = flops - rows * (length - 1) * costs.unembedding_flops(config)
    compiled = engine.programs.compiled
    report(
        is_finite,
        f"{label}: {rows} x {length} tokens, {n_batches} batches at once; "
        f"{len(compiled)} programs compiled or read from the cache in "
        f"{sum(program.seconds for program in compiled):.1f} s, "
        f"{format_bytes(max(c.temporary_bytes for c in compiled))} temporary",
        model=label,
        batch=f"{rows} x {length}",
        tokens_per_s=rows * length / whole_s,
        MFU=_mfu(flops / whole_s),
        program_tokens_per_s=rows * length / program_s,
        program_MFU=_mfu(flops / program_s),
        layers_MFU=_mfu(of_layers / layers_s),
    )
    return rows * length / whole_s


def _mfu(rate: float) -> float | None:
    """Return FLOP/s as a share of the device's peak, or None if that is unknown."""
    peak = datasheet_peak(jax.devices()[0].device_kind)
    return None if peak is None else rate / peak


def _program_seconds(engine: Engine, sequences: list[TokenSequence]) -> float:
    """Return the median time on the device of one batch, the host left out.

    The engine's own call for these texts is recorded, and repeated.
    """
    programs, calls = engine.variant(len(sequences[0].ids)).programs, []
    run = programs.run

    def recorded(*args: Any, **options: Any) -> Any:
        if args[0][0] == "score":
            calls.append(functools.partial(run, *args, **options))
        return run(*args, **options)

    with mock.patch.object(programs, "run", recorded):
        engine.score_sequences(sequences)
    [call] = calls
    return median_seconds(call)


def measure_shared(label: str, model: Model, sizes: tuple[int, int, int, int]) -> None:
    """Report the speed of many continuations of one prompt, and of texts that share nothing."""
    n_prompt, n_continuations, n_own, n_unshared = sizes
    draw = np.random.default_rng(1)

    def text(prompt: np.ndarray) -> TokenSequence:
        ids = np.concatenate([prompt, draw.integers(0, model.vocab_size, n_own)])
        return TokenSequence(ids.astype(np.int32), n_prompt)

    def prompt() -> np.ndarray:
        return draw.integers(0, model.vocab_size, n_prompt)

    shared_prompt = prompt()
    shared = [text(shared_prompt) for _ in range(n_continuations)]
    unshared = [text(prompt()) for _ in range(n_unshared)]
    seconds = []
    for sequences in (shared, unshared):
        engine = Engine(model, batch_tokens=max(batch_tokens(n_prompt < LENGTHS[0]), 2 * n_prompt))
        for _ in range(2):  # compiles, then runs with everything warm
            scores = engine.score_sequences(sequences)
        taken = median_seconds(functools.partial(_score, engine, sequences))
        seconds.append(taken / len(sequences))
        is_finite = all(np.isfinite(columns.logprob).all() for columns in scores)
        many = f"{len(sequences)} continuations of {n_own} tokens"
        where = "on one prompt" if sequences is shared else "each on a separate prompt,"
        report(
            is_finite,
            f"{label}: {many} {where} of {n_prompt}: {1e3 * seconds[-1]:.3f} ms a text",
            model=f"{label}: {many} {where} of {n_prompt}",
            batch="as planned",
            tokens_per_s=(n_prompt + n_own) / seconds[-1],
        )
    record(
        NOTE,
        f"{label}: a text on the shared prompt takes 1/{seconds[1] / seconds[0]:.1f} of the time "
        "of a text that shares nothing",
    )


def _score(engine: Engine, sequences: list[TokenSequence]) -> None:
    engine.score_sequences(sequences)  # its results are on the host


def _row_flops(config: DecoderConfig, length: int) -> float:
    """Return the useful FLOPs of a row with one text, every token of which is scored."""
    of_token = costs.linear_flops(shapes_of(config, NUMPY_DTYPES[DTYPE]), config)
    of_token += costs.unembedding_flops(config)
    seen = sum(costs.attention_flops(config, depth) for depth in range(1, length + 1))
    return length * of_token + seen
