"""Which queries are computed, and that no array of [tokens, V] ever exists."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import decoder, lm_head, reference
from jaxscore.device.backends import BACKENDS
from jaxscore.device.dots import storage_dtype
from jaxscore.device.init_params import init_params
from jaxscore.device.rows import Rows, ScoredPositions, Unembedding
from jaxscore.device.score import score_rows
from tests.device.configs import llamalike

pytestmark = pytest.mark.numeric

N, T, D, V = 30, 2, 16, 150
MB = 1_000_000

CPU = BACKENDS["cpu"]
FEW = dataclasses.replace(CPU, position_blocks=(12, 4), interpreted=True)


def arrays(n_slots, form="position_blocks", seed=0):
    draw = np.random.default_rng(seed)
    hidden = jnp.asarray(draw.normal(size=(N, D)), jnp.float32)
    weight = jnp.asarray(draw.normal(size=(V, D)), jnp.float32)
    query = jnp.asarray(draw.integers(0, N, n_slots), jnp.int32)
    answer = jnp.asarray(draw.integers(0, V, T * n_slots), jnp.int32)
    backend = dataclasses.replace(FEW, lm_head=form)
    return hidden, query, answer, Unembedding(weight, None, 1.0, None, backend=backend)


@pytest.mark.slow_after(1, of_each="form")
@pytest.mark.parametrize("form", lm_head.IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "n_slots", [24, 20, 5]
)  # large and small blocks, a ragged end, one short of two
def test_any_number_of_queries_and_answers(form, n_slots):
    """More answers than queries, and all of them at one query."""
    hidden, query, answer, head = arrays(n_slots, form)

    @jax.jit
    def run(n, m):
        slot = jnp.arange(T * n_slots) % jnp.maximum(n, 1)
        asked = ScoredPositions(query, n, slot, answer, m)
        return lm_head.score_positions(hidden, asked, head), slot

    for n, m in [(0, 0), (1, 1), (1, T * n_slots), (n_slots // 2, 3), (n_slots, T * n_slots)]:
        got, slot = run(jnp.int32(n), jnp.int32(m))
        every = ScoredPositions(query, jnp.int32(n_slots), slot, answer, jnp.int32(len(answer)))
        want = reference.score_positions(hidden, every, head)
        for name in ("logprob", "greedy", "entropy", "self_certainty", "greedy_id"):
            k = m if name in ("logprob", "greedy") else n
            ours, theirs = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
            np.testing.assert_allclose(ours[:k], theirs[:k], atol=2e-6, rtol=2e-6, err_msg=name)
    assert run._cache_size() == 1  # how many there are is data


def test_answers_in_buckets_have_the_bits_of_all_of_them(monkeypatch):
    """48 answers in blocks of 4: the smallest of 2, 3, 6 and 12 blocks runs, the rest stays 0."""
    monkeypatch.setattr(lm_head, "EDGE_BLOCK", 4)
    hidden, query, answer, head = arrays(24, "buckets")
    slot = jnp.arange(48) % 24

    def run(m):
        return lm_head.score_positions(
            hidden, ScoredPositions(query, jnp.int32(24), slot, answer, m), head
        )

    in_buckets = jax.jit(run)
    got = {m: in_buckets(jnp.int32(m)) for m in (0, 1, 8, 9, 12, 13, 24, 25, 48)}
    monkeypatch.setattr(lm_head, "BUCKETS", 1)
    want = jax.jit(lambda m: run(m))(jnp.int32(1))
    assert np.asarray(want.logprob).all()
    for m, scores in got.items():
        done = 4 * next(n for n in (2, 3, 6, 12) if 4 * n >= m)
        for name in ("logprob", "greedy"):
            ours, theirs = getattr(scores, name), getattr(want, name)
            np.testing.assert_array_equal(ours[:done], theirs[:done])
            assert not ours[done:].any()


@pytest.mark.slow
def test_a_query_block_that_is_not_reached_costs_nothing():
    """A NaN in the hidden states of later blocks cannot be seen."""
    hidden, query, answer, head = arrays(24)
    query = jnp.where(jnp.arange(24) < 8, jnp.minimum(query, N - 2), N - 1)
    poisoned = hidden.at[N - 1].set(jnp.nan)
    slot = jnp.arange(T * 24) % 24

    @jax.jit
    def run(n):
        return lm_head.score_positions(poisoned, ScoredPositions(query, n, slot, answer, n), head)

    assert np.isfinite(run(jnp.int32(8)).logprob[:8]).all()
    few = run(jnp.int32(9))
    assert np.isfinite(few.entropy[:8]).all()
    assert np.isnan(few.entropy[8:12]).all()
    assert np.isnan(few.logprob[8])


def shapes_in(jaxpr):
    """Shapes of everything that a jaxpr and its inner ones make."""
    for equation in jaxpr.eqns:
        yield from (v.aval.shape for v in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from shapes_in(inner)


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_vocabulary_pass_holds_no_logits(dtype):
    """4096 queries at 152,000 columns would be 2.5 GB; a block of each is 4 MB.

    Nothing is allocated: the program is compiled from shapes and asked what it needs.
    """
    n, columns, width = 4096, 152_000, 64

    def run(hidden, asked, weight):
        head = Unembedding(weight, None, 1.0, None, backend=CPU)
        return lm_head.score_positions(hidden, asked, head)

    ids = functools.partial(struct, dtype=jnp.int32)
    given = (
        struct(n, width),
        ScoredPositions(ids(n), ids(), ids(4 * n), ids(4 * n), ids()),
        struct(columns, width, dtype=storage_dtype(dtype, True)),
    )
    made = list(shapes_in(jax.make_jaxpr(run)(*given).jaxpr))
    largest = max(math.prod(shape) for shape in made)
    assert largest == CPU.position_blocks[0] * CPU.lm_head_columns
    compiled = jax.jit(run).lower(*given).compile()
    assert "f32[4096,152000]" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < 100 * MB


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "length"), [(8, 512), (42, 96)])
def test_scoring_a_batch_stays_small(dtype, rows, length):
    """A whole batch at 152,000 columns and the widths of a 0.5B model, both kinds of weights."""
    config = llamalike(
        vocab_size=152_000, width=896, mlp_width=4864, n_heads=14, n_kv_heads=2, head_width=64
    )
    ids = functools.partial(struct, dtype=jnp.int32)
    batch = Rows(
        ids(rows, length),
        ids(rows, length),
        ids(rows, length),
        ScoredPositions(
            ids(rows * length),
            ids(),
            ids(4 * rows * length),
            ids(4 * rows * length),
            ids(),
        ),
    )
    params = jax.eval_shape(functools.partial(init_params, config=config), jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: struct(*leaf.shape, dtype=storage_dtype(dtype, True)),
        params,
    )
    run = jax.jit(
        functools.partial(
            score_rows,
            lambda p, i, at, end: decoder.hidden_states(p, config, i, at, end),
            lambda p: decoder.unembedding(p, config),
        )
    )
    temporary = run.lower(params, batch).compile().memory_analysis().temp_size_in_bytes
    assert 0 < temporary < 300 * MB
