"""Recurrences over chunks agree with a float64 loop along each path, whatever the chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import reference
from jaxscore.device.recurrence import rules
from jaxscore.device.recurrence.mixers import isolate, spread_nonfinite
from jaxscore.device.recurrence.paths import (
    convolve,
    convolve_chunks,
    last_inputs,
    path_index,
)
from jaxscore.device.recurrence.rules import (
    gated_delta,
    gated_unit,
    selective_scan,
    state_space,
    unit_lower_inverse,
)
from jaxscore.device.rows import Chunks, Paths
from jaxscore.plan.chunks import padding, parents
from tests.device.tries import device_paths, random_rows

pytestmark = pytest.mark.numeric

SIZES = [(4, 1), (16, 8), (64, 3)]  # slots of a chunk, exits per step


def index_of(end, size, width, scored=None, n_ancestors=3):
    """Host parents, padding, and the device's index."""
    end = np.asarray(end)
    is_padding = padding(end, np.arange(end.size) if scored is None else scored)
    paths = device_paths(end, size, width, is_padding)
    return (
        parents(end),
        is_padding,
        path_index(paths, jnp.asarray(end), n_ancestors, chunks_at_once=2),
    )


def single_rows(n_rows, n_ancestors):
    """Index of a step of generation: rows of one token, each with a state of its own."""
    at, end = jnp.arange(n_rows), jnp.ones((n_rows, 1), int)
    paths = Paths(at * 0 + n_rows, Chunks(at[:, None], at, at * 0, at * 0, jnp.int32(0)))
    return path_index(paths, end, n_ancestors, n_rows, at)


def trees():
    """Random tries, one long path, a star, and a comb."""
    star = np.full((1, 96), 96)
    star[0, 3:] = np.arange(4, 97)
    comb = np.arange(1, 97)[None].copy()
    comb[0, ::2] = 96
    return {
        "random": random_rows(5, 3, 64)[2],
        "path": np.full((1, 200), 200),
        "star": star,
        "comb": comb,
    }


def delta_inputs(T, *, is_identical=0.0, rate=1.0, decay=0.1, seed=0, of_channels=False):
    draw, J = np.random.default_rng(seed), 4 if of_channels else 2
    k = draw.standard_normal((T, J, 8)) * (1 - is_identical) + is_identical * draw.standard_normal(
        (1, J, 8)
    )
    q = draw.standard_normal((T, J, 8))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = draw.standard_normal((T, 4, 6))
    log_decay = -decay * draw.random((T, 4, 8) if of_channels else (T, 4))
    return [x.astype(np.float32) for x in (q, k, v, log_decay, np.full((T, 4), rate))]


def run(rule, index):
    """A rule over chunks as a function from and to tokens, compiled once."""

    def gathered(x):
        flat = index.chunks.gather(jnp.asarray(x.reshape(len(x), -1)))
        return flat.reshape(*flat.shape[:2], *x.shape[1:])

    @jax.jit
    def whole(inputs):
        return index.chunks.scatter(rule(*map(gathered, inputs), index.chunks)[0])

    return lambda inputs: np.asarray(whole(inputs))


@pytest.mark.parametrize("kind", trees())
@pytest.mark.parametrize(("size", "width"), SIZES)
@pytest.mark.parametrize("of_channels", [False, True])
def test_gated_delta_agrees_with_a_loop(kind, size, width, of_channels):
    """Similar keys with a rate near 2 amplify every rounding; a decay of -100 forgets everything.

    The inverse of a chunk adds signed terms of up to its number of slots, so the error of float32
    grows with that number: 1e-6 of the largest output at 4 slots, 2.2e-5 at 64.
    """
    end = trees()[kind]
    parent, _, index = index_of(end, size, width)
    rule = run(gated_delta, index)
    for is_identical, rate, decay in (
        (0, 1, 0.1),
        (0.99, 1, 0.01),
        (0.9, 1.95, 0.01),
        (1, 1, 0),
        (0.5, 1.5, 100),
        (0.9, 1.95, 1e4),
    ):
        inputs = delta_inputs(
            end.size, is_identical=is_identical, rate=rate, decay=decay, of_channels=of_channels
        )
        want = reference.gated_delta(*inputs, parent)[0]
        atol = 5e-7 * size * max(1, np.abs(want).max())
        np.testing.assert_allclose(rule(inputs), want, atol=atol, rtol=0)


@pytest.mark.parametrize("of_channels", [False, True])
def test_small_decays_behind_large_ones_keep_their_digits(of_channels):
    end = np.full((1, 64), 64)
    parent, _, index = index_of(end, 64, 1)
    inputs = delta_inputs(64, of_channels=of_channels)
    inputs[3][:32], inputs[3][32:] = -100, -1e-3
    want = reference.gated_delta(*inputs, parent)[0]
    np.testing.assert_allclose(run(gated_delta, index)(inputs), want, atol=3e-6, rtol=0)


@pytest.mark.parametrize("kind", trees())
@pytest.mark.parametrize(("size", "width"), SIZES)
def test_state_space_agrees_with_a_loop(kind, size, width):
    end = trees()[kind]
    parent, _, index = index_of(end, size, width)
    draw, T = np.random.default_rng(1), end.size
    x, b, c = (draw.standard_normal((T, *shape)) for shape in ((4, 6), (2, 8), (2, 8)))
    step_size, rule = draw.random((T, 4)), run(state_space, index)
    for decay in (0.1, 100):
        inputs = [a.astype(np.float32) for a in (x, step_size, -decay * step_size, b, c)]
        want = reference.state_space(*inputs, parent)[0]
        atol = 2e-6 * max(1, np.abs(want).max())
        np.testing.assert_allclose(rule(inputs), want, atol=atol, rtol=0)


@pytest.mark.parametrize("kind", trees())
@pytest.mark.parametrize(("size", "width"), SIZES)
def test_elementwise_recurrences_agree_with_a_loop(kind, size, width):
    end = trees()[kind]
    parent, _, index = index_of(end, size, width)
    for inputs, rule, loop in (
        (unit_inputs(end.size), gated_unit, reference.gated_unit),
        *((scan_inputs(end.size, decay), *SCAN) for decay in (0.1, 100)),
    ):
        want = loop(*inputs, parent)[0]
        atol = 2e-6 * max(1, np.abs(want).max())
        np.testing.assert_allclose(run(rule, index)(inputs), want, atol=atol, rtol=0)


def test_blocks_of_chunks_of_any_size_give_the_same_bits(monkeypatch):
    end = trees()["random"]
    _, _, index = index_of(end, 8, 2)
    inputs = scan_inputs(end.size, 0.1)
    want = run(SCAN[0], index)(inputs)
    for most in (1, 3 * 4 * 9 * len(RATE) * RATE.shape[1]):  # one chunk, and three
        monkeypatch.setattr(rules, "MOST_BYTES", most)
        np.testing.assert_array_equal(run(SCAN[0], index)(inputs), want)


@pytest.mark.parametrize("kind", trees())
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_convolution_agrees_with_a_loop(kind, taps):
    end = trees()[kind]
    parent, is_padding, index = index_of(end, 16, 1, scored=np.arange(0, end.size, 3))
    draw = np.random.default_rng(2)
    x, bias = draw.standard_normal((end.size, 5)).astype(np.float32), np.arange(5.0)
    weight = draw.standard_normal((5, taps)).astype(np.float32)
    want = reference.convolve(x, weight, bias, parent)
    got = convolve(jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias), index.ancestors)
    np.testing.assert_allclose(got, want, atol=1e-5)
    chunked = index.chunks.gather(jnp.asarray(x)).reshape(-1, 5)
    chunked = convolve(chunked, jnp.asarray(weight), jnp.asarray(bias), index.chunks.ancestors)
    got = index.chunks.scatter(chunked.reshape(*index.chunks.chunks.token.shape, 5))
    np.testing.assert_allclose(got[~is_padding], want[~is_padding], atol=1e-5)
    assert not np.asarray(got)[is_padding].any()
    x[is_padding] = np.nan
    got = convolve(jnp.asarray(x), jnp.asarray(weight), jnp.asarray(bias), index.ancestors)
    np.testing.assert_allclose(got[~is_padding], want[~is_padding], atol=1e-5)


@pytest.mark.parametrize("kind", trees())
@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("size", [2, 16, 64])
def test_convolution_by_products_agrees_with_a_loop(kind, taps, size):
    """With paths in one chunk and over several, chunks smaller than the taps, and NaN in padding
    and in one token, which makes its own output NaN and no other's."""
    end = trees()[kind]
    parent, is_padding, index = index_of(end, size, 1, scored=np.arange(0, end.size, 3))
    draw = np.random.default_rng(2)
    x, bias = draw.standard_normal((end.size, 5)).astype(np.float32), np.arange(5.0)
    weight = draw.standard_normal((5, taps)).astype(np.float32)

    def run(x):
        chunks = index.chunks.gather(jnp.asarray(x))
        y = convolve_chunks(chunks, jnp.asarray(weight), jnp.asarray(bias), index.chunks)
        return np.asarray(index.chunks.scatter(y))[~is_padding]

    want = reference.convolve(x, weight, bias, parent)[~is_padding]
    x[is_padding] = np.nan
    np.testing.assert_allclose(run(x), want, atol=1e-5)
    for value in (np.nan, np.inf):
        x[7] = value
        broken = np.isnan(run(x))
        assert broken[7].all()
        assert broken.sum() == 5


def continued(first, end, tips, steps):
    """Parents of a path of `first` tokens, then a trie that continues it, then steps of one token
    after each of some tokens of the trie."""
    parent = parents(end)
    above = [*range(-1, first - 1), *np.where(parent == end.size, first - 1, first + parent)]
    for step in range(steps):
        above += [*(len(above) - len(tips) + np.arange(len(tips)) if step else first + tips)]
    return np.where(np.array(above) < 0, len(above), above)


def state_inputs(T, decay):
    draw = np.random.default_rng(1)
    x, b, c = (draw.standard_normal((T, *shape)) for shape in ((4, 6), (2, 8), (2, 8)))
    step_size = draw.random((T, 4))
    return [a.astype(np.float32) for a in (x, step_size, -decay * step_size, b, c)]


# Rates of the selective scan of 6 channels, each of a state of 3: of short and of long memory
RATE = -np.exp(np.random.default_rng(3).uniform(-3, 2, (3, 6))).astype(np.float32)
SCAN = (
    lambda x, steps, b, c, *rest: selective_scan(x, steps, jnp.asarray(RATE), b, c, *rest),
    lambda x, steps, b, c, parent: reference.selective_scan(x, steps, RATE, b, c, parent),
)


def scan_inputs(T, decay):
    draw = np.random.default_rng(1)
    x, b, c = (draw.standard_normal((T, *shape)) for shape in ((6,), (2, 3), (2, 3)))
    return [a.astype(np.float32) for a in (x, decay * draw.random((T, 6)), b, c)]


def unit_inputs(T):
    draw = np.random.default_rng(1)
    decay = np.where(draw.random((T, 6)) < 0.1, 0, draw.random((T, 6)))
    return [a.astype(np.float32) for a in (draw.standard_normal((T, 6)), decay)]


RULES = {
    "scan": (*SCAN, lambda T: scan_inputs(T, 0.1)),
    "unit": (gated_unit, reference.gated_unit, unit_inputs),
    "delta": (gated_delta, reference.gated_delta, lambda T: delta_inputs(T, rate=0.9)),
    "channels": (
        gated_delta,
        reference.gated_delta,
        lambda T: delta_inputs(T, rate=0.9, of_channels=True),
    ),
    "state_space": (state_space, reference.state_space, lambda T: state_inputs(T, 0.1)),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_prefix_and_single_steps_continue_states(rule):
    rule, loop, made = RULES[rule]
    first, end = 150, trees()["random"]
    tips, steps = np.array([3, 70, 160]), 5
    above = continued(first, end, tips, steps)
    inputs = made(len(above))
    want, states = loop(*inputs, above)

    def part(start, stop, index, before):
        def gathered(x):
            flat = index.chunks.gather(jnp.asarray(x[start:stop].reshape(stop - start, -1)))
            return flat.reshape(*flat.shape[:2], *x.shape[1:])

        out, kept = rule(*map(gathered, inputs), index.chunks, before)
        out = np.asarray(index.chunks.scatter(out))
        atol = 3e-6 * np.abs(want).max()
        np.testing.assert_allclose(out, want[start:stop], atol=atol, rtol=0)
        return kept

    path = np.full((1, first), first)
    index = path_index(device_paths(path, 64, 2), jnp.asarray(path), 3, 1, jnp.array([first - 1]))
    before = part(0, first, index, None)
    np.testing.assert_allclose(before[0], states[first - 1], atol=1e-6, rtol=1e-6)
    index = path_index(device_paths(end, 16, 2), jnp.asarray(end), 3, 1, jnp.asarray(tips))
    before = part(first, first + end.size, index, before)
    for step in range(steps):
        start = first + end.size + 3 * step
        before = part(start, start + 3, single_rows(3, 3), before)
        np.testing.assert_allclose(before, states[start : start + 3], atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("first", [1, 2, 40])  # shorter prefixes than taps too
def test_convolutions_continue_a_prefix_and_rows_of_their_own(first):
    end, tips = trees()["random"], np.array([3, 70])
    above = continued(first, end, tips, 1)
    draw = np.random.default_rng(2)
    x = draw.standard_normal((len(above), 5)).astype(np.float32)
    taps = jnp.asarray(draw.standard_normal((5, 4)), jnp.float32)
    want = reference.convolve(x, np.asarray(taps), None, above)
    path = np.full((1, first), first)
    index = path_index(device_paths(path, 16, 1), jnp.asarray(path), 3, 1, jnp.array([first - 1]))
    before = last_inputs(jnp.asarray(x[:first]), index.ancestors, index.kept)
    index = path_index(device_paths(end, 16, 1), jnp.asarray(end), 3, 1, jnp.asarray(tips))
    own, rest = jnp.asarray(x[first : first + end.size]), jnp.asarray(x[first + end.size :])
    got = convolve(own, taps, None, index.ancestors, before)
    np.testing.assert_allclose(got, want[first : first + end.size], atol=1e-5)
    flat = index.chunks.gather(own).reshape(-1, 5)
    in_chunks = convolve(flat, taps, None, index.chunks.ancestors, before)
    by_products = convolve_chunks(index.chunks.gather(own), taps, None, index.chunks, before)
    np.testing.assert_allclose(by_products.reshape(-1, 5), in_chunks, atol=1e-6)
    in_chunks = index.chunks.scatter(in_chunks.reshape(*index.chunks.chunks.token.shape, 5))
    np.testing.assert_allclose(in_chunks, got, atol=1e-6)
    kept = last_inputs(own, index.ancestors, index.kept, before)
    again = last_inputs(flat, index.chunks.ancestors, index.chunks.kept, before)
    np.testing.assert_array_equal(kept, again)
    step = convolve(rest, taps, None, single_rows(2, 3).ancestors, kept)
    np.testing.assert_allclose(step, want[first + end.size :], atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_nan_in_padding_and_empty_slots_reaches_nothing(rule):
    rule, loop, made = RULES[rule]
    end = random_rows(5, 3, 64)[2]
    scored = np.arange(0, end.size, 2)
    parent, is_padding, index = index_of(end, 16, 8, scored=scored)
    inputs = made(end.size)
    want = loop(*inputs, parent)[0]
    assert is_padding.any()
    for x in inputs:
        x[is_padding] = np.nan
    got = run(rule, index)(inputs)
    np.testing.assert_allclose(got[~is_padding], want[~is_padding], atol=2e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_token_of_a_scan_reaches_what_continues_it_and_nothing_else(value):
    end = random_rows(5, 3, 64)[2]
    scored = np.arange(0, end.size, 2)
    parent, is_padding, index = index_of(end, 16, 8, scored=scored)
    inputs = scan_inputs(end.size, 0.1)
    want = SCAN[1](*inputs, parent)[0]
    reached = np.zeros(end.size, bool)
    row, column = divmod(70, 64)
    reached[70 : row * 64 + end[row, column]] = True
    assert 1 < reached.sum() < 30
    inputs[0][70] = value
    for x in inputs:
        x[is_padding] = np.nan
    got = run(SCAN[0], index)(inputs)
    assert not np.isfinite(got[reached]).any()
    others = ~reached & ~is_padding
    np.testing.assert_allclose(got[others], want[others], atol=2e-6)


def test_a_broken_token_reaches_what_continues_it_and_nothing_else():
    end = random_rows(5, 3, 64)[2]
    parent, _, index = index_of(end, 16, 8)
    inputs = delta_inputs(end.size)
    want = reference.gated_delta(*inputs, parent)[0]
    broken_token = 70
    inputs[1][broken_token, 0, 3] = np.inf

    def rule(*args):
        args, broken = isolate(*args[:-1])
        out, _ = gated_delta(*args, index.chunks)
        return spread_nonfinite(out, None, broken, index)

    got = run(rule, index)(inputs)
    row, column = divmod(broken_token, 64)
    reached = np.zeros(end.size, bool)
    reached[broken_token : row * 64 + end[row, column]] = True
    assert 1 < reached.sum() < 30
    assert np.isnan(got[reached]).all()
    np.testing.assert_allclose(got[~reached], want[~reached], atol=2e-5)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_inverse_of_a_unit_lower_triangle(size):
    a = np.tril(np.random.default_rng(0).standard_normal((3, size, size)), -1) * 0.3
    got = unit_lower_inverse(jnp.asarray(a, jnp.float32))
    np.testing.assert_allclose(got, np.linalg.inv(np.eye(size) + a), atol=1e-4, rtol=1e-4)
