"""Attention over a KV cache against the same tokens in one row."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import reference
from jaxscore.device.attention import interval as fast
from jaxscore.device.attention import kv_cache
from jaxscore.device.attention.kv_cache import KVCache, attend_cache, merge_parts
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import BACKENDS
from jaxscore.device.dots import as_integers
from tests.device.configs import rules
from tests.device.tries import random_rows

pytestmark = pytest.mark.numeric

N, K, H, L, SLOTS = 4, 2, 8, 24, 16
RULE = ScoreRule(0.5)

CPU = BACKENDS["cpu"]
ALL = {
    name: backend if name == "cpu" else dataclasses.replace(backend, interpreted=True)
    for name, backend in BACKENDS.items()
}


def arrays(seed, rows, length):
    draw = np.random.default_rng(seed)
    return [
        jnp.asarray(draw.normal(size=(rows, length, heads, H)), jnp.float32) for heads in (N, K, K)
    ]


def whole(rows, befores):
    """Position and subtree end of rows with a straight path of tokens in front of each."""
    _, position, end = random_rows(7, rows, L)
    n = befores
    at = np.concatenate([np.tile(np.arange(n), (rows, 1)), position + n], axis=1)
    ends = np.concatenate([np.full((rows, n), L + n), end + n], axis=1)
    return tuple(jnp.asarray(x, jnp.int32) for x in (position, end, at, ends))


def padded(x, n):
    """The first n tokens in SLOTS slots, the rest loud and never to be heard."""
    loud = jnp.full((x.shape[0], SLOTS - n, *x.shape[2:]), 1e6)
    return jnp.concatenate([x[:, :n], loud], axis=1)


def cached(k, v, first, length):
    """A cache of keys and values [P, S, K, H]."""
    return KVCache(k.swapaxes(1, 2), v.swapaxes(1, 2), jnp.int32(first), jnp.asarray(length))


@pytest.mark.slow_after(1, of_each="platform")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("window", "kind"),
    [
        *((window, "scaled") for window in (5, 0, 1, 11, 100)),
        *((5, kind) for kind in ("capped", "alibi", "coarse")),
    ],
)
@pytest.mark.parametrize("platform", ALL)
def test_a_past_is_the_same_as_having_it_in_the_row(monkeypatch, shared, window, kind, platform):
    rule = rules(N)[kind]
    monkeypatch.setattr(kv_cache, "QUERY_BLOCK", 7)
    monkeypatch.setattr(kv_cache, "MAX_SCORES", 7 * SLOTS)
    rows, n = 3, 9
    q, k, v = arrays(1, rows, n + L)
    if shared:
        k, v = (x.at[:, :n].set(x[:1, :n]) for x in (k, v))
    position, end, at, ends = whole(rows, n)
    want = reference.attention(q, k, v, at, ends, window, rule=rule, dtype=jnp.float32)
    own = slice(None, 1) if shared else slice(None)
    before = cached(padded(k[own], n), padded(v[own], n), 0, [n] * (1 if shared else rows))
    got = fast.attention(
        q[:, n:],
        k[:, n:],
        v[:, n:],
        position + n,
        end,
        jnp.int32(window),
        caches=(before,),
        rule=rule,
        dtype=jnp.float32,
        backend=ALL[platform],
    )
    np.testing.assert_allclose(np.asarray(got), np.asarray(want)[:, n:], atol=2e-6, rtol=0)


@pytest.mark.slow_after(1, of_each="platform")
@pytest.mark.parametrize("shared", [True, None, False])
@pytest.mark.parametrize("window", [5, 0, 1, 7])
@pytest.mark.parametrize("platform", ALL)
def test_sinks_and_stretches_of_positions(shared, window, platform):
    """In rows, with and without a past; a stretch may begin within the past or the row."""
    rows, n = 2, 0 if shared is None else 9
    q, k, v = arrays(4, rows, n + L)
    if shared:
        k, v = (x.at[:, :n].set(x[:1, :n]) for x in (k, v))
    position, end, at, ends = whole(rows, n)
    sinks = jnp.asarray([-1.0, 0.5, 3.0, 0.0])
    how = {"sinks": sinks, "chunked": True}
    want = reference.attention(q, k, v, at, ends, window, rule=RULE, dtype=jnp.float32, **how)
    own = slice(None, 1) if shared else slice(None)
    before = cached(padded(k[own], n), padded(v[own], n), 0, [n] * (1 if shared else rows))
    got = fast.attention(
        q[:, n:],
        k[:, n:],
        v[:, n:],
        position + n,
        end,
        jnp.int32(window),
        caches=() if shared is None else (before,),
        rule=RULE,
        dtype=jnp.float32,
        backend=ALL[platform],
        sinks_N=sinks,
        chunked=True,
    )
    np.testing.assert_allclose(np.asarray(got), np.asarray(want)[:, n:], atol=2e-6, rtol=0)
    for less in ({"sinks": sinks}, {"chunked": True}):
        other = reference.attention(q, k, v, at, ends, window, rule=RULE, dtype=jnp.float32, **less)
        assert (np.abs(want - other).max() > 0.01) == (window > 1 or "sinks" not in less)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scaled", "alibi"])
@pytest.mark.parametrize("platform", ALL)
def test_two_pasts_one_behind_the_other_and_of_different_lengths(kind, platform):
    """A prefix of 5 that all share, then 0, 3 and 7 tokens of a row's own."""
    rule = rules(N)[kind]
    prefix, lengths = 5, [0, 3, 7]
    q, k, v = arrays(2, 3, prefix + 7 + 1)
    k, v = (x.at[:, :prefix].set(x[:1, :prefix]) for x in (k, v))
    for window in (0, 4):
        got = fast.attention(
            q[:, -1:],
            k[:, -1:],
            v[:, -1:],
            jnp.array([[prefix + n] for n in lengths]),
            jnp.ones((3, 1), jnp.int32),
            jnp.int32(window),
            caches=(
                cached(padded(k[:1], prefix), padded(v[:1], prefix), 0, [prefix]),
                cached(k[:, prefix:-1], v[:, prefix:-1], prefix, lengths),
            ),
            rule=rule,
            dtype=jnp.float32,
            backend=ALL[platform],
        )
        for row, n in enumerate(lengths):
            keep = np.r_[: prefix + n, prefix + 7]
            m = len(keep)
            at, ends = np.arange(m)[None], np.full((1, m), m)
            one = (x[row : row + 1, keep] for x in (q, k, v))
            want = reference.attention(*one, at, ends, window, rule=rule, dtype=jnp.float32)
            np.testing.assert_allclose(got[row, 0], want[0, -1], atol=2e-6, rtol=0)


@pytest.mark.slow
def test_a_stored_bfloat16_past_is_read_as_bfloat16():
    q, k, v = arrays(3, 2, L)
    rounded = [x.astype(jnp.bfloat16) for x in (k, v)]
    at = jnp.full((2, L), SLOTS)
    stored = cached(*as_integers(tuple(rounded)), 0, [4, 6])
    exact = cached(*(x.astype(jnp.float32) for x in rounded), 0, [4, 6])
    got, lse = attend_cache(q, stored, at, jnp.int32(0), rule=RULE, backend=CPU)
    want, want_lse = attend_cache(
        q.astype(jnp.bfloat16).astype(jnp.float32), exact, at, jnp.int32(0), rule=RULE, backend=CPU
    )
    assert stored.key.dtype == jnp.uint16
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    # The weights are rounded to 8 bits before the second product.
    assert 0 < np.abs(got - want).max() < 2**-8 * float(jnp.abs(v).max())


def test_an_empty_part_has_no_weight_in_a_merge():
    q, k, v = arrays(4, 2, L)
    at = jnp.full((2, L), SLOTS)
    full, none = (
        attend_cache(q, cached(k, v, 0, [n, n]), at, jnp.int32(0), rule=RULE, backend=CPU)
        for n in (L, 0)
    )
    np.testing.assert_array_equal(merge_parts([full, none])[0], full[0])
    np.testing.assert_array_equal(merge_parts([none, full])[0], full[0])
