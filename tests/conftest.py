"""Tests run offline, on the CPU, with shapes checked and warnings as errors."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAXSCORE_CACHE", os.path.join(tempfile.gettempdir(), "jaxscore-test-xla"))

from jaxtyping import install_import_hook

install_import_hook("jaxscore.device", "beartype.beartype")

from pathlib import Path

import pytest

from jaxscore import Scorer

CASES = Path(__file__).parent / "cases"
MODELS = ("tiny-gpt2", "tiny-llama3", "tiny-qwen2")


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
