"""Divergences of two models against whole distributions in float64, where p and q are far apart,
nearly equal and equal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.device.backends import BACKENDS
from jaxscore.device.dots import as_integers, from_storage
from jaxscore.device.lm_head import divergence as module
from jaxscore.device.lm_head import score_positions
from jaxscore.device.lm_head.divergence import MEASURES, Divergence, Pair, column_terms, score_pair
from jaxscore.device.rows import ScoredPositions, Unembedding

pytestmark = pytest.mark.numeric

Q, D, E = 9, 16, 24
BLOCK = 64
BLOCKS = dataclasses.replace(BACKENDS["cpu"], lm_head_columns=BLOCK)
RAGGED = 3 * BLOCK + 17
N_ARRAYS = 2  # of an unembedding: its weight and its bias


def head(V, width=D, *, std=0.5, bias=None, scale=1.0, softcap=None, dtype=jnp.float32, seed=0):
    draw = np.random.default_rng(seed)
    weight = as_integers(jnp.asarray(draw.normal(size=(V, width), scale=std), dtype))
    if bias is not None:
        bias = jnp.asarray(bias + draw.normal(size=V), jnp.float32)
    return Unembedding(weight, bias, scale, softcap, backend=BLOCKS)


def hidden(width=D, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(Q, width)), jnp.float32)


def asked(V, n=Q, seed=2):
    """Two answers to each of the first n queries, the last column among them."""
    answer = np.random.default_rng(seed).integers(0, V, (Q, 2))
    answer[0, 0] = V - 1
    slot = np.repeat(np.arange(Q, dtype=np.int32), 2)
    every = jnp.arange(Q, dtype=jnp.int32)
    flat = jnp.asarray(answer.reshape(-1), jnp.int32)
    return ScoredPositions(every, jnp.int32(n), jnp.asarray(slot), flat, jnp.int32(2 * n))


def logprobs(states, of: Unembedding):
    """ln p of every column, float64 [Q, V]."""
    z = np.asarray(states, np.float64) @ np.asarray(from_storage(of.weight), np.float64).T
    z = (z + (0 if of.bias is None else np.asarray(of.bias, np.float64))) * of.scale
    z = z if of.softcap is None else of.softcap * np.tanh(z / of.softcap)
    z -= z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def kl(a, b):
    """KL(a || b) of logarithms, by its definition: 0 ln 0 is 0."""
    p = np.exp(a)
    with np.errstate(invalid="ignore"):
        return np.where(p > 0, p * (a - b), 0.0).sum(axis=-1)


def definition(a, b) -> Divergence:
    """From the definitions, in float64."""
    m = np.logaddexp(a, b) - np.log(2)
    return Divergence(kl(a, b), kl(b, a), (kl(a, m) + kl(b, m)) / 2)


@functools.partial(jax.jit, static_argnames=("options", "measures"))
def _scored(states, of, arrays, *, options, measures):
    heads = [Unembedding(*a, *o) for a, o in zip(arrays, options, strict=True)]
    return score_pair(states, of, Pair(*heads), measures)


def scored(states_p, states_q, p, q, of=None, measures=MEASURES):
    """`score_pair`, by default with all measures, which are then those of each answer."""
    of = asked(p.weight.shape[0]) if of is None else of
    arrays, options = zip(*((one[:N_ARRAYS], one[N_ARRAYS:]) for one in (p, q)), strict=True)
    return _scored((states_p, states_q), of, arrays, options=options, measures=measures)


def divergence(states_p, states_q, p, q, of=None) -> Divergence:
    """Of each query."""
    got = scored(states_p, states_q, p, q, of, Divergence._fields)
    return Divergence(**got.measures)


def assert_close(got, want, atol=1e-4, rtol=0.0):
    for name in Divergence._fields:
        np.testing.assert_allclose(
            getattr(got, name), getattr(want, name), atol=atol, rtol=rtol, err_msg=name
        )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("V", [RAGGED, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1])
def test_at_every_raggedness(V):
    p, q = head(V), head(V, E, std=0.4, seed=3)
    states_p, states_q = hidden(), hidden(E, seed=4)
    got = divergence(states_p, states_q, p, q)
    want = definition(logprobs(states_p, p), logprobs(states_q, q))
    assert_close(got, want, atol=1e-5)
    assert np.asarray(got.js).max() <= np.log(2) + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"softcap": 2.0}, {"bias": 0.0}, {"scale": 0.125}, {"std": 5.0}, {"dtype": jnp.bfloat16}],
    ids=str,
)
def test_bias_scale_softcap_and_types(options):
    p, q = head(RAGGED, **options), head(RAGGED, seed=3)
    # Products of bfloat16 are exact in float32, so the states are rounded for both.
    states_p, states_q = (hidden(seed=k).astype(jnp.bfloat16).astype(jnp.float32) for k in (1, 4))
    got = divergence(states_p, states_q, p, q)
    assert_close(got, definition(logprobs(states_p, p), logprobs(states_q, q)))


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-4])
def test_nearly_equal_models_lose_no_digits(size):
    """The logits of float32 stand here as they are, so that their own rounding, which no formula
    can undo, is in neither number."""
    draw = np.random.default_rng(5)
    z_p = draw.normal(size=(Q, RAGGED), scale=2.0)
    z_q = z_p + size * draw.normal(size=z_p.shape) + 3.0  # a common shift changes nothing
    a, b = (z - np.log(np.exp(z).sum(axis=1, keepdims=True)) for z in (z_p, z_q))
    a, b = (one.astype(np.float32) for one in (a, b))
    d = b.astype(np.float64) - a
    p, q = np.exp(a.astype(np.float64)), np.exp(b.astype(np.float64))
    t = d / 2
    want = Divergence(
        (p * (np.expm1(d) - d)).sum(axis=1),
        (q * (np.expm1(-d) + d)).sum(axis=1),
        ((p + q) * (t * np.tanh(t) - np.log1p(2 * np.sinh(t / 2) ** 2))).sum(axis=1) / 2,
    )
    got = jax.tree.map(lambda x: x.sum(axis=1), jax.jit(column_terms)(a, b))
    assert_close(got, want, atol=0.0, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-2, 1e-3])
def test_tiny_divergences_of_whole_models(size):
    p = head(RAGGED, std=0.2)
    moved = p.weight + size * head(RAGGED, std=0.2, seed=6).weight
    q = p._replace(weight=moved)
    states = hidden()
    got = divergence(states, states, p, q)
    want = definition(logprobs(states, p), logprobs(states, q))
    assert np.asarray(want.kl).max() < size**2
    assert_close(got, want, atol=0.0, rtol=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-80, 0, width=32), st.floats(-80, 0, width=32)), min_size=8, max_size=8
    )
)
def test_no_term_is_negative_and_the_roles_are_symmetric(pairs):
    a, b = (np.array([column], np.float32) for column in zip(*pairs, strict=True))
    one, other = TERMS(a, b), TERMS(b, a)
    assert all((np.asarray(x) >= 0).all() for x in one)
    assert (one.kl == other.reverse_kl).all()
    assert (one.js == other.js).all()
    p, q = np.exp(a, dtype=np.float64), np.exp(b, dtype=np.float64)
    np.testing.assert_allclose(one.kl, p * (a - b.astype(float)) - p + q, atol=2e-6, rtol=1e-5)
    assert (np.asarray(one.js) <= (p + q) / 2 * np.log(2) * (1 + 1e-6) + 1e-30).all()


TERMS = jax.jit(column_terms)


@pytest.mark.slow
def test_equal_models_differ_by_nothing():
    """Exactly, also where each has arrays of its own and the vocabulary is ragged."""
    p = head(RAGGED, bias=0.0, softcap=3.0)
    q = p._replace(weight=jnp.array(p.weight, copy=True))
    states = hidden()
    got = scored(states, jnp.array(states, copy=True), p, q)
    both = got.measures
    assert all((np.asarray(both[name]) == 0).all() for name in Divergence._fields)
    assert (both["same_argmax"] == 1).all()
    assert (both["reference_logprob"] == got.logprob).all()
    assert (both["reference_entropy"] == got.entropy).all()


@pytest.mark.slow
def test_each_models_own_scores_are_those_of_the_plain_pass():
    p, q = head(RAGGED), head(RAGGED, E, seed=3)
    states_p, states_q, of = hidden(), hidden(E, seed=4), asked(RAGGED)
    got = scored(states_p, states_q, p, q)
    plain, other = (
        jax.jit(
            lambda states, weight, one=one: score_positions(states, of, one._replace(weight=weight))
        )(states, one.weight)
        for states, one in ((states_p, p), (states_q, q))
    )
    slot = np.asarray(of.slot)
    for own, want in (
        (got.logprob, plain.logprob),
        (got.entropy, plain.entropy[slot]),
        (got.self_certainty, plain.self_certainty[slot]),
        (got.measures["reference_logprob"], other.logprob),
        (got.measures["reference_entropy"], other.entropy[slot]),
    ):
        np.testing.assert_allclose(own, want, rtol=2e-6, atol=2e-6)
    assert (got.greedy == plain.greedy).all()
    assert (got.greedy_id == plain.greedy_id[slot]).all()
    same = (plain.greedy_id == other.greedy_id)[slot]
    assert (got.measures["same_argmax"] == same).all()


@pytest.mark.slow
def test_measures_of_queries_alone():
    """Without the reference's log-probability nothing is of one token."""
    p, q, states = head(RAGGED), head(RAGGED, seed=3), hidden()
    every = scored(states, states, p, q)
    few = scored(states, states, p, q, measures=("js", "kl"))
    assert list(few.measures) == ["js", "kl"]
    slot = np.asarray(asked(RAGGED).slot)
    assert (few.measures["kl"][slot] == every.measures["kl"]).all()
    assert (few.entropy[slot] == every.entropy).all()
    assert few.logprob.shape == every.logprob.shape


def masked(of, columns):
    return of._replace(bias=of.bias.at[jnp.array(columns)].set(-jnp.inf))


def test_probabilities_of_0():
    p, q = head(RAGGED, bias=0.0), head(RAGGED, bias=0.0, seed=3)
    states = hidden()
    both = divergence(states, states, masked(p, [3, 70]), masked(q, [3, 70]))
    rest = np.setdiff1d(np.arange(RAGGED), [3, 70])
    fewer = (one._replace(weight=one.weight[rest], bias=one.bias[rest]) for one in (p, q))
    assert_close(both, definition(*(logprobs(states, one) for one in fewer)))
    in_q = divergence(states, states, p, masked(q, [70]))
    assert np.isposinf(in_q.kl).all()
    in_p = divergence(states, states, masked(p, [70]), q)
    assert np.isposinf(in_p.reverse_kl).all()
    with np.errstate(divide="ignore"):
        want_q = definition(logprobs(states, p), logprobs(states, masked(q, [70])))
        want_p = definition(logprobs(states, masked(p, [70])), logprobs(states, q))
    np.testing.assert_allclose(in_q.reverse_kl, want_q.reverse_kl, atol=1e-4)
    np.testing.assert_allclose(in_p.kl, want_p.kl, atol=1e-4)
    for got, want in ((in_q, want_q), (in_p, want_p)):
        np.testing.assert_allclose(got.js, want.js, atol=1e-4)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["p", "q"])
def test_a_logit_that_is_no_number_leaves_nothing_finite(place, value):
    heads = {"p": head(RAGGED, bias=0.0), "q": head(RAGGED, bias=0.0, seed=3)}
    broken = heads[place]
    heads[place] = broken._replace(bias=broken.bias.at[70].set(value))
    got = divergence(hidden(), hidden(), **heads)
    assert not any(np.isfinite(one).any() for one in got)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shards", [2, 4])
def test_a_split_vocabulary(shards):
    """Each shard has some of the columns; `vmap` with a name is the mesh's axis."""
    V = 4 * (BLOCK + 5)
    p, q = head(V, bias=0.0), head(V, E, seed=3)
    states_p, states_q, of = hidden(), hidden(E, seed=4), asked(V)
    whole = scored(states_p, states_q, p, q, of)

    def cut(one):
        return one.reshape(shards, V // shards, *one.shape[1:])

    @jax.jit
    @functools.partial(jax.vmap, axis_name="model", in_axes=(0, 0, 0))
    def run(weight_p, bias, weight_q):
        heads = Pair(
            p._replace(weight=weight_p, bias=bias, split="model"),
            q._replace(weight=weight_q, split="model"),
        )
        return score_pair((states_p, states_q), of, heads)

    got = jax.tree.map(lambda x: x[0], run(cut(p.weight), cut(p.bias), cut(q.weight)))
    for name in MEASURES:
        np.testing.assert_allclose(
            got.measures[name], whole.measures[name], atol=2e-6, rtol=1e-5, err_msg=name
        )
    assert (got.greedy_id == whole.greedy_id).all()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("n", [5, 0, 1, Q])
def test_blocks_of_queries(monkeypatch, n):
    """Large blocks, small ones and a last one that is not full, by the number that is asked."""
    V = RAGGED + 1  # programs of this size are compiled here alone, with these blocks
    monkeypatch.setattr(module, "MIN_POSITIONS", 2)
    monkeypatch.setattr(module, "MAX_LOGIT_BYTES", 2 * 4 * V * 4)
    assert module._block_size(V) == 4
    p, q, states = head(V), head(V, seed=3), hidden()
    got = divergence(states, states, p, q, asked(V, n))
    want = definition(logprobs(states, p), logprobs(states, q))
    first = jax.tree.map(lambda x: x[:n], (got, want))
    assert_close(*first, atol=1e-5)


def test_held_logits_are_bounded():
    assert [module._block_size(V) for V in (2, 1000, 50257, 151936, 262144, 10**6)] == [
        512, 512, 512, 128, 128, 128,
    ]  # fmt: skip
