"""Every fast form of attention against the slow one, on rows of packed tries."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import reference
from jaxscore.device.attention import interval as by_blocks
from jaxscore.device.attention import interval as fast
from jaxscore.device.attention import score_rule
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import BACKENDS, MOSAIC_KERNELS
from tests.device.configs import rules
from tests.device.tries import random_rows

pytestmark = pytest.mark.numeric

R, H = 2, 8
RULE = ScoreRule(H**-0.5)
PLAIN = ScoreRule(1.0)
FAST = {
    name: functools.partial(form, interpret=True) if name.startswith("kernel") else form
    for name, form in fast.ATTENTION.items()
    if name not in MOSAIC_KERNELS.values()  # need another interpreter, see test_kernels
}


def small_blocks(monkeypatch, size):
    """Several blocks in short rows; kernels have blocks of their own, see test_kernels."""
    monkeypatch.setattr(by_blocks, "BLOCK", size)
    monkeypatch.setattr(by_blocks, "CPU_BLOCK", size)


def inputs(seed, length, n_heads, n_kv_heads):
    draw = np.random.default_rng(seed)
    q, k, v = (
        jnp.asarray(draw.normal(size=(R, length, heads, H)), jnp.float32)
        for heads in (n_heads, n_kv_heads, n_kv_heads)
    )
    _, position, end = random_rows(seed, R, length)
    return q, k, v, position, end


def run(form, arrays, window, dtype=jnp.float32, rule=RULE):
    compiled = jax.jit(FAST[form], static_argnames=("rule", "dtype"))
    out = compiled(*arrays, jnp.int32(window), rule=rule, dtype=dtype)[0]
    assert out.dtype == jnp.float32
    return np.asarray(out)


def slow(arrays, window, dtype=jnp.float32, rule=RULE):
    return np.asarray(reference.attention(*arrays, window, rule=rule, dtype=dtype))


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize(
    ("length", "block", "n_heads", "n_kv_heads"),
    [
        (37, 8, 4, 4),  # several blocks, the last one ragged
        (40, 128, 4, 2),  # one, shorter than a whole one
        (37, 8, 3, 1),
        (32, 8, 4, 2),
        (33, 32, 2, 2),  # the last block is a single token
        (70, 8, 2, 1),  # more than MOST_BLOCKS of them, so they grow, and still a ragged end
        (1, 8, 2, 1),
    ],
)
def test_fast_forms_agree_with_the_reference(monkeypatch, form, length, block, n_heads, n_kv_heads):
    small_blocks(monkeypatch, block)
    arrays = inputs(length, length, n_heads, n_kv_heads)
    compiled = jax.jit(FAST[form], static_argnames=("rule", "dtype"))
    for window in (None, 0, 1, 3, 1000):  # data, not shape: one program, and one without
        at = None if window is None else jnp.int32(window)
        got, _ = compiled(*arrays, at, rule=ScoreRule(0.5), dtype=jnp.float32)
        want = slow(arrays, window or 0, rule=ScoreRule(0.5))
        np.testing.assert_allclose(np.asarray(got), want, atol=2e-6, rtol=0)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["capped", "alibi", "coarse"])
@pytest.mark.parametrize("form", FAST)
def test_every_term_of_a_score(monkeypatch, form, kind):
    small_blocks(monkeypatch, 8)
    arrays, rule = inputs(3, 21, 4, 2), rules(4)[kind]
    want = slow(arrays, 5, rule=rule)
    assert np.abs(want - slow(arrays, 5, rule=ScoreRule(0.5))).max() > 0.01
    np.testing.assert_allclose(run(form, arrays, 5, rule=rule), want, atol=2e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("seed", range(3))
def test_bfloat16_rounds_no_more_than_its_products_do(monkeypatch, form, seed):
    """Against float32 attention of the same rounded inputs.

    What is left is the rounding of the softmax weights to 8 bits before the second product: a
    weighted mean of values no larger than |v| moves by at most 2^-8 of it (`blocked_cpu` rounds
    before it divides by the unrounded total, the same relative error).
    """
    small_blocks(monkeypatch, 8)
    q, k, v, position, end = inputs(seed, 37, 4, 2)
    rounded = [x.astype(jnp.bfloat16).astype(jnp.float32) for x in (q, k, v)]
    want = slow((*rounded, position, end), 0)
    got = run(form, (q, k, v, position, end), 0, jnp.bfloat16)
    bound = 2**-8 * float(jnp.abs(v).max())
    assert 1e-5 < np.abs(got - want).max() < bound  # the lower bound: it did round
    # And the reference's own bfloat16 is the same thing, up to its rounded output and scores.
    theirs = slow((q, k, v, position, end), 0, jnp.bfloat16)
    assert np.abs(got - want).max() <= np.abs(theirs - want).max() * 1.5


def slow_form(*arrays, rule, dtype):
    return reference.attention(*arrays, rule=rule, dtype=dtype), None


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("form", [*FAST, "slow"])
def test_a_window_counts_along_the_path_and_not_along_the_row(form):
    """0 -> 1 -> 2 and 0 -> 3: token 3 is next to 0 on its path, two tokens away in the row."""
    position = jnp.array([[0, 1, 2, 1]], jnp.int32)
    end = jnp.array([[4, 3, 3, 4]], jnp.int32)
    q = k = jnp.zeros((1, 4, 1, 4))
    v = jnp.eye(4)[None, :, None, :]  # the output is the attention weights
    want = {
        0: [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0.5, 0, 0, 0.5]],
        1: np.eye(4),
        2: [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5]],
    }
    for window, weights in want.items():
        attend = slow_form if form == "slow" else FAST[form]
        got, _ = attend(q, k, v, position, end, jnp.int32(window), rule=PLAIN, dtype=jnp.float32)
        np.testing.assert_allclose(np.asarray(got)[0, :, 0], weights, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 2, 4, 5, 9])
@pytest.mark.parametrize("rows", ["one path", "tries"])
def test_block_pairs_skip_nothing_that_is_visible(rows, window):
    """A path makes a window end at the last token of a block."""
    length, block = 24, 4
    _, position, end = random_rows(2, 1, length)
    if rows == "one path":
        position, end = np.arange(length)[None], np.full((1, length), length)
    position, end = (jnp.asarray(x, jnp.int32) for x in (position, end))
    got = score_rule.block_pairs(
        score_rule.flatten_ends(end), position[0], jnp.int32(window), block, block
    )
    i, j = np.arange(length)[:, None], np.arange(length)[None]
    seen = score_rule.visible(i, j, end, position[0][:, None], position, jnp.int32(window))
    of_blocks = np.asarray(seen).reshape(length // block, block, length // block, block)
    assert (got.any_visible >= of_blocks.any(axis=(1, 3))).all()
    assert (got.all_visible <= of_blocks.all(axis=(1, 3))).all()
    assert not got.any_visible.all()


def test_a_slice_of_keys_holds_all_that_its_queries_see_and_few_others():
    length, block = 64, 8
    end = np.zeros((1, length), np.int32)
    for first, behind in itertools.pairwise([0, 3, 19, 29, 40, 56]):  # paths, then padding
        end[0, first:behind] = behind
    position = jnp.zeros((1, length), jnp.int32)
    some = score_rule.block_pairs(
        score_rule.flatten_ends(jnp.asarray(end)), position[0], None, block, block
    ).any_visible
    assert by_blocks._count_visible_blocks(some).tolist() == [1, 2, 3, 2, 2, 1, 2, 1]
    assert by_blocks.slice_widths(8) == [1, 2, 3, 4, 6, 8]
    assert by_blocks.slice_widths(5) == [1, 2, 3, 4, 5]
    assert by_blocks.slice_widths(1) == [1]


@pytest.mark.parametrize("form", FAST)
def test_what_is_not_seen_changes_nothing(monkeypatch, form):
    """Huge keys and values off the path leave every bit of the others in place."""
    small_blocks(monkeypatch, 8)
    q, k, v, position, end = inputs(5, 30, 2, 2)
    token = int(np.flatnonzero(np.asarray(end[0]) < 25)[0])
    blind = np.ones(30, bool)
    blind[token : int(end[0, token])] = False
    loud = [x.at[0, token].set(1e6) for x in (k, v)]
    before = run(form, (q, k, v, position, end), 0)
    after = run(form, (q, *loud, position, end), 0)
    assert (before[0, blind] == after[0, blind]).all()
    assert (before[0, token] != after[0, token]).any()
    assert (before[1] == after[1]).all()


@pytest.mark.parametrize("form", FAST)
def test_an_infinite_key_reaches_exactly_the_tokens_that_attend_to_it(form):
    """Where all visible scores are minus infinity, masked tokens must not get weights."""
    q = jnp.ones((1, 4, 1, H))
    k, v = fast.isolate_nonfinite(q.at[0, 1:3].set(-jnp.inf), 7 * q)
    position = jnp.array([[0, 0, 1, 0]], jnp.int32)
    end = jnp.array([[1, 3, 3, 4]], jnp.int32)
    got = run(form, (q, k, v, position, end), 0)[0, :, 0]
    assert np.isnan(got[1:3]).all()
    np.testing.assert_allclose(got[[0, 3]], 7.0, rtol=1e-6)


@pytest.mark.parametrize("form", FAST)
def test_large_scores_do_not_overflow(form):
    arrays = inputs(6, 20, 2, 1)
    got = run(form, arrays, 0, rule=ScoreRule(1e4))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, slow(arrays, 0, rule=ScoreRule(1e4)), atol=1e-4)


@pytest.mark.parametrize("platform", BACKENDS)
def test_a_platform_runs_the_form_that_it_names(monkeypatch, platform):
    arrays = [jnp.asarray(x) for x in inputs(8, 9, 2, 1)]
    taken = []
    for name in fast.ATTENTION:
        form = lambda *a, name=name, **k: taken.append(name) or a[:2]  # noqa: E731
        monkeypatch.setitem(fast.ATTENTION, name, form)
    backend = BACKENDS[platform]
    fast.attention(*arrays, jnp.int32(0), rule=PLAIN, dtype=jnp.bfloat16, backend=backend)
    assert taken == [backend.attention]
