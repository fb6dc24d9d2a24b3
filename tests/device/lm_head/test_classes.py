"""Log-probabilities of classes of tokens, against all logits in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import lm_head, reference
from jaxscore.device.lm_head.column_blocks import sum_columns
from jaxscore.device.lm_head.sums import terms
from jaxscore.device.rows import ScoredPositions, Unembedding
from tests.device.lm_head.test_top import BLOCK, HIDDEN, Q, float64_logits, head

pytestmark = pytest.mark.numeric

EVERY = np.arange(Q, dtype=np.int32)
STATIC = ("scale", "softcap", "split", "backend", "top", "measures")


@functools.partial(jax.jit, static_argnames=STATIC)
def _scores(hidden, scored, top, measures, **options):
    return lm_head.score_positions(hidden, scored, Unembedding(**options), top, measures)


def scores_of(unembedding, top=0, measures=()):
    scored = ScoredPositions(EVERY, np.int32(Q), EVERY, EVERY % 7, np.int32(Q))
    return jax.device_get(_scores(HIDDEN, scored, top, measures, **unembedding._asdict()))


def classes_of(V, seed=0):
    """Classes of one id, both ends, a third of the ids, and all ids."""
    mask = np.zeros((4, V), bool)
    mask[0, V // 2] = True
    mask[1, [0, -1]] = True
    mask[2, np.random.default_rng(seed).permutation(V)[: -(-V // 3)]] = True
    mask[3] = True
    return mask


def expected_mass(z, mask):
    """float64 [n positions, n classes], of logits [n positions, V]."""
    below = z - z.max(axis=1, keepdims=True)
    logp = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    members = np.where(mask, logp[:, None], -np.inf)
    top = np.maximum(members.max(axis=2), -1e300)
    with np.errstate(divide="ignore"):
        return top + np.log(np.exp(members - top[:, :, None]).sum(axis=2))


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("form", lm_head.IMPLEMENTATIONS)
@pytest.mark.parametrize("V", [7, BLOCK, 3 * BLOCK + 1, 1013])
def test_masses_equal_those_of_all_logits(V, form):
    mask = classes_of(V)
    unembedding = head(V, form=form)._replace(classes=mask)
    scores = scores_of(unembedding)
    np.testing.assert_allclose(
        scores.mass, expected_mass(float64_logits(unembedding), mask), atol=1e-5
    )
    assert scores.mass.dtype == np.float32
    assert (scores.mass <= 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 2.0},
        {"softcap": 30.0, "scale": 0.25, "std": 4.0},
        {"bias": np.linspace(-1, 1, 3 * BLOCK + 17, dtype=np.float32), "scale": 1.5},
        {"dtype": jnp.bfloat16},
        {"std": 8.0},
    ],
    ids=["softcap", "softcap and scale", "bias", "bfloat16", "certain"],
)
def test_masses_with_each_option_of_the_unembedding(options):
    V = 3 * BLOCK + 17
    mask = classes_of(V)
    unembedding = head(V, **options)._replace(classes=mask)
    want = expected_mass(float64_logits(unembedding), mask)
    np.testing.assert_allclose(scores_of(unembedding).mass, want, atol=3e-5)


def test_classes_leave_all_other_scores_as_they_are():
    unembedding = head(1013)
    options = {"top": 3, "measures": ("rank", "renyi2", "varentropy")}
    without = scores_of(unembedding, **options)
    scores = scores_of(unembedding._replace(classes=classes_of(1013)), **options)
    assert without.mass is None
    for one, other in zip(
        *map(jax.tree.leaves, (without, scores._replace(mass=None))), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_reference_computes_the_same_masses():
    unembedding = head(150)._replace(classes=classes_of(150))
    scored = ScoredPositions(EVERY, np.int32(Q), EVERY, EVERY, np.int32(Q))
    twin = reference.score_positions(HIDDEN, scored, unembedding)
    np.testing.assert_allclose(twin.mass, scores_of(unembedding).mass, atol=1e-5)


@pytest.mark.parametrize("gap", [0, 20, 40, 59, 61, 75, 88, 140, 1000])
@pytest.mark.parametrize("shards", [1, 4])
def test_mass_of_improbable_tokens_keeps_its_digits(gap, shards):
    """One token is so probable that all others underflow; the classes leave it out."""
    V = 16 * BLOCK
    z = np.random.default_rng(gap).normal(size=V).astype(np.float32)
    z[5] = gap
    mask = classes_of(V)
    mask[:3, 5] = False
    mask[0] = np.arange(V) == V - 9  # of the last shard alone
    weight, bias = jnp.zeros((shards, V // shards, HIDDEN.shape[1])), z.reshape(shards, -1)
    masks = jnp.asarray(mask.reshape(4, shards, -1).swapaxes(0, 1))
    axis = "model" if shards > 1 else None

    def of_shard(weight, bias, classes):
        unembedding = head(V)._replace(weight=weight, bias=bias, split=axis, classes=classes)
        return terms(sum_columns(jnp.asarray(HIDDEN), unembedding), unembedding).mass

    if axis is None:
        got = jax.jit(of_shard)(weight[0], bias[0], masks[0])[None]
    else:
        got = jax.jit(jax.vmap(of_shard, axis_name=axis))(weight, bias, masks)
    want = expected_mass(np.tile(z.astype(np.float64), (Q, 1)), mask)
    for of_one_shard in got:
        np.testing.assert_allclose(of_one_shard, want, atol=1e-5, rtol=1e-6)


def test_class_of_tokens_that_are_ruled_out_has_probability_0():
    bias = np.zeros(1013, np.float32)
    bias[:BLOCK] = -np.inf
    mask = np.zeros((2, 1013), bool)
    mask[0, :3] = mask[1, BLOCK - 1 : BLOCK + 1] = True
    unembedding = head(1013, bias=bias)._replace(classes=mask)
    scores = scores_of(unembedding)
    assert (scores.mass[:, 0] == -np.inf).all()
    with np.errstate(invalid="ignore"):
        want = expected_mass(float64_logits(unembedding), mask)[:, 1]
    np.testing.assert_allclose(scores.mass[:, 1], want, atol=1e-5)


def test_logit_that_is_nan_gives_nan():
    bias = np.zeros(150, np.float32)
    bias[70] = np.nan
    assert np.isnan(scores_of(head(150, bias=bias)._replace(classes=classes_of(150))).mass).all()
