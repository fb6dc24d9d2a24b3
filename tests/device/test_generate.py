"""What decoding is made of: all logits of a few states, and prompts stored in a cache."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.dots import as_integers
from jaxscore.device.forms import FORMS
from jaxscore.device.rows import Unembedding
from jaxscore.device.vocabulary.blocks import all_logits

V = 23
BY_EIGHT = dataclasses.replace(FORMS["cpu"], vocabulary_columns=8)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_all_logits_by_blocks(softcap):
    random = np.random.default_rng(5)
    hidden, weight, bias = (
        jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((3, 16), (V, 16), (V,))
    )
    got = all_logits(hidden, Unembedding(as_integers(weight), bias, 0.5, softcap, forms=BY_EIGHT))
    want = (np.asarray(hidden, np.float64) @ np.asarray(weight).T + np.asarray(bias)) * 0.5
    want = want if softcap is None else softcap * np.tanh(want / softcap)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_store_fills_its_rows_and_no_others():
    cache = jnp.full((2, 3, 4, 1, 2), 9.0)
    cache = KVCache(cache, cache, jnp.int32(0), jnp.array([2, 0, 1]))
    rows = jnp.arange(2 * 1 * 5 * 1 * 2, dtype=jnp.float32).reshape(2, 1, 5, 1, 2)
    source = jnp.array([[3, 0, 0, 0], [4, 1, 0, 0], [0, 0, 0, 0]])
    filled = generate.store(cache, (rows, -rows), source, jnp.array([2, 0, 3]))  # 3 is none
    for layer in range(2):
        np.testing.assert_array_equal(filled.key[layer, 0, :2], rows[layer, 0, jnp.array([4, 1])])
        np.testing.assert_array_equal(filled.value[layer, 2, 0], -rows[layer, 0, 3])
        assert (filled.key[layer, 1] == 9).all()
