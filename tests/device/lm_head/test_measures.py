"""Rank, varentropy and Renyi entropy of the fused pass, against all logits in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.analysis.text_measures import min_k_pp
from jaxscore.device import lm_head, reference
from jaxscore.device.lm_head import column_blocks
from jaxscore.device.lm_head.column_blocks import Target, sum_columns
from jaxscore.device.lm_head.sums import MEASURES, terms
from jaxscore.device.rows import ScoredPositions, Unembedding
from tests.device.lm_head.test_top import BLOCK, HIDDEN, D, Q, float64_logits, head

pytestmark = pytest.mark.numeric

ANSWERS = 3 * Q


@functools.partial(
    jax.jit, static_argnames=("scale", "softcap", "split", "backend", "top", "measures")
)
def _scores(hidden, asked, top, measures, **of):
    return lm_head.score_positions(hidden, asked, Unembedding(**of), top, measures)


def asked_of(V, n_answers=ANSWERS, seed=0):
    """Several answers after some queries and none after others; slots beyond are empty."""
    draw = np.random.default_rng(seed)
    query = np.sort(draw.choice(Q, 6, replace=False)).astype(np.int32)
    slot, answer = np.zeros((2, 4 * Q), np.int32)
    slot[:n_answers] = np.sort(draw.integers(0, 6, n_answers))
    answer[:n_answers] = draw.integers(0, V, n_answers)
    answer[0] = V - 1
    return ScoredPositions(
        np.pad(query, (0, Q - 6)), np.int32(6), slot, answer, np.int32(n_answers)
    )


def scores(of, asked, measures=MEASURES, hidden=HIDDEN, top=0):
    return jax.device_get(_scores(hidden, asked, top, measures, **of._asdict()))


def expected(z, answer):
    """float64, of logits [n, V] and a column of each."""
    below = z - z.max(axis=1, keepdims=True)
    logp = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    p = np.exp(logp)
    known = np.where(p > 0, logp, 0)
    entropy = -(p * known).sum(axis=1)
    varentropy = (p * (known + entropy[:, None]) ** 2).sum(axis=1)
    return {
        "rank": 1 + (z > np.take_along_axis(z, answer[:, None], 1)).sum(axis=1),
        "renyi2": -np.log((p**2).sum(axis=1)),
        "varentropy": varentropy,
        "deviation": np.sqrt(varentropy),
    }


def assert_measured(got, of, asked, measures=MEASURES, hidden=HIDDEN, atol=1e-5):
    n = int(asked.n_edges)
    query = asked.token[asked.slot[:n]]
    want = expected(float64_logits(of, hidden)[query], asked.target[:n])
    assert got.measures.keys() == set(measures)
    for name, values in got.measures.items():
        values = values[:n] if "rank" in measures else values[asked.slot[:n]]
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, want[name], atol=atol, rtol=2e-6, err_msg=name)


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("form", lm_head.IMPLEMENTATIONS)
@pytest.mark.parametrize("V", [1, 7, BLOCK, 3 * BLOCK + 1, 1013])
def test_they_are_those_of_all_logits(V, form):
    of, asked = head(V, form=form), asked_of(V)
    assert_measured(scores(of, asked), of, asked)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"softcap": 30.0, "scale": 0.25, "std": 4.0},
        {"bias": np.linspace(-1, 1, 3 * BLOCK + 17, dtype=np.float32), "scale": 1.5},
        {"dtype": jnp.bfloat16},
        {"std": 8.0},  # nearly all of the probability in one token
    ],
    ids=["softcap", "softcap and scale", "bias", "bfloat16", "certain"],
)
def test_options_of_the_unembedding(options):
    of, asked = head(3 * BLOCK + 17, **options), asked_of(3 * BLOCK + 17)
    assert_measured(scores(of, asked), of, asked, atol=3e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("measures", [(), ("varentropy",), ("renyi2",), ("renyi2", "varentropy")])
def test_what_is_not_asked_for_is_not_computed(measures):
    of, asked = head(150), asked_of(150)
    got = scores(of, asked, measures)
    assert_measured(got, of, asked, measures)
    assert got.entropy.shape == asked.token.shape


@pytest.mark.slow
@pytest.mark.parametrize("form", lm_head.IMPLEMENTATIONS)
def test_the_usual_terms_stay_beside_ranks(form):
    """Each answer is a query of its own then, with the terms of its query."""
    of, asked, n = head(1013, form=form), asked_of(1013), ANSWERS
    plain, got = scores(of, asked, ()), scores(of, asked, top=3)
    twin = reference.score_positions(HIDDEN, asked, of, 3, MEASURES)
    for other in (got, twin):
        np.testing.assert_allclose(other.logprob[:n], plain.logprob[:n], atol=4e-6, rtol=0)
        np.testing.assert_array_equal(other.greedy[:n], plain.greedy[:n])
        for name in ("entropy", "self_certainty"):
            of_answers = getattr(plain, name)[asked.slot[:n]]
            np.testing.assert_allclose(getattr(other, name)[:n], of_answers, atol=4e-6, rtol=0)
        np.testing.assert_array_equal(other.top_id[:n, 0], plain.greedy_id[asked.slot[:n]])
    for name in MEASURES:
        np.testing.assert_allclose(got.measures[name][:n], twin.measures[name][:n], atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_equal_columns_have_one_rank(dtype):
    """Every token's weights stand in five columns: none of them is above another."""
    V, copies = 3 * BLOCK + 15, 5
    draw = np.random.default_rng(3)
    few = draw.normal(size=(V // copies + 1, D)).astype(np.float32)
    source = draw.permutation(V) % len(few)
    of = head(V, dtype=dtype)
    weight = jnp.asarray(few[source], dtype)
    of = of._replace(
        weight=weight if dtype == jnp.float32 else jax.lax.bitcast_convert_type(weight, jnp.uint16)
    )
    asked = asked_of(V)
    got = scores(of, asked, ("rank",))
    z = HIDDEN.astype(np.float64) @ np.asarray(jnp.asarray(few, dtype), np.float64).T
    of_few = z[asked.token[asked.slot[:ANSWERS]]]
    own = np.take_along_axis(of_few, source[asked.target[:ANSWERS], None], axis=1)
    above = (of_few > own) @ np.bincount(source, minlength=len(few))
    np.testing.assert_array_equal(got.measures["rank"][:ANSWERS], 1 + above)


def test_a_token_of_rank_1_is_a_most_probable_one():
    of = head(1013)
    best = float64_logits(of).argmax(axis=1).astype(np.int32)
    every = np.arange(Q, dtype=np.int32)
    got = scores(of, ScoredPositions(every, np.int32(Q), every, best, np.int32(Q)), ("rank",))
    assert got.greedy.all()
    np.testing.assert_array_equal(got.measures["rank"], 1)


def test_another_guess_costs_a_pass_and_no_rank(monkeypatch):
    """Where a product of the same form has other bits than the pass."""
    of, asked = head(1013), asked_of(1013)
    hidden, token = HIDDEN[:6], jnp.asarray(asked.target[:6])
    want = jax.jit(lambda h: column_blocks.sums_with_rank(h, token, of, 0, ("rank",)).target_rank)(
        hidden
    )
    guess = column_blocks._guess_target_logits
    monkeypatch.setattr(
        column_blocks, "_guess_target_logits", lambda *args: guess(*args) * (1 + 2e-7)
    )
    got = jax.jit(lambda h: column_blocks.sums_with_rank(h, token, of, 0, ("rank",)).target_rank)(
        hidden
    )
    np.testing.assert_array_equal(got.above, want.above)
    np.testing.assert_array_equal(got.target_logit, want.target_logit)
    once = sum_columns(jnp.asarray(hidden), of, 0, ("rank",), Target(token, 9 + want.target_logit))
    assert (once.target_rank.above < want.above).any()  # so that the repetition is what mends it


def test_guesses_of_many_queries_hold_few_products():
    """The form of a GPU takes all queries of a batch at once: their squares would not fit."""
    n, of = 4096, head(150)
    args = jnp.zeros((n, D)), jnp.zeros(n, jnp.int32)
    program = (
        jax.jit(lambda h, token: column_blocks._guess_target_logits(h, token, of))
        .lower(*args)
        .compile()
    )
    assert program.memory_analysis().temp_size_in_bytes < 4 * n * n / 4
    draw = np.random.default_rng(4)
    hidden = draw.normal(size=(n, D)).astype(np.float32)
    token = draw.integers(0, 150, n).astype(np.int32)
    want = float64_logits(of, hidden)[np.arange(n), token]
    np.testing.assert_allclose(program(hidden, token), want, atol=1e-5)


def test_tokens_of_probability_0():
    kept = np.array([3, BLOCK + 5, 1012])
    bias = np.full(1013, -np.inf, np.float32)
    bias[kept] = 0
    of, asked = head(1013, bias=bias), asked_of(1013)
    got = scores(of, asked)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert_measured(got, of, asked)
    below = ~np.isin(asked.target[:ANSWERS], kept)
    assert (got.measures["rank"][:ANSWERS][below] == 4).all()


@pytest.mark.parametrize("value", [-1e30, -1e20])
def test_a_block_of_tokens_that_are_ruled_out_by_a_finite_number(value):
    """The first maximum is then so low that the square of its distance is no float32."""
    bias = np.zeros(1013, np.float32)
    bias[:BLOCK] = value
    of, asked = head(1013, bias=bias), asked_of(1013)
    assert_measured(scores(of, asked, ("varentropy",)), of, asked, ("varentropy",))


def sharp(gap, top, V=16 * BLOCK):
    """Logits of V tokens, float32, of which the one at `top` is `gap` above the others' mean."""
    z = np.random.default_rng(top).normal(size=V).astype(np.float32)
    z[top] = np.float32(gap)
    return z


GAPS = pytest.mark.parametrize("gap", [0, 8, 20, 40, 75, 88, 100, 140])
TOPS = pytest.mark.parametrize("top", [0, 5 * BLOCK + 3, 16 * BLOCK - 1])


@GAPS
@TOPS
@pytest.mark.parametrize("shards", [1, 4])
def test_deviation_and_entropy_of_a_sharp_distribution_match_float64(gap, top, shards):
    """All digits of the deviation, wherever the one probable token is."""
    z = sharp(gap, top)
    weight = jnp.zeros((shards, len(z) // shards, D))
    bias = jnp.asarray(z.reshape(shards, -1))
    axis = "model" if shards > 1 else None

    def of_shard(weight, bias):
        of = head(len(z))._replace(weight=weight, bias=bias, split=axis)
        sums = sum_columns(jnp.asarray(HIDDEN), of, 0, ("deviation",))
        found = terms(sums, of)
        return found.measures["deviation"], found.entropy

    if axis is None:
        got = jax.jit(of_shard)(weight[0], bias[0])
    else:
        every = jax.jit(jax.vmap(of_shard, axis_name=axis))(weight, bias)
        got = tuple(values[0] for values in every)
        for values, first in zip(every, got, strict=True):
            np.testing.assert_array_equal(values, [first] * shards)
    deviation, entropy = got
    np.testing.assert_allclose(deviation, np.sqrt(expected_varentropy(z)), rtol=3e-5, atol=0)
    np.testing.assert_allclose(entropy, expected_entropy(z), rtol=3e-5, atol=1e-6)


def expected_varentropy(z):
    """float64, of logits [V], about the mean."""
    logp = float64_logprobs(z)
    return (np.exp(logp) * (logp + expected_entropy(z)) ** 2).sum()


def expected_entropy(z):
    logp = float64_logprobs(z)
    return -(np.exp(logp) * logp).sum()


def float64_logprobs(z):
    below = z.astype(np.float64) - z.max()
    return below - np.log(np.exp(below).sum())


@GAPS
def test_min_k_pp_of_a_sharp_distribution_matches_float64(gap):
    """The probable token, and a token of the others, each alone."""
    z = sharp(gap, 0)
    of = head(len(z))._replace(weight=jnp.zeros((len(z), D)), bias=jnp.asarray(z))
    tokens = np.array([0, 700], np.int32)
    asked = ScoredPositions(
        np.zeros(2, np.int32), np.int32(1), np.zeros(2, np.int32), tokens, np.int32(2)
    )
    got = scores(of, asked, ("deviation",))
    logp = float64_logprobs(z)
    for logprob, token in zip(got.logprob, tokens, strict=True):
        one = min_k_pp([logprob], got.entropy[:1], got.measures["deviation"][:1], 1.0)
        want = (logp[token] + expected_entropy(z)) / np.sqrt(expected_varentropy(z))
        assert one == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_no_number_ends_the_passes(value):
    bias = np.zeros(1013, np.float32)
    bias[70] = value
    of, asked = head(1013, bias=bias), asked_of(1013)
    got = scores(of, asked)
    assert np.isnan(got.logprob[:ANSWERS]).all()
