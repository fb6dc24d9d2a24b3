"""Every form of the LM head against the whole softmax, in float32 and in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import lm_head, reference
from jaxscore.device.backends import BACKENDS
from jaxscore.device.dots import as_integers, from_storage
from jaxscore.device.lm_head import column_blocks
from jaxscore.device.rows import ScoredPositions, Unembedding

pytestmark = pytest.mark.numeric

Q, T, D = 9, 3, 16
BLOCK = 64  # small, so that the tables below have several
SMALL_BLOCKS = {
    name: dataclasses.replace(
        BACKENDS["cpu"], lm_head=name, lm_head_columns=BLOCK, interpreted=True
    )
    for name in lm_head.IMPLEMENTATIONS
}


@pytest.fixture(params=lm_head.IMPLEMENTATIONS, autouse=True)
def form(request, monkeypatch):
    """Each test runs in every form; `head` has it."""
    monkeypatch.setattr("tests.device.lm_head.test_sums.CHOSEN", request.param)
    return request.param


CHOSEN = "position_blocks"


def head(V, *, std=0.02, bias=None, scale=1.0, softcap=None, dtype=jnp.float32, seed=0):
    draw = np.random.default_rng(seed)
    weight = as_integers(jnp.asarray(draw.normal(size=(V, D), scale=std), dtype))
    if bias is not None:
        bias = jnp.asarray(bias + draw.normal(size=V), jnp.float32)
    return Unembedding(weight, bias, scale, softcap, backend=SMALL_BLOCKS[CHOSEN])


def queries(V, seed=1):
    """Hidden states of unit variance and targets, the first and last column among them."""
    draw = np.random.default_rng(seed)
    hidden = jnp.asarray(draw.normal(size=(Q, D)), jnp.float32)
    target = draw.integers(0, V, (Q, T))
    target[0], target[1, 0] = V - 1, 0
    return hidden, jnp.asarray(target, jnp.int32)


def float64_terms(hidden, target, of: Unembedding):
    """From the definitions, in numpy: logprob, entropy, KL(uniform || p), argmax."""
    z = np.asarray(hidden, np.float64) @ np.asarray(from_storage(of.weight), np.float64).T
    z = (z + (0 if of.bias is None else np.asarray(of.bias, np.float64))) * of.scale
    z = z if of.softcap is None else of.softcap * np.tanh(z / of.softcap)
    z -= z.max(axis=1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    uniform = 1 / z.shape[1]
    return (
        np.take_along_axis(logp, np.asarray(target), axis=1),
        -(np.exp(logp) * logp).sum(axis=1),
        (uniform * (np.log(uniform) - logp)).sum(axis=1),
        z.argmax(axis=1),
    )


@functools.partial(jax.jit, static_argnames=("scale", "softcap", "split", "backend"))
def _terms(hidden, target, **of):
    return lm_head.score_positions(hidden, all_asked(target), Unembedding(**of))


def all_asked(target):
    """Every query with its targets, one answer after the other."""
    n_queries, n_targets = target.shape
    slot = jnp.repeat(jnp.arange(n_queries, dtype=jnp.int32), n_targets)
    n_answers = jnp.int32(target.size)
    every = jnp.arange(n_queries, dtype=jnp.int32)
    return ScoredPositions(every, jnp.int32(n_queries), slot, target.reshape(-1), n_answers)


def terms(hidden, target, of: Unembedding):
    """`score_positions`, compiled once per shape as the scorer does; answers by their query."""
    return by_query(_terms(hidden, target, **of._asdict()), target)


def by_query(scores, target):
    shape = target.shape
    return scores._replace(
        logprob=scores.logprob.reshape(shape), greedy=scores.greedy.reshape(shape)
    )


def slow_terms(hidden, target, of):
    return by_query(reference.score_positions(hidden, all_asked(target), of), target)


def assert_terms(hidden, target, of, atol, rtol=2e-6):
    """Against float64, and against the reference where float32 lets that be as good."""
    got = terms(hidden, target, of)
    logprob, entropy, certainty, best = float64_terms(hidden, target, of)
    twin = slow_terms(hidden, target, of)
    for name, exact in (("logprob", logprob), ("entropy", entropy), ("self_certainty", certainty)):
        ours, theirs = np.asarray(getattr(got, name)), np.asarray(getattr(twin, name))
        np.testing.assert_allclose(ours, exact, atol=atol, rtol=rtol, err_msg=name)
        np.testing.assert_allclose(ours, theirs, atol=4 * atol, rtol=4 * rtol, err_msg=name)
    assert got.greedy_id.tolist() == twin.greedy_id.tolist() == best.tolist()
    assert got.greedy.tolist() == (np.asarray(target) == best[:, None]).tolist()
    assert np.asarray(got.logprob).max() <= 0
    return got


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize(
    "V", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1, 1013]
)
def test_terms_at_every_raggedness_and_scale(V):
    """std 0.02 is what checkpoints have: logits near 0, where columns counted twice show."""
    for std in (0.02, 0.5, 5.0):
        assert_terms(*queries(V), head(V, std=std), atol=4e-6)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("offset", [-100.0, 100.0, 3000.0])
def test_a_common_offset_cancels(offset):
    """`lse - sum p z` would lose the offset's digits; terms relative to the maximum lose none
    but the rounding of each logit, half a last bit of the offset."""
    V = 1013
    rounding = float(np.spacing(np.float32(abs(offset))))
    assert_terms(*queries(V), head(V, std=0.5, bias=offset), atol=2e-6 + rounding)


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 30.0, "scale": 0.5, "bias": 1.0},
        {"bias": 0.0},
        {"scale": 0.125},
        {"scale": 4.0},
        {"softcap": 2.0},
    ],
    ids=str,
)
def test_bias_scale_and_softcap(options):
    V = 3 * BLOCK + 17
    arrays = queries(V)
    got = assert_terms(*arrays, head(V, std=1.0, **options), atol=4e-6)
    plain = terms(*arrays, head(V, std=1.0))
    assert np.abs(got.entropy - plain.entropy).min() > 1e-4  # the option did something


def test_bfloat16_weights():
    """Exact against the rounded hidden states: products of bfloat16 are exact in float32."""
    V = 3 * BLOCK + 17
    hidden, target = queries(V)
    rounded = hidden.astype(jnp.bfloat16).astype(jnp.float32)
    of = head(V, std=0.5, dtype=jnp.bfloat16)
    assert_terms(rounded, target, of, atol=4e-6)
    got = terms(hidden, target, of)
    same = terms(rounded, target, of)
    assert (got.logprob == same.logprob).all()


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("places", [(3, 40), (3, BLOCK + 3), (BLOCK - 1, BLOCK), (0, 1012)])
def test_the_lowest_index_wins_a_tie(places):
    """Two identical rows that every query likes best, in one block and in two."""
    V = 1013
    hidden, target = queries(V)
    of = head(V)
    loud = of.weight.at[jnp.array(places)].set(5.0)
    hidden = jnp.abs(hidden)
    target = target.at[:, 0].set(places[0]).at[:, 1].set(places[1])
    got = terms(hidden, target, of._replace(weight=loud))
    assert got.greedy_id.tolist() == [places[0]] * Q
    assert got.greedy[:, 0].all()
    assert not got.greedy[:, 1].any()
    assert (got.logprob[:, 0] == got.logprob[:, 1]).all()


def test_all_logits_equal():
    """Zero hidden states: the uniform distribution, exactly its own entropy."""
    V = 2 * BLOCK + 5
    _, target = queries(V)
    got = terms(jnp.zeros((Q, D)), target, head(V))
    np.testing.assert_allclose(got.logprob, -np.log(V), rtol=2e-7)
    np.testing.assert_allclose(got.entropy, np.log(V), rtol=2e-7)
    np.testing.assert_allclose(got.self_certainty, 0, atol=1e-6)
    assert got.greedy_id.tolist() == [0] * Q


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("columns", [[0], [5, BLOCK + 1], range(BLOCK), range(3, 1013)], ids=str)
def test_a_logit_of_minus_infinity_is_a_probability_of_0(columns):
    """Its part of the entropy is 0, and self-certainty, the divergence from uniform, infinite."""
    V, columns = 1013, np.array(columns)
    hidden, target = queries(V)
    of = head(V, std=0.5, bias=0.0)
    masked = of._replace(bias=of.bias.at[columns].set(-jnp.inf))
    target = target.at[:, 0].set(columns[0]).at[:, 1].set(1)
    got, twin = terms(hidden, target, masked), slow_terms(hidden, target, masked)
    rest = np.setdiff1d(np.arange(V), columns)
    fewer = of._replace(weight=of.weight[rest], bias=of.bias[rest])
    exact = float64_terms(hidden, jnp.zeros_like(target), fewer)
    for one in (got, twin):
        np.testing.assert_allclose(one.entropy, exact[1], atol=1e-5, rtol=1e-5)
        assert np.isposinf(one.self_certainty).all()
        assert np.isneginf(one.logprob[:, 0]).all()
    np.testing.assert_allclose(got.logprob[:, 1], twin.logprob[:, 1], atol=1e-5)
    assert got.greedy_id.tolist() == rest[exact[3]].tolist() == twin.greedy_id.tolist()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_no_number_leaves_nothing_finite(value):
    hidden, target = queries(1013)
    of = head(1013, bias=0.0)
    got = terms(hidden, target, of._replace(bias=of.bias.at[70].set(value)))
    for name in ("entropy", "self_certainty", "logprob"):
        assert not np.isfinite(getattr(got, name)).any()


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_certain_token_has_no_positive_logprob(softcap):
    """The target is the argmax and takes nearly all probability, where rounding could overshoot."""
    V = 3 * BLOCK + 1
    hidden = jnp.asarray(np.random.default_rng(2).normal(size=(256, D)), jnp.float32)
    of = head(V, std=8.0, softcap=softcap)
    best = slow_terms(hidden, jnp.zeros((256, 1), jnp.int32), of).greedy_id
    got = terms(hidden, best[:, None], of)
    assert np.asarray(got.logprob).max() <= 0
    assert np.asarray(got.entropy).min() >= -1e-6
    if softcap is None:
        assert np.asarray(got.logprob).max() > -1e-6


def test_columns_of_the_last_block_that_are_read_again_count_once(monkeypatch):
    """Loud logits stand where the last block, moved back inside the table, reads them again.

    The mask is what saves the sums: with it taken out, this very comparison must fail.
    """
    V = 2 * BLOCK + 3
    hidden, target = queries(V)
    of = head(V)
    # Aligned with all queries: each of these columns has a large share of the probability.
    hidden = jnp.abs(hidden)
    again = slice(V - BLOCK, 2 * BLOCK)
    of = of._replace(weight=of.weight.at[again].add(0.4))
    target = target.at[:, 0].set(V - BLOCK).at[:, 1].set(2 * BLOCK - 1)
    assert_terms(hidden, target, of, atol=4e-6)

    class Unmasked:
        """jax.numpy whose `where` takes every column for fresh."""

        def __getattr__(self, name):
            return getattr(jnp, name)

        @staticmethod
        def where(condition, yes, no):
            masked = condition.shape == (1, BLOCK)
            return jnp.where(jnp.ones_like(condition) if masked else condition, yes, no)

    monkeypatch.setattr(column_blocks, "jnp", Unmasked())
    broken = lm_head.lm_head_terms(hidden, of)
    _, entropy, _, _ = float64_terms(hidden, target, of)
    assert np.abs(np.asarray(broken.entropy) - entropy).max() > 0.1
