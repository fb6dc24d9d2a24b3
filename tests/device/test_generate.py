"""Drawing tokens, against the definition written out in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.dots import as_integers
from jaxscore.device.forms import FORMS
from jaxscore.device.generate import Sampling, draw
from jaxscore.device.rows import Unembedding
from jaxscore.device.vocabulary.blocks import all_logits

V = 23


def sampling(n, temperature, top_p, seeds=None):
    seeds = range(n) if seeds is None else seeds
    return Sampling(
        jnp.full(n, temperature), jnp.full(n, top_p), jnp.array(list(seeds), jnp.uint32)
    )


def nucleus(logits, temperature, top_p):
    """Ids of the smallest set of most probable ones that holds top_p, and their shares."""
    z = logits.astype(np.float64) / temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    count = 1
    while p[order[:count]].sum() < top_p and count < len(p):
        count += 1
    kept = order[:count]
    return kept, p[kept] / p[kept].sum()


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (2.0, 0.5), (1.0, 0.01)]
)
def test_draws_have_the_shares_of_the_nucleus(temperature, top_p):
    n = 20000
    logits = np.random.default_rng(3).normal(size=V).astype(np.float32) * 1.5
    kept, shares = nucleus(logits, temperature, top_p)
    drawn = jax.jit(draw)(
        jnp.tile(logits, (n, 1)), sampling(n, temperature, top_p), jnp.zeros(n, jnp.int32)
    )
    counts = np.bincount(np.asarray(drawn), minlength=V)
    assert set(np.flatnonzero(counts)) <= set(kept.tolist())
    # Five standard deviations of a binomial, for each token.
    error = 5 * np.sqrt(shares * (1 - shares) / n) + 1e-12
    assert (np.abs(counts[kept] / n - shares) <= error).all()


def test_a_draw_depends_on_seed_and_count_and_on_nothing_else():
    logits = jnp.asarray(np.random.default_rng(4).normal(size=(6, V)), jnp.float32)
    same = jnp.tile(logits[:1], (6, 1))
    step = jnp.zeros(6, jnp.int32)
    seeds = [1, 1, 2, 3, 4, 5]
    first = draw(same, sampling(6, 1.5, 1.0, seeds), step)
    assert first[0] == first[1]
    assert len(set(first.tolist())) > 1
    alone = [
        draw(same[k : k + 1], sampling(1, 1.5, 1.0, [s]), step[:1]) for k, s in enumerate(seeds)
    ]
    assert [int(one[0]) for one in alone] == first.tolist()
    later = draw(same, sampling(6, 1.5, 1.0, seeds), step + 1)
    assert later.tolist() != first.tolist()


def test_temperature_0_is_the_argmax_and_the_lower_id_of_two():
    logits = jnp.zeros((2, V)).at[0, 7].set(1.0).at[1, 9].set(2.0).at[1, 4].set(2.0)
    assert draw(logits, sampling(2, 0.0, 1.0), jnp.zeros(2, jnp.int32)).tolist() == [7, 4]


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1e-6, 1.0), (1e-38, 1.0), (1e30, 1e-9), (1.0, 1e-30)]
)
def test_what_leaves_one_token_draws_the_most_probable(temperature, top_p):
    # Divided by 1e-38 four of these logits are infinite.
    logits = jnp.tile(jnp.array([10.0, 19.0, -5.0, 20.0, 19.5]), (64, 1))
    drawn = draw(logits, sampling(64, temperature, top_p), jnp.zeros(64, jnp.int32))
    assert drawn.tolist() == [3] * 64


def test_a_very_high_temperature_draws_from_all_alike():
    logits = jnp.tile(jnp.array([10.0, 19.0, -5.0, 20.0]), (4000, 1))
    drawn = draw(logits, sampling(4000, 1e30, 1.0), jnp.zeros(4000, jnp.int32))
    assert (np.abs(np.bincount(drawn, minlength=4) - 1000) < 5 * np.sqrt(750)).all()


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
