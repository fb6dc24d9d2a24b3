"""Settings of JAX that a user's program makes change no bit of scores and texts."""

import contextlib
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxscore import GenerationRequest, Scorer
from tests.conftest import CASES, ROOT, with_devices

MODEL = str(CASES / "models/tiny-qwen2")
TEXTS = ["The cat sat on the mat.", ("The cat sat", " on a chair."), "One two three."]
# With `cut` and without, so that requests select other programs alone than together.
PROMPTS = [
    GenerationRequest(k, prompt, 12, 1.0, 0.9 if k == 1 else 1.0, seed=40 + k)
    for k, prompt in enumerate(("The cat sat", "The cat ran", "One two"))
]
SETTINGS = [
    ("jax_enable_x64", True),
    ("jax_numpy_rank_promotion", "raise"),
    ("jax_numpy_dtype_promotion", "strict"),
    ("jax_default_prng_impl", "rbg"),
    ("jax_threefry_partitionable", False),
    ("jax_random_seed_offset", 5),
    ("jax_high_dynamic_range_gumbel", True),
    ("jax_legacy_prng_key", "error"),
    ("jax_debug_key_reuse", True),
    ("jax_debug_nans", True),
    ("jax_debug_infs", True),
    ("jax_disable_jit", True),
    ("jax_no_tracing", True),
    ("jax_default_matmul_precision", "bfloat16"),
    ("jax_check_tracer_leaks", True),
    ("jax_enable_checks", True),
    ("jax_transfer_guard", "disallow_explicit"),
    ("jax_softmax_custom_jvp", True),
    ("jax_explain_cache_misses", True),
]


def results():
    """Scores, measures and most probable tokens, and texts that were drawn together and alone."""
    scorer = Scorer.from_pretrained(MODEL, dtype="float32")  # a fresh one has no programs
    scored = scorer.score(TEXTS, measures=("rank", "varentropy"), top=2)
    assert not any(one.error for one in scored)
    arrays = [
        (one.logprob, one.entropy, one.self_certainty, *one.measures.values(), one.top.logprob)
        for one in scored
    ]
    together = [text.text for text in scorer.generate(PROMPTS)]
    assert [scorer.generate([prompt])[0].text for prompt in PROMPTS] == together
    return [[array.tobytes().hex() for array in one] for one in arrays], together


@pytest.fixture(scope="module")
def by_default():
    return results()


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_an_option_of_the_process_changes_no_bit(name, value, by_default, jax_setting):
    jax_setting(name, value)
    assert results() == by_default


def test_a_context_of_the_calling_thread_changes_no_bit(by_default):
    """The threads of the engine do not have it, the thread of the caller has."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        stack.enter_context(jax.numpy_rank_promotion("raise"))
        stack.enter_context(jax.numpy_dtype_promotion("strict"))
        stack.enter_context(jax.default_prng_impl("rbg"))
        stack.enter_context(jax.debug_infs(True))
        assert results() == by_default
        assert jax.config.jax_enable_x64
        assert jax.config.jax_numpy_dtype_promotion == "strict"


def test_the_callers_settings_stay_between_two_results_of_a_stream(scorers):
    with jax.enable_x64(True):
        stream = scorers("tiny-qwen2").stream(["The cat sat.", "The cat ran."], window=1)
        for _ in stream:
            assert np.float64 == jax.numpy.asarray(1.5).dtype


@pytest.mark.slow
def test_a_mesh_and_a_default_device_of_the_caller_change_no_bit(by_default):
    """In a process with two devices: our programs run on the first one all the same."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.device.test_jax_settings"],
        env=with_devices(2), cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not ran.returncode, ran.stderr[-2000:]
    assert json.loads(ran.stdout) == json.loads(json.dumps(by_default))


if __name__ == "__main__":
    from tests import compilation

    full = compilation.is_full(os.environ)
    jax.config.update("jax_disable_most_optimizations", not full)  # as conftest.py does
    jax.config.update("jax_default_device", jax.devices()[1])
    jax.set_mesh(jax.make_mesh((2,), ("x",)))
    print(json.dumps(results()))
