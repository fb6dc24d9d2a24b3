"""What decoding is made of: all logits of a few states, and prompts stored in a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.backends import BACKENDS
from jaxscore.device.decoder import KeysValues
from jaxscore.device.dots import as_integers
from jaxscore.device.lm_head.column_blocks import all_logits
from jaxscore.device.rows import Unembedding
from jaxscore.engine.generation.state import (
    SamplingFeatures,
    empty_rows,
    sampling_features,
    starting_rows,
)
from jaxscore.plan.requests import TokenRequest

pytestmark = pytest.mark.numeric

V = 23
BY_EIGHT = dataclasses.replace(BACKENDS["cpu"], lm_head_columns=8)


def put(tree):
    return jax.tree.map(jnp.asarray, tree)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_all_logits_by_blocks(softcap):
    random = np.random.default_rng(5)
    hidden, weight, bias = (
        jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((3, 16), (V, 16), (V,))
    )
    got = all_logits(hidden, Unembedding(as_integers(weight), bias, 0.5, softcap, backend=BY_EIGHT))
    want = (np.asarray(hidden, np.float64) @ np.asarray(weight).T + np.asarray(bias)) * 0.5
    want = want if softcap is None else softcap * np.tanh(want / softcap)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_fill_slots_changes_its_slots_and_no_others():
    """To their end, so that nothing of an older text stays, and of the prompts nothing but what is
    asked for; states with them."""
    cache, states = jnp.full((2, 3, 2, 4, 2), jnp.nan), {"state": jnp.full((5, 3, 4), jnp.nan)}
    cache = KVCache(cache, cache, jnp.int32(0), jnp.array([2, 0, 1]), states)
    rows = jnp.arange(2 * 2 * 2 * 5 * 2, dtype=jnp.float32).reshape(2, 2, 2, 5, 2)
    rows = rows.at[:, :, :, 0].set(jnp.nan)  # a token of another prompt
    source = jnp.array([[3, 10, 10, 10], [9, 1, 10, 10], [10] * 4])  # 10 is none
    ends = {"state": jnp.arange(5 * 2 * 4.0).reshape(5, 2, 4)}
    prefilled, slot = KeysValues(rows, -rows, ends), jnp.array([2, 0, 3])  # 3 is none
    filled = generate.fill_slots(cache, prefilled, source, slot, jnp.array([1, 0, 0]))
    state = filled.states["state"]
    np.testing.assert_array_equal(state[:, 2], ends["state"][:, 1])
    np.testing.assert_array_equal(state[:, 0], ends["state"][:, 0])
    assert jnp.isnan(state[:, 1]).all()
    for layer, head in np.ndindex(2, 2):
        own = rows[layer, :, head].reshape(10, 2)
        np.testing.assert_array_equal(filled.key[layer, 0, head, :2], own[jnp.array([9, 1])])
        np.testing.assert_array_equal(filled.value[layer, 2, head, 0], -own[3])
        for part in (filled.key, filled.value):
            assert (part[layer, 0, head, 2:] == 0).all()
            assert (part[layer, 2, head, 1:] == 0).all()
            assert jnp.isnan(part[layer, 1]).all()


def test_the_tokens_of_a_block_stand_behind_what_each_row_had():
    """In every layer and head; a row that is done gets none."""

    def extend(_params, ids, position, _end, _caches):
        layer, head, channel = (
            jnp.arange(2.0).reshape(shape) for shape in ((2, 1, 1, 1, 1), (2, 1, 1), (2,))
        )
        key = 1000 * layer + 100 * head + 10 * channel + position[None, :, None, :, None]
        return jnp.ones((*ids.shape, 2)), KeysValues(key, -key)

    cache = jnp.full((2, 3, 2, 8, 2), -1.0)
    cache = KVCache(cache, cache, jnp.int32(0), jnp.array([2, 0, 5]))
    state, sampling, eos = empty_rows(cache, 3, SamplingFeatures(True, False, False, 1), V, put)
    state = state._replace(done=jnp.array([False, True, False]), left=jnp.full(3, 3))
    head = Unembedding(jnp.ones((V, 2)), None, 1.0, None, backend=BY_EIGHT)
    state, _ = generate.decode(
        extend, lambda _: head, {}, state, sampling, (), eos, steps=3, greedy=True, cut=False
    )
    want = np.full((2, 3, 2, 8, 2), -1.0)
    other = want.copy()
    for layer, head, channel in np.ndindex(2, 2, 2):
        for row, slots in ((0, range(2, 5)), (2, range(5, 8))):
            for slot in slots:
                number = 1000 * layer + 100 * head + 10 * channel + slot
                want[layer, row, head, slot, channel] = number
                other[layer, row, head, slot, channel] = -number
    np.testing.assert_array_equal(state.cache.key, want)
    np.testing.assert_array_equal(state.cache.value, other)
    assert state.cache.length.tolist() == [5, 0, 8]


@pytest.mark.parametrize("penalties", [False, True])
def test_start_fills_slots_of_new_requests_and_leaves_the_others(penalties):
    def request(seed):
        draw = np.random.default_rng(seed)
        ids = draw.integers(0, V, int(draw.integers(1, 6))).astype(np.int32)
        eos = tuple(draw.integers(0, V, int(draw.integers(0, 4))).tolist())
        numbers = draw.uniform(0.1, 1.0, 2).tolist()
        return TokenRequest(ids, int(draw.integers(1, 9)), *numbers, seed, (), eos, seed, 1 + seed)

    asked = [request(seed) for seed in range(6)]
    facts = sampling_features(asked)._replace(penalties=penalties)
    cache = jnp.zeros((1, 4, 1, 8, 2))
    cache = KVCache(cache, cache, jnp.int32(3), jnp.zeros(4, jnp.int32))

    everything = empty_rows(cache, 4, facts, V, put)
    assert everything[0].done.all()
    want = {}
    for some in ([(0, 5, 0), (2, 1, 1)], [(2, 7, 2), (3, 0, 3)], [(1, 2, 4)], [(2, 4, 5)]):
        new = [(row, length, 0, asked[k]) for row, length, k in some]
        kept = jnp.full((1, 1, 1, 8, 2), len(want) + 1.0)
        source = jnp.broadcast_to(jnp.arange(8), (2, 8))
        begun = starting_rows(new, 2, 4, facts, V, put)
        everything = generate.start(*everything, KeysValues(kept, -kept), source, begun)
        for row, *_ in some:
            assert (everything[0].cache.key[0, row] == kept[0, 0]).all()
        want |= {row: (length, one) for row, length, _, one in new}
    state, sampling, eos = everything
    assert (state.done.tolist(), state.drawn.tolist()) == ([False] * 4, [0] * 4)
    assert (state.seen is not None) == penalties
    for row, (length, one) in want.items():
        assert (int(state.cache.length[row]), int(state.token[row])) == (length, one.ids[-1])
        assert int(state.left[row]) == one.n_new
        numbers = one.temperature, one.top_p, one.top_k, one.repetition_penalty, one.seed
        np.testing.assert_allclose([float(column[row]) for column in sampling], numbers, rtol=1e-6)
        assert tuple(eos[row, : len(one.eos_ids)].tolist()) == one.eos_ids
        assert (eos[row, len(one.eos_ids) :] == -1).all()
        if penalties:
            assert np.flatnonzero(state.seen[row]).tolist() == sorted({*one.ids.tolist()})
