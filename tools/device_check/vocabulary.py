"""The fused LM head against full logits: the same numbers, in how much time and memory."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError

from jaxscore.device import reference
from jaxscore.device.backends import BACKENDS, current_platform
from jaxscore.device.dots import dot_last, from_storage, to_storage
from jaxscore.device.lm_head import score_positions
from jaxscore.device.rows import ScoredPositions, Scores, Unembedding
from jaxscore.engine.devices import is_out_of_memory
from jaxscore.errors import format_bytes
from jaxscore.plan.row_batches import TARGETS_PER_TOKEN
from tools.device_check.checks import SKIPPED, Options, guarded, largest_difference, record, report
from tools.device_check.timing import median_seconds, temporary_bytes

V, WIDTHS, QUERIES = 151936, (896, 3584), 2048
SMALL_V, SMALL_WIDTHS, SMALL_QUERIES = 5003, (64,), 130
ALLOWED = {"float32": 1e-4, "bfloat16": 1e-3}


def run(options: Options) -> None:
    """Compare both for each width and dtype."""
    small = options.small
    v, queries = (SMALL_V, SMALL_QUERIES) if small else (V, QUERIES)
    for width in SMALL_WIDTHS if small else WIDTHS:
        for dtype in ALLOWED:
            title = f"vocabulary of {v}, width {width}, {queries} queries, {dtype}"
            if options.has_time(title):
                guarded(title, compare, title, v, width, queries, dtype)


def compare(title: str, v: int, width: int, queries: int, dtype: str) -> None:
    """Compare both on the same queries, to ALLOWED."""
    keys = jax.random.split(jax.random.key(0), 3)
    backend = BACKENDS[current_platform()]
    hidden = jax.random.normal(keys[0], (queries, width), jnp.float32)
    drawn = (jax.random.normal(keys[1], (v, width)) * 0.02).astype(dtype)
    weight = to_storage(drawn, backend.integers)
    n_answers = TARGETS_PER_TOKEN * queries
    answer = jax.random.randint(keys[2], (n_answers,), 0, v)
    every, slot = jnp.arange(queries), jnp.arange(n_answers) % queries
    asked = ScoredPositions(every, jnp.int32(queries), slot, answer, jnp.int32(n_answers))
    full = reference.score_positions if dtype == "float32" else full_logits

    def by_blocks(hidden: Any, weight: Any, asked: Any) -> Scores:
        return score_positions(hidden, asked, Unembedding(weight, None, 1.0, None, backend=backend))

    def at_once(hidden: Any, weight: Any, asked: Any) -> Scores:
        return full(hidden, asked, Unembedding(weight, None, 1.0, None))

    args = (hidden, weight, asked)
    program = jax.jit(by_blocks).lower(*args).compile()
    fused, fused_bytes = jax.device_get(program(*args)), temporary_bytes(program)
    fused_s = median_seconds(functools.partial(program, *args))
    try:
        program = jax.jit(at_once).lower(*args).compile()
        unsliced, unsliced_bytes = jax.device_get(program(*args)), temporary_bytes(program)
        unsliced_s = median_seconds(functools.partial(program, *args))
    except JaxRuntimeError as problem:
        if not is_out_of_memory(problem):
            raise
        return record(SKIPPED, f"{title}: full logits do not fit in memory")
    worst = largest_difference(
        (getattr(fused, name), getattr(unsliced, name))
        for name in ("logprob", "entropy", "self_certainty")
    )
    other = int((fused.greedy_id != unsliced.greedy_id).sum())
    report(
        worst < ALLOWED[dtype],
        f"{title}: fused {1e3 * fused_s:.2f} ms and {memory(fused_bytes)}, full logits "
        f"{1e3 * unsliced_s:.2f} ms and {memory(unsliced_bytes)} temporary; worst difference "
        f"{worst:.1e}, {other} other argmax",
    )


def full_logits(hidden: Any, asked: ScoredPositions, head: Unembedding) -> Scores:
    """Compute `reference.score_positions` with the product in the weight's own dtype."""
    z = dot_last(hidden, from_storage(head.weight))
    logp = jax.nn.log_softmax(z, axis=-1)
    best = jnp.argmax(z, axis=-1).astype(jnp.int32)
    return Scores(
        logprob=logp[asked.slot, asked.target],
        greedy=asked.target == best[asked.slot],
        entropy=-jnp.sum(jnp.exp(logp) * logp, axis=-1),
        self_certainty=-jnp.mean(logp, axis=-1) - jnp.log(float(z.shape[-1])),
        greedy_id=best,
    )


def memory(size: int | None) -> str:
    """Format bytes, None where the compiler reports none."""
    return "unknown memory" if size is None else format_bytes(size)
