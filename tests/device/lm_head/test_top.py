"""The most probable tokens of the fused pass, against a stable sort of all logits in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import lm_head, reference
from jaxscore.device.backends import BACKENDS
from jaxscore.device.dots import as_integers, from_storage
from jaxscore.device.lm_head.column_blocks import sum_columns
from jaxscore.device.lm_head.sums import empty_top_k, merge_top_k, terms, top_k_logprobs
from jaxscore.device.rows import ScoredPositions, Unembedding

pytestmark = pytest.mark.numeric

Q, D, BLOCK = 10, 16, 64
SMALL = dataclasses.replace(
    BACKENDS["cpu"], lm_head_columns=BLOCK, position_blocks=(6, 4), interpreted=True
)
HIDDEN = np.random.default_rng(0).normal(size=(Q, D)).astype(jnp.bfloat16).astype(np.float32)


def head(V, *, std=0.5, bias=None, dtype=jnp.float32, form="position_blocks", **options):
    draw = np.random.default_rng(V)
    weight = as_integers(jnp.asarray(draw.normal(size=(V, D), scale=std), dtype))
    backend = dataclasses.replace(SMALL, lm_head=form)
    of = {"scale": 1.0, "softcap": None} | options
    return Unembedding(weight, bias, backend=backend, **of)


STATIC = ("scale", "softcap", "split", "backend", "top")


@functools.partial(jax.jit, static_argnames=STATIC)
def _of_all(hidden, top, **of):
    of = Unembedding(**of)
    sums = sum_columns(hidden, of, top)
    return top_k_logprobs(sums.ranked, terms(sums, of), of, top)


def ranked(of, top, hidden=HIDDEN):
    """Ids and log-probabilities."""
    return jax.device_get(_of_all(hidden, top, **of._asdict()))


def float64_logits(of, hidden=HIDDEN):
    z = hidden.astype(np.float64) @ np.asarray(from_storage(of.weight), np.float64).T
    z = (z + (0 if of.bias is None else of.bias.astype(np.float64))) * of.scale
    return z if of.softcap is None else of.softcap * np.tanh(z / of.softcap)


def first(z, top):
    """Ids of the largest, the lowest id first among equal ones."""
    return np.argsort(-z, axis=1, kind="stable")[:, :top]


def assert_ranked(got, z, top):
    id, logprob = got
    assert (id.dtype, logprob.dtype) == (np.int32, np.float32)
    want = first(z, top)
    np.testing.assert_array_equal(id, want)
    below = z - z.max(axis=1, keepdims=True)
    exact = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    exact = np.take_along_axis(exact, want, axis=1)
    np.testing.assert_allclose(logprob, exact, atol=4e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("V", "top"),
    [
        *((V, 20) for V in (20, BLOCK - 1, BLOCK + 1, 3 * BLOCK)),
        *((1013, top) for top in (1, 5, 20)),
        *((V, V) for V in (1, 7, BLOCK, 150)),  # more than a block has columns
    ],
)
def test_they_are_those_of_all_logits(V, top):
    of = head(V)
    assert_ranked(ranked(of, top), float64_logits(of), top)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"softcap": 30.0, "scale": 0.25, "std": 4.0},
        {"bias": np.linspace(-1, 1, 3 * BLOCK + 17, dtype=np.float32), "scale": 1.5},
        {"dtype": jnp.bfloat16},
    ],
    ids=["softcap", "softcap and scale", "bias", "bfloat16"],
)
def test_options_of_the_unembedding(options):
    of = head(3 * BLOCK + 17, **options)
    assert_ranked(ranked(of, 20), float64_logits(of), 20)


def test_equal_logits_keep_the_order_of_their_columns():
    """Small whole numbers, which are the same in any order of summation."""
    draw = np.random.default_rng(4)
    hidden = draw.integers(-1, 2, (Q, D)).astype(np.float32)
    of = head(1013)
    of = of._replace(weight=draw.integers(-1, 2, of.weight.shape).astype(np.float32))
    got, z = ranked(of, 20, hidden), float64_logits(of, hidden)
    assert_ranked(got, z, 20)
    assert (np.diff(np.take_along_axis(z, got[0], axis=1), axis=1) == 0).mean() > 0.5


@pytest.mark.parametrize("top", [2, 40, 150])
def test_every_kind_of_tie(top):
    """Zeros of both signs are equal; so are all logits that are minus infinity."""
    draw = np.random.default_rng(top)
    values = np.array([-np.inf, -1, -0.0, 0.0, 2], np.float32)
    V, block = 150, 32
    z = values[draw.integers(0, 5, (200, V))]
    z[:20] = -np.inf  # no other one, and two others
    z[10:20, [7, 140]] = -5

    @jax.jit
    def run(z):
        found = empty_top_k(len(z), head(V), top)
        for begin in range(0, V, block):
            start = min(begin, V - block)  # the last block is moved back, as in the pass
            fresh = (start + jnp.arange(block) >= begin)[None]
            part = jax.lax.dynamic_slice_in_dim(z, start, block, 1)
            found = merge_top_k(found, part, jnp.int32(start), fresh)
        return found.id

    np.testing.assert_array_equal(run(z), first(np.maximum(z, np.float32(-1e30)), top))


@pytest.mark.parametrize("top", [1, 5])
def test_tokens_of_probability_0(top):
    kept = np.array([3, BLOCK + 5, 1012])
    bias = np.full(1013, -np.inf, np.float32)
    bias[kept] = 0
    of = head(1013, bias=bias)
    id, logprob = ranked(of, top)
    n = min(top, len(kept))
    of_kept = float64_logits(of)[:, kept]
    np.testing.assert_array_equal(id[:, :n], kept[first(of_kept, n)])
    assert id[:, n:].tolist() == [[0, 1][: top - n]] * Q  # the lowest ids of the others
    assert np.isfinite(logprob[:, :n]).all()
    assert np.isneginf(logprob[:, n:]).all()


@pytest.mark.parametrize("top", [1, 5])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_logit_that_is_no_number_leaves_no_probability(top, value):
    bias = np.zeros(1013, np.float32)
    bias[70] = value
    assert np.isnan(ranked(head(1013, bias=bias), top)[1]).all()


@functools.partial(jax.jit, static_argnames=STATIC)
def _scores(hidden, answer, n, top, **of):
    every = jnp.arange(Q, dtype=jnp.int32)
    return lm_head.score_positions(
        hidden, ScoredPositions(every, n, every, answer, n), Unembedding(**of), top
    )


@pytest.mark.parametrize("top", [5, 1, 0])
@pytest.mark.parametrize("form", lm_head.IMPLEMENTATIONS)
def test_every_form_for_any_number_of_queries(form, top):
    """Beside the numbers that it gives without them, which stay as they are.

    The number of an answer comes from a product of its own. Where the answer is the best token
    both numbers are the same bits.
    """
    of = head(3 * BLOCK + 1, form=form, softcap=30.0, std=2.0)
    z = float64_logits(of)
    best = first(z, 1)[:, 0].astype(np.int32)
    every = jnp.arange(Q)
    twin = reference.score_positions(
        HIDDEN, ScoredPositions(every, Q, every, jnp.asarray(best), Q), of, top
    )
    for n in (1, 4, 7, Q):
        got = jax.device_get(_scores(HIDDEN, best, np.int32(n), top, **of._asdict()))
        for name in ("logprob", "greedy", "entropy", "self_certainty", "greedy_id"):
            ours, theirs = getattr(got, name)[:n], getattr(twin, name)[:n]
            np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=2e-6, err_msg=name)
        assert got.greedy[:n].all()
        if not top:
            assert got.top_id is got.top_logprob is twin.top_id is twin.top_logprob is None
            continue
        for some in (got, twin):
            assert_ranked((some.top_id[:n], some.top_logprob[:n]), z[:n], top)
        assert got.logprob[:n].tobytes() == got.top_logprob[:n, 0].tobytes()


def test_a_certain_token_has_its_answers_bits_too():
    """Its log-probability is 0, whose sign is a bit."""
    got = _scores(HIDDEN, np.zeros(Q, np.int32), np.int32(Q), 1, **head(1)._asdict())
    zeros = np.zeros(Q, np.float32).tobytes()
    assert np.asarray(got.logprob).tobytes() == np.asarray(got.top_logprob).tobytes() == zeros
