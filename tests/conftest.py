"""Tests run offline, on the CPU, with shapes checked and warnings as errors."""

import contextlib
import os
import tempfile

from tests import compilation

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = compilation.xla_flags(os.environ)
os.environ.setdefault("JAXSCORE_CACHE", os.path.join(tempfile.gettempdir(), "jaxscore-test-xla"))

from jaxtyping import install_import_hook

if compilation.checks_shapes(os.environ):
    install_import_hook(
        ["jaxscore.device", "jaxscore.systems.chronologic.temperature"], "beartype.beartype"
    )

from pathlib import Path

import hypothesis
import jax
import pytest

from jaxscore import Scorer
from jaxscore.engine.devices import use_compilation_cache
from tests.quick_run import (  # noqa: F401  pytest finds its hooks here
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_xdist_auto_num_workers,
)

jax.config.update("jax_disable_most_optimizations", not compilation.is_full(os.environ))
# All tests, workers and runs share one cache of programs, small ones too.
use_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# No test depends on how fast the machine is.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests/cases"
MODELS = ("tiny-gpt2", "tiny-llama3", "tiny-qwen2")


def with_devices(n: int) -> dict[str, str]:
    """The environment of a process with n CPU devices; XLA's flags of this process stay."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={n}"
    return os.environ | {"XLA_FLAGS": flags.strip(), "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def scorers():
    """`scorers(name)`: a float32 scorer of a case's model, loaded once a session."""
    loaded = {}

    def get(name: str, **options) -> Scorer:
        key = (name, tuple(sorted(options.items())))
        if key not in loaded:
            folder = CASES / "models" / name
            loaded[key] = Scorer.from_pretrained(str(folder), dtype="float32", **options)
        return loaded[key]

    return get


@pytest.fixture
def optimised():
    """See `optimised_code`."""
    with optimised_code():
        yield


@contextlib.contextmanager
def optimised_code():
    """With LLVM's optimisations, whose sums of many numbers round less."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def jax_setting():
    """`jax_setting(name, value)`: change an option of JAX for the process, until the test ends."""
    before = {}

    def change(name, value):
        before.setdefault(name, jax.config.values[name])
        jax.config.update(name, value)

    yield change
    for name, value in before.items():
        jax.config.update(name, value)
