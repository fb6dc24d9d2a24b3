"""The tool that rounds partial sums: its model is the embedded one, and its ways what they say."""

import json

import jax.numpy as jnp
import pytest

from jaxscore import Scorer
from jaxscore.device.sharding import divides
from jaxscore.models import native
from tools import partial_sums

ASKED = ["Who wrote the book? Mara Tolen wrote it.", "partial sums, added in float32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("eight heads")
    partial_sums.write_model(made)
    return made


def scores(name, count=1, way="float32"):
    with partial_sums.shards(count, way):
        return partial_sums.scores(Scorer.from_pretrained(str(name), dtype="float32"), ASKED)


def test_the_model_is_the_embedded_one_and_splits(folder):
    largest, _, _ = partial_sums.moved(scores(folder), scores("demo"))
    assert largest < 1e-4
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _, config = native.translate(folder, raw)
    assert all(divides(config, model) for model in (2, 4, 8))


@pytest.mark.slow
def test_only_rounding_moves_the_scores(folder):
    plain = scores(folder)
    assert 0 < partial_sums.moved(scores(folder, 4), plain)[0] < 1e-4
    assert partial_sums.moved(scores(folder, 4, "ring"), plain)[0] > 1e-3


def test_a_ring_rounds_after_each_addition():
    """1 + 2^-8 is no bfloat16 number, and 1 + 2^-7 is one."""
    parts = [jnp.float32(1), jnp.float32(2**-8), jnp.float32(2**-8)]
    found = {way: float(add(parts)) for way, add in partial_sums.WAYS.items()}
    assert found == {"float32": 1 + 2**-7, "rounded": 1 + 2**-7, "ring": 1.0}
