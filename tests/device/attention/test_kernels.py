"""The kernels, interpreted, against the slow form: several blocks, widths, whole decoders."""

import dataclasses
import functools
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu

from jaxscore.device import decoder, reference
from jaxscore.device.attention import interval, kernel_gpu, kernel_mosaic, kernel_tpu
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.attention.score_rule import (
    Alibi,
    BatchTooLong,
    ScoreRule,
    block_pairs,
    flatten_ends,
    pair_counts,
    visible,
)
from jaxscore.device.backends import BACKENDS, MOSAIC_KERNELS, Build
from jaxscore.device.init_params import init_params
from tests.device.configs import llamalike, rules
from tests.device.tries import random_rows

KERNELS = [one.attention for one in BACKENDS.values() if one.attention.startswith("kernel")]
R = 2


def arrays(seed, length, heads, kv_heads, width):
    draw = np.random.default_rng(seed)
    q, k, v = (
        jnp.asarray(draw.normal(size=(R, length, n, width)), jnp.float32)
        for n in (heads, kv_heads, kv_heads)
    )
    _, position, end = random_rows(seed, R, length)
    return q, k, v, jnp.asarray(position, jnp.int32), jnp.asarray(end, jnp.int32)


@functools.cache
def compiled(kernel):
    run = functools.partial(interval.ATTENTION[kernel], interpret=True)
    return jax.jit(run, static_argnames=("rule", "dtype"))


def whole(q, k, v, position, end, window, rule):
    """Every score of every pair, and the log-sum-exp, in float32."""
    N, K = q.shape[2], k.shape[2]
    k, v = (jnp.repeat(x, N // K, axis=2) for x in (k, v))
    i = jnp.arange(q.shape[1])
    at_i, at_j = position[:, None, :, None], position[:, None, None]
    slopes = rule.slopes()
    slopes = None if slopes is None else slopes[:, None, None]
    scores = jnp.einsum("rinh,rjnh->rnij", q, k, precision="highest")
    scores = rule.scores(scores, slopes, at_i, at_j)
    seen = visible(i[:, None], i[None], end[:, None, None], at_i, at_j, jnp.int32(window))
    scores = jnp.where(seen, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None])
    out = jnp.einsum("rnij,rjnh->rinh", weights, v, precision="highest")
    return out, lse.transpose(0, 2, 1)


@pytest.mark.slow_after(1, of_each="kernel")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("length", "heads", "kv_heads", "width"),
    [
        (96, 4, 1, 64),  # shorter than a block: rows share one
        (300, 4, 2, 128),  # whole registers, so heads are not transposed; a ragged end
        (700, 6, 2, 80),  # several blocks; no power of two
        (513, 2, 2, 192),
        (300, 7, 1, 64),  # seven heads of a key head, as Qwen2 has them
        (300, 7, 1, 128),
    ],
)
def test_several_blocks(kernel, length, heads, kv_heads, width):
    given = arrays(length, length, heads, kv_heads, width)
    rule = ScoreRule(width**-0.5)
    for window in (None, 0, 1, 90):
        at = None if window is None else jnp.int32(window)
        got, lse = compiled(kernel)(*given, at, rule=rule, dtype=jnp.float32)
        want, want_lse = whole(*given, window or 0, rule)
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)
        np.testing.assert_allclose(lse, want_lse, atol=1e-5, rtol=0)


@pytest.mark.slow_after(1, of_each="kernel")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["capped", "alibi", "coarse"])
def test_every_term_of_a_score_over_several_blocks(kernel, kind):
    given = arrays(3, 600, 4, 2, 16)
    rule = rules(4)[kind]
    got, lse = compiled(kernel)(*given, jnp.int32(200), rule=rule, dtype=jnp.float32)
    want, want_lse = whole(*given, 200, rule)
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5, rtol=2e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_broken_value_reaches_those_who_see_it_and_no_others(kernel):
    q, k, v, position, end = arrays(4, 600, 2, 1, 16)
    token = 130
    k, v = interval.isolate_nonfinite(k, v.at[0, token, 0, 3].set(jnp.inf))
    given = q, k, v, position, end, None
    got, lse = compiled(kernel)(*given, rule=ScoreRule(0.25), dtype=jnp.float32)
    i = np.arange(600)
    sees = (i >= token) & (i < int(end[0, token]))
    assert 1 < sees.sum() < 470
    assert np.isnan(np.asarray(got[0, sees])).all()
    assert np.isnan(np.asarray(lse[0, sees])).all()
    assert np.isfinite(np.asarray(got[0, ~sees])).all()
    assert np.isfinite(np.asarray(got[1])).all()


def run_mosaic(kernel, *given, **how):
    """A kernel in an interpreter that raises for a race, and that JAX 0.10 does not export."""
    found = getattr(mosaic_gpu, "InterpretGPUParams", None)
    if found is None:
        from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams as found
    return getattr(kernel_mosaic, kernel)(*given, interpret=found(detect_races=True), **how)


# Pallas' interpreter for GPUs blocks one of XLA's threads with each warpgroup that waits.
INTERPRETED = pytest.mark.skipif(
    int(os.environ.get("NPROC", os.cpu_count() or 1)) < 4,
    reason="waiting warpgroups would block all threads of XLA here; set NPROC=4",
)
MOSAIC = [
    "kernel_sm90",
    pytest.param(
        "kernel_sm100",
        marks=pytest.mark.skipif(
            tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12),
            reason="JAX's interpreter for GPUs knows tensor memory since 0.12",
        ),
    ),
]


@pytest.mark.slow
@INTERPRETED
@pytest.mark.parametrize("kernel", MOSAIC)
@pytest.mark.parametrize(
    ("length", "heads", "width", "kind", "window"),
    [
        (90, 2, 64, "alibi", 70),  # rows share a block; a ragged end
        (90, 2, 80, "capped", 0),
        (40, 1, 256, "coarse", None),
    ],
)
def test_a_mosaic_kernel(kernel, length, heads, width, kind, window):
    """In float32, which a card would round to TF32. One key is NaN."""
    q, k, v, position, end = arrays(length, length, heads, 1, width)
    given = q, *interval.isolate_nonfinite(k.at[1, 20].set(jnp.nan), v), position, end
    rule = rules(heads)[kind]
    at = None if window is None else jnp.int32(window)
    got, lse = run_mosaic(kernel, *given, at, rule=rule, dtype=jnp.float32)
    want, want_lse = whole(*given, window or 0, rule)
    assert 0 < np.isnan(want_lse).sum() < want_lse.size / 2
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5, rtol=2e-6)


@INTERPRETED
@pytest.mark.parametrize("kernel", MOSAIC)
def test_a_mosaic_kernel_in_bfloat16_reads_no_block_that_is_not_seen(kernel):
    """The values of the first row are NaN, and times a weight of 0 they would be NaN."""
    given = arrays(5, 256, 1, 1, 128)
    q, k, v = (x.astype(jnp.bfloat16) for x in given[:3])
    rule = ScoreRule(128**-0.5)
    broken = q, k, v.at[0].set(jnp.nan), *given[3:], None
    got, lse = run_mosaic(kernel, *broken, rule=rule, dtype=jnp.bfloat16)
    want, want_lse = whole(*(x.astype(jnp.float32) for x in (q, k, v)), *given[3:], 0, rule)
    # Weights are rounded to bfloat16; values of up to 4 are averaged.
    np.testing.assert_allclose(got[1], want[1], atol=1e-2, rtol=0)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", MOSAIC_KERNELS.values())
@pytest.mark.parametrize(("width", "dtype"), [(257, jnp.bfloat16), (64, jnp.float32)])
def test_what_a_mosaic_kernel_does_not_take_is_left_to_the_blocked_form(kernel, width, dtype):
    backend = dataclasses.replace(BACKENDS["gpu"], attention=kernel)
    assert interval._select_implementation(backend, dtype, 8, 1, width) is interval.blocked


@pytest.mark.parametrize(("queries", "keys"), [(8, 16), (16, 16), (4, 32)])
@pytest.mark.parametrize("window", [None, 0, 5])
def test_pairs_are_what_the_mask_says(queries, keys, window):
    _, position, end = random_rows(7, 3, 32)
    ends, at = flatten_ends(jnp.asarray(end)), jnp.asarray(position).reshape(-1)
    limit = None if window is None else jnp.int32(window)
    some, every = block_pairs(ends, at, limit, queries, keys)
    i = np.arange(96)
    seen = visible(i[:, None], i[None], ends[None], at[:, None], at[None], limit)
    blocks = np.asarray(seen).reshape(96 // queries, queries, 96 // keys, keys)
    assert (blocks.all(axis=(1, 3)) == every).all() or window
    assert not (every & ~blocks.all(axis=(1, 3))).any()
    assert not (blocks.any(axis=(1, 3)) & ~some).any()
    assert some.sum() < blocks.shape[0] * blocks.shape[2]
    assert (some.sum(axis=1) <= np.array(pair_counts(96, 32, queries, keys))).all()


@pytest.mark.parametrize("window", [None, 0, 150])
@pytest.mark.parametrize("heads", [1, 7])
@pytest.mark.parametrize("most", [1 << 20, 12])
def test_the_list_of_pairs_one_by_one(heads, window, most, monkeypatch):
    """In order, with the flags that a look at each pair gives."""
    monkeypatch.setattr(kernel_tpu, "MAX_PAIRS", most)
    _, position, end = random_rows(11, 3, 1024)
    ends, at = flatten_ends(jnp.asarray(end)), jnp.asarray(position).reshape(-1)
    limit = None if window is None else jnp.int32(window)
    sizes = kernel_tpu.block_sizes(1024, heads, 64)
    parts = kernel_tpu.query_parts(3 * 1024, 1024, sizes)
    assert (parts.n > 1) == (most == 12)
    packed, n_pairs = kernel_tpu._visible_pairs(ends, at, limit, sizes, parts)
    assert packed.shape == (parts.n, parts.pairs)
    some, every = map(np.asarray, block_pairs(ends, at, limit, sizes.queries, sizes.keys))
    want = []
    for i in range(len(some)):
        diagonal = i * sizes.queries // sizes.keys
        of_query = [j for j in range(some.shape[1]) if some[i, j] or j == diagonal]
        for j in of_query:
            first, last = j == of_query[0], j == of_query[-1]
            flags = (
                first * kernel_tpu.FIRST
                | last * kernel_tpu.LAST
                | (not every[i, j]) * kernel_tpu.PARTIAL
            )
            i_part = i % parts.blocks
            want.append((flags << 2 * kernel_tpu.BITS) + (i_part << kernel_tpu.BITS) + j)
    listed = [own[:n].tolist() for own, n in zip(np.asarray(packed), n_pairs, strict=True)]
    assert list(itertools.chain.from_iterable(listed)) == want
    assert len(want) < some.size


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("windows", [(0, 0), (0, 70)])
def test_a_whole_decoder_in_its_scan_with_a_prefix(kernel, windows):
    config = llamalike(windows=windows)
    draw = np.random.default_rng(0)
    params = init_params(jax.random.key(0), config)
    ids = jnp.asarray(draw.integers(0, config.vocab_size, (R, 200)), jnp.int32)
    _, position, end = (jnp.asarray(x, jnp.int32) for x in random_rows(5, R, 200))
    backend = dataclasses.replace(BACKENDS["cpu"], attention=kernel, interpreted=True)
    kept = BACKENDS["cpu"]
    prefix = jnp.asarray(draw.integers(0, config.vocab_size, (1, 9)), jnp.int32)
    at = jnp.arange(9)[None]
    _, made = decoder.extend(params, config, prefix, at, jnp.full((1, 9), 9))
    cache = KVCache(made.key, made.value, jnp.int32(0), jnp.array([9]))
    for before, first in (((), 0), ((cache,), 9)):
        got, want = (
            decoder.hidden_states(params, config, ids, position + first, end, before, Build(one))
            for one in (backend, kept)
        )
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=0)


def test_batches_that_are_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(kernel_tpu, "BITS", 2)
    given = arrays(0, 1100, 1, 1, 16)
    message = "a batch of 2560 tokens, padding included, is too long for attention on a TPU, which"
    with pytest.raises(BatchTooLong, match=f"{message} takes fewer than 2048"):
        kernel_tpu.kernel_tpu(*given, None, rule=ScoreRule(1.0), dtype=jnp.float32)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("heads", "width"), [(7, 64), (2, 128)])
@pytest.mark.parametrize("rule", ["plain", "fine", "coarse"])
def test_parts_of_long_rows_have_the_bits_of_the_whole(heads, width, rule, monkeypatch):
    given = arrays(3, 1100, heads, 1, width)
    alibi = None
    if rule != "plain":
        slopes = tuple(2.0 ** -(n + 1) for n in range(heads))
        alibi = Alibi(slopes, coarse=rule == "coarse")
    run = functools.partial(
        kernel_tpu.kernel_tpu,
        *given,
        jnp.int32(700),
        rule=ScoreRule(width**-0.5, alibi=alibi),
        dtype=jnp.float32,
        interpret=True,
    )
    whole = run()
    sizes = kernel_tpu.block_sizes(1100, heads, width)
    monkeypatch.setattr(kernel_tpu, "MAX_PAIRS", 7)
    assert kernel_tpu.query_parts(R * 1100, 1100, sizes).n > 2
    for part, want in zip(run(), whole, strict=True):
        np.testing.assert_array_equal(part, want)


@pytest.mark.parametrize(
    ("rows", "length", "heads", "n"),
    [
        (1, 131072, 7, 1),
        (1, 1 << 18, 7, 5),
        (1, 1 << 20, 7, 85),
        (8, 32768, 7, 1),
        (1, 1 << 18, 4, 3),
    ],
)
def test_lists_of_pairs_are_sized_by_the_rows_of_a_batch(rows, length, heads, n):
    sizes = kernel_tpu.block_sizes(length, heads, 64)
    parts = kernel_tpu.query_parts(rows * length, length, sizes)
    assert parts.pairs <= kernel_tpu.MAX_PAIRS
    assert parts.n == n


@pytest.mark.parametrize(
    ("heads", "width", "length", "group", "queries"),
    [
        (1, 128, 4096, 1, 256),
        (4, 128, 4096, 4, 256),
        (6, 128, 4096, 3, 256),
        (7, 64, 4096, 7, 128),  # 1 of 256 otherwise
        (7, 64, 100, 7, 128),  # a shorter row has no larger block
        (8, 64, 4096, 4, 256),  # the larger block among equals
        (14, 128, 4096, 7, 128),
        (16, 128, 4096, 4, 256),
        (4, 512, 4096, 2, 256),  # wide heads, half as many rows
        (3, 512, 4096, 3, 128),
    ],
)
def test_a_product_has_as_many_rows_as_fit(heads, width, length, group, queries):
    sizes = kernel_tpu.block_sizes(length, heads, width)
    assert (sizes.group, sizes.queries) == (group, queries)
    assert sizes.group * sizes.groups_of_key == heads


def test_float32_runs_without_a_kernel_on_a_gpu():
    """A kernel that is not interpreted would fail on this platform."""
    *given, end = arrays(5, 96, 4, 2, 32)
    rule = ScoreRule(32**-0.5)
    given = *given, end, None
    found = interval.attention(*given, rule=rule, dtype=jnp.float32, backend=BACKENDS["gpu"])
    want, _ = whole(*given[:5], 0, rule)
    np.testing.assert_allclose(found, want, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "dtype", "block"),
    [(64, "bfloat16", 64), (128, "float32", 64), (256, "bfloat16", 64), (256, "float32", 32)],
)
def test_blocks_of_wide_heads_are_smaller_on_a_gpu(width, dtype, block):
    """64 x 256 in float32 do not fit in the shared memory of an H100."""
    assert kernel_gpu.block_size(width, dtype) == block


def test_the_reference_agrees_with_this_file():
    given = arrays(9, 20, 2, 1, 8)
    rule = rules(2)["capped"]
    want = reference.attention(*given, 6, rule=rule, dtype=jnp.float32)
    np.testing.assert_allclose(whole(*given, 6, rule)[0], want, atol=2e-6, rtol=0)
