"""`token-scores`: value and gradient of `token_scores` against `log_softmax` with autodiff."""

import os
import statistics
import time
from typing import Any

SHAPES = ((2048, 50257, 768), (4096, 50257, 768))  # positions, vocabulary, width
SMALL_SHAPES = ((64, 1013, 16),)


def run(turns: int, *, small: bool) -> None:
    """Print ratios of time, turn by turn, and of temporary memory, for two sets of terms."""
    import jax
    import jax.numpy as jnp

    from jaxscore import token_scores
    from jaxscore.device.lm_head.token_scores import TERMS

    def plain(hidden: Any, targets: Any, unembed: Any, terms: tuple[str, ...]) -> dict[str, Any]:
        logp = jax.nn.log_softmax(jnp.dot(hidden, unembed.T, preferred_element_type=jnp.float32))
        values = {"logprob": jnp.take_along_axis(logp, targets[:, None], axis=1)[:, 0]}
        if len(terms) > 1:
            values["entropy"] = -(jnp.exp(logp) * logp).sum(1)
            values["self_certainty"] = -logp.mean(1)
        return values

    print(
        f"\ntoken-scores: value and gradient relative to log_softmax, medians of {turns} turns; "
        f"system load {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    for positions, vocabulary, width in SMALL_SHAPES if small else SHAPES:
        keys = jax.random.split(jax.random.key(0), 3)
        arrays = (
            jax.random.normal(keys[0], (positions, width)),
            jax.random.normal(keys[1], (vocabulary, width)) * 0.02,
            jax.random.randint(keys[2], (positions,), 0, vocabulary),
        )
        for terms in (("logprob",), TERMS):
            programs = []
            for function in (token_scores, plain):

                def loss(hidden, unembed, targets, function=function, terms=terms):
                    values = function(hidden, targets, unembed, terms=terms)
                    return sum(value.sum() for value in values.values())

                program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arrays).compile()
                programs.append(program)
            ratios = []
            for turn in range(turns + 1):
                seconds = []
                for program in programs:
                    started = time.perf_counter()
                    jax.block_until_ready(program(*arrays))
                    seconds.append(time.perf_counter() - started)
                if turn:  # the first touches the memory
                    ratios.append(seconds[0] / seconds[1])
            fused, unfused = (program.memory_analysis().temp_size_in_bytes for program in programs)
            print(
                f"  {positions} x {vocabulary}, width {width}, {len(terms)} terms: time "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
                f"temporary memory {fused / unfused:.3f}",
                flush=True,
            )
