"""`update`: time of new weights of a scorer, against the time to copy their bytes."""

import os
import statistics
import time
from typing import Any

from tools.benchmarks import random_llama

HALF_BILLION = random_llama.Shape(vocab=151936, width=896, layers=24, heads=14, mlp=4864)


def run(turns: int, *, small: bool) -> None:
    """Print the times of tensors by Hugging Face names and of a tree of parameters."""
    import jax
    import jax.numpy as jnp

    from jaxscore import Scorer

    shape = random_llama.TINY if small else HALF_BILLION
    drawn = random_llama.tensors(shape)
    tensors = {name: jnp.asarray(drawn.pop(name), jnp.bfloat16) for name in list(drawn)}
    scorer = Scorer.from_tensors(random_llama.config(shape), tensors, "demo", dtype="bfloat16")
    scorer.score(["Mara lives in Tulm."])
    n_programs = len(scorer.engine.programs.compiled)
    size = sum(array.nbytes for array in tensors.values())
    print(
        f"\nupdate: {size / 1e9:.2f} GB of bfloat16; milliseconds, medians of {turns} turns; "
        f"system load {os.getloadavg()[0]:.2f}\n  {'':12}{'call':>8}{'ready':>8}{'copy':>8}",
        flush=True,
    )

    def milliseconds(values: Any) -> tuple[float, float, float]:
        """Time the call, the wait until the weights can be used, and a plain copy of `values`."""
        old = scorer.model.params  # held, so that the call does not free them
        started = time.perf_counter()
        scorer.update(values)
        called = time.perf_counter()
        jax.block_until_ready(scorer.model.params)
        ready = time.perf_counter()
        del old
        copying = time.perf_counter()
        copies = jax.block_until_ready(jax.tree.map(jnp.copy, values))
        copied = time.perf_counter() - copying
        del copies
        return (called - started) * 1e3, (ready - started) * 1e3, copied * 1e3

    for name in ("tensors", "parameters"):
        times = [
            milliseconds(tensors if name == "tensors" else scorer.model.params)
            for _ in range(turns + 1)  # the first compiles
        ][1:]
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        print(f"  {name:12}" + "".join(f"{value:8.1f}" for value in medians), flush=True)
    scorer.score(["Mara lives in Tulm."])
    print(f"  programs compiled since: {len(scorer.engine.programs.compiled) - n_programs}")
