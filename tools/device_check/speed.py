"""Tokens a second in bfloat16 at the shapes of Qwen2.5 0.5B, 1.5B and 7B, against the peaks.

FLOPs are the useful ones of `models.costs`: products with weights, attention to the tokens that
are seen, and the unembedding of scored tokens; nothing for padding or for masked pairs.
"""

import functools
import statistics
import time
from typing import NamedTuple

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.rows import Rows, ScoredPositions, pack_rows
from jaxscore.engine.devices import is_out_of_memory
from jaxscore.engine.engine import Engine
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError, format_bytes
from jaxscore.models import costs
from jaxscore.models.model import Model
from jaxscore.models.native import NUMPY_DTYPES
from jaxscore.models.weights.params import shapes_of
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import TARGETS_PER_TOKEN
from tools.device_check import qwen, random_model
from tools.device_check.checks import Options, report
from tools.device_check.timing import datasheet_peak, measure_peak

DTYPE = "bfloat16"
LENGTHS = (512, 128, 2048)  # tokens a row; the first is also taken with every size of batch
SMALL_LENGTHS, SMALL_BATCHES = (64, 128), (256, 512)
LEAST_SECONDS = 1.0  # of work that is timed at once
MOST_BATCHES = 16
CALLS, SHARE = 19, 0.3  # batches that a measurement takes at least, and of the peak, to expect
FITS = 0.9  # of the device's memory, that parameters may take


class Peaks(NamedTuple):
    """FLOP/s of the device, one of them unknown where its kind is."""

    datasheet: float | None
    product: float


def run(options: Options) -> bool:
    """A line a model, batch size and row length; holds only that scores are finite."""
    ends = time.monotonic() + options.seconds
    kind = jax.devices()[0].device_kind
    n = 1024 if options.small or jax.default_backend() == "cpu" else 8192
    peak = Peaks(datasheet_peak(kind), measure_peak(n))
    known = f"{peak.datasheet / 1e12:.0f}" if peak.datasheet else "unknown"
    report(None, f"peak of {kind} in TFLOP/s: datasheet {known}, product {peak.product / 1e12:.3g}")
    verdicts = []
    for number, name in enumerate(qwen.SIZES):
        # A slow model leaves the later ones their share of what is left.
        share = (ends - time.monotonic()) / (len(qwen.SIZES) - number)
        verdicts.append(_model(name, options, peak, time.monotonic() + share))
    return all(verdicts)


def _model(name: str, options: Options, peak: Peaks, ends: float) -> bool:
    config = qwen.decoder_config(name, small=options.small)
    size, limit = random_model.n_bytes(config, DTYPE), random_model.memory_limit()
    if limit is not None and size > FITS * limit:
        sizes = f"{format_bytes(size)} of parameters and {format_bytes(limit)} of memory"
        return report(None, f"{name}: skipped, {sizes}")
    verdicts, model = [], None
    try:
        for batch_tokens, length in _shapes(options):
            expected = CALLS * _batch_flops(config, batch_tokens, length) / peak.product / SHARE
            if time.monotonic() + expected > ends:
                what = f"batches of {batch_tokens} in rows of {length}"
                report(
                    None, f"{name}: no time for {what}, about {expected:.0f} s; take --only speed"
                )
                continue
            model = model or random_model.on_device(config, DTYPE)
            verdicts.append(_measured(name, config, model, batch_tokens, length, peak))
        if model is not None and time.monotonic() < ends:
            _shared_prompt(name, config, model, _shapes(options)[0][0])
    except (JaxRuntimeError, InputError) as problem:
        cause = problem.__cause__ if isinstance(problem, InputError) else problem
        if not isinstance(cause, JaxRuntimeError) or not is_out_of_memory(cause):
            raise
        report(None, f"{name}: the rest skipped, it does not fit in memory")
    return all(verdicts)


def _shapes(options: Options) -> list[tuple[int, int]]:
    """(tokens a batch, tokens a row): all batches of the first length, all lengths of one batch."""
    lengths = SMALL_LENGTHS if options.small else LENGTHS
    batches = sorted(SMALL_BATCHES if options.small else options.batch_tokens)
    middle = batches[len(batches) // 2]
    found = [(middle, lengths[0])]
    found += [(batch, lengths[0]) for batch in batches if batch != middle]
    return found + [(middle, length) for length in lengths[1:] if length <= middle]


def _measured(
    name: str, config: DecoderConfig, model: Model, batch_tokens: int, length: int, peak: Peaks
) -> bool:
    """Every token scored of texts that share nothing and fill their rows."""
    rows = batch_tokens // length
    draw = np.random.default_rng(0)
    scorer = Engine(model, batch_tokens=batch_tokens)

    def texts(n: int) -> list[TokenSequence]:
        ids = draw.integers(0, config.vocab_size, (n, length + 1)).astype(np.int32)
        return [TokenSequence(one, 0) for one in ids]

    scorer.score_sequences(texts(rows))  # compiles
    if scorer.dispatch.too_large:
        return report(None, f"{name}: a batch of {batch_tokens} in rows of {length} does not fit")
    batch = _batch(draw, config.vocab_size, rows, length)
    program_s = _program_seconds(scorer, batch)
    layers_s = _program_seconds(scorer, batch._replace(scored=_nothing(batch.scored)))
    n_batches = int(np.clip(LEAST_SECONDS / program_s, 2, MOST_BATCHES))
    sequences, seconds = texts(n_batches * rows), []
    for _ in range(3):
        started = time.perf_counter()
        scores = scorer.score_sequences(sequences)
        seconds.append(time.perf_counter() - started)
    tokens, taken = n_batches * rows * length, statistics.median(seconds)
    flops = _batch_flops(config, batch_tokens, length)
    of_layers = flops - rows * length * costs.unembedding_flops(config)
    compiled = scorer.programs.compiled
    return report(
        bool(all(np.isfinite(one.logprob).all() for one in scores)),
        f"{name}, batches of {batch_tokens} in rows of {length}: {tokens / taken:.0f} tokens/s, "
        f"{_share(flops * n_batches / taken, peak)}; the program alone "
        f"{rows * length / program_s:.0f} tokens/s, {_share(flops / program_s, peak)}; "
        f"its layers alone {_share(of_layers / layers_s, peak)}; "
        f"{len(compiled)} programs compiled in {sum(c.seconds for c in compiled):.1f} s, "
        f"{format_bytes(max(c.temporary_bytes for c in compiled))} temporary",
    )


def _batch(draw: np.random.Generator, vocab_size: int, rows: int, length: int) -> Rows:
    """Rows that are a text each, each token of which is scored."""
    chain, n = np.tile(np.arange(length, dtype=np.int32), (rows, 1)), rows * length
    return Rows(
        ids=draw.integers(0, vocab_size, (rows, length)).astype(np.int32),
        position=chain,
        subtree_end=np.full_like(chain, length),
        scored=ScoredPositions(
            token=np.arange(n, dtype=np.int32),
            n_positions=np.int32(n),
            slot=np.arange(TARGETS_PER_TOKEN * n, dtype=np.int32) % n,
            target=draw.integers(0, vocab_size, TARGETS_PER_TOKEN * n).astype(np.int32),
            n_edges=np.int32(n),
        ),
    )


def _nothing(scored: ScoredPositions) -> ScoredPositions:
    return scored._replace(n_positions=np.int32(0), n_edges=np.int32(0))


def _program_seconds(scorer: Engine, batch: Rows) -> float:
    """Of one batch, the host left out: five calls, one after the other on the device."""
    rows, length = batch.ids.shape
    variant = scorer.variant(length)
    args = variant.model.params, variant.programs.put(pack_rows(batch))
    run = functools.partial(variant.score, batch.ids.shape, top=0)

    def call():
        with Progress(False) as progress:
            name = "score", rows, length  # the scorer has compiled it
            return variant.programs.run(name, run, args, progress)

    jax.block_until_ready(call())
    started = time.perf_counter()
    for _ in range(5):
        last = call()
    jax.block_until_ready(last)
    return (time.perf_counter() - started) / 5


def _shared_prompt(name: str, config: DecoderConfig, model: Model, batch_tokens: int) -> None:
    """1000 questions on one prompt of 300 tokens: what sharing gives."""
    draw = np.random.default_rng(1)
    prompt = draw.integers(0, config.vocab_size, 300)
    asked = [np.concatenate([prompt, draw.integers(0, config.vocab_size, 20)]) for _ in range(1000)]
    sequences = [TokenSequence(ids.astype(np.int32), 315) for ids in asked]
    scorer = Engine(model, batch_tokens=batch_tokens)
    scorer.score_sequences(sequences)
    given, unique = scorer.statistics.tokens_given, scorer.statistics.tokens_unique
    started = time.perf_counter()
    scorer.score_sequences(sequences)
    seconds = time.perf_counter() - started
    report(
        None,
        f"{name}, 1000 questions on one prompt of 300: {given / seconds:.0f} given tokens/s, "
        f"{unique / seconds:.0f} unique",
    )


def _batch_flops(config: DecoderConfig, batch_tokens: int, length: int) -> float:
    """The useful ones where rows are texts of their own and every token is scored."""
    of_token = costs.linear_flops(shapes_of(config, NUMPY_DTYPES[DTYPE]), config)
    of_token += costs.unembedding_flops(config)
    seen = sum(costs.attention_flops(config, depth) for depth in range(1, length + 1))
    return batch_tokens // length * (length * of_token + seen)


def _share(rate: float, peak: Peaks) -> str:
    """FLOP/s as a share of both peaks."""
    of_datasheet = f"{rate / peak.datasheet:.1%} MFU, " if peak.datasheet else ""
    return f"{rate / 1e12:.3g} TFLOP/s ({of_datasheet}{rate / peak.product:.0%} of the product's)"
