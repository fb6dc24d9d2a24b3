"""`top`: what ranking the most probable tokens adds to the LM head."""

import os
import time
from typing import Any

import numpy as np

QUERIES, WIDTH, V = 256, 768, 50257
SMALL_QUERIES, SMALL_WIDTH, SMALL_V = 16, 32, 1013
TOPS = (0, 0, 1, 5, 20)  # the second 0 says how much the clock can tell
ALLOWED = 1e-4  # nats; ids of logits that are nearer than this may change places


def run(turns: int, *, small: bool) -> bool:
    """Print a line for each dtype; return whether the ids equal those of full logits."""
    sizes = (SMALL_QUERIES, SMALL_WIDTH, SMALL_V) if small else (QUERIES, WIDTH, V)
    print(
        f"\ntop: {sizes[0]} queries, width {sizes[1]}, vocabulary of {sizes[2]}; least of {turns} "
        f"turns; system load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    wrong = [_measured(dtype, turns, *sizes) for dtype in ("float32", "bfloat16")]
    return not any(wrong)


def _measured(dtype: str, turns: int, queries: int, width: int, v: int) -> int:
    """Print the times; return how many ids differ from those of full logits."""
    import jax
    import jax.numpy as jnp

    from jaxscore.device import reference
    from jaxscore.device.backends import current_backend
    from jaxscore.device.dots import to_storage
    from jaxscore.device.lm_head import score_positions
    from jaxscore.device.rows import ScoredPositions, Unembedding

    keys, backend = jax.random.split(jax.random.key(0)), current_backend()
    # Rounded, so that weights of either type give the products of full logits.
    hidden = jax.random.normal(keys[0], (queries, width)).astype("bfloat16").astype("float32")
    drawn = (jax.random.normal(keys[1], (v, width)) * 0.1).astype(dtype)
    every, n = jnp.arange(queries), jnp.int32(queries)
    args = hidden, ScoredPositions(every, n, every, every, n), to_storage(drawn, backend.integers)

    def program(top: int) -> Any:
        def scored(hidden: Any, asked: Any, weight: Any) -> Any:
            head = Unembedding(weight, None, 1.0, None, backend=backend)
            return score_positions(hidden, asked, head, top)

        return jax.jit(scored).lower(*args).compile()

    programs = [program(top) for top in TOPS]
    seconds: list[list[float]] = [[] for _ in TOPS]
    for turn in range(turns + 1):
        for times, compiled in zip(seconds, programs, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(compiled(*args))
            if turn:  # the first one warms up
                times.append(time.perf_counter() - started)
    least = [min(times) for times in seconds]
    ratios = ", ".join(
        f"{best / least[0]:.2f} (top {top})" for top, best in zip(TOPS, least, strict=True)
    )
    largest = max(TOPS)
    head = Unembedding(args[2], None, 1.0, None)
    wrong = n_wrong(programs[-1](*args), reference.score_positions(*args[:2], head, largest + 1))
    print(
        f"  {dtype}: {1e3 * least[0]:.1f} ms, times {ratios}; {wrong} of {queries * largest} ids "
        "are not those of full logits",
        flush=True,
    )
    return wrong


def n_wrong(got: Any, want: Any) -> int:
    """Ids that differ from the expected ones, or whose log-probability does.

    Args:
        want: scores with one token more.
    """
    id, logprob = np.asarray(want.top_id)[:, :-1], np.asarray(want.top_logprob)
    near = -np.diff(logprob, axis=1) < ALLOWED  # to the next one
    tied = near | np.pad(near, ((0, 0), (1, 0)))[:, :-1]
    far = np.abs(np.asarray(got.top_logprob) - logprob[:, :-1]) > ALLOWED
    return int((far | ((np.asarray(got.top_id) != id) & ~tied)).sum())
