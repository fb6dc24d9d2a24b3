"""Which queries are computed, and that no array of [tokens, V] ever exists."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import decoder, unembed
from jaxscore.device.dots import storage_dtype
from jaxscore.device.forms import FORMS
from jaxscore.device.rows import Rows, Unembedding
from jaxscore.device.score import score_rows
from tests.device.configs import llamalike

N, T, D, V = 30, 2, 16, 150
MB = 1_000_000

CPU = FORMS["cpu"]
FEW = dataclasses.replace(CPU, query_blocks=(12, 4))


def arrays(n_slots, seed=0):
    draw = np.random.default_rng(seed)
    hidden = jnp.asarray(draw.normal(size=(N, D)), jnp.float32)
    weight = jnp.asarray(draw.normal(size=(V, D)), jnp.float32)
    query = jnp.asarray(draw.integers(0, N, n_slots), jnp.int32)
    target = jnp.asarray(draw.integers(0, V, (n_slots, T)), jnp.int32)
    return hidden, query, target, Unembedding(weight, None, 1.0, None, forms=FEW)


@pytest.mark.parametrize(
    "n_slots", [24, 20, 5]
)  # large and small blocks, a ragged end, one short of two
def test_only_the_queries_asked_for_are_computed(n_slots):
    hidden, query, target, head = arrays(n_slots)
    want = unembed.vocabulary_terms(hidden[query], target, head)
    run = jax.jit(lambda n: unembed.score_queries(hidden, query, target, n, head))
    block = min(4, n_slots)
    for n in range(n_slots + 1):
        got = run(jnp.int32(n))
        # Whole blocks are computed, the last one moved back inside the slots.
        stop = min(-(-n // block) * block, n_slots)
        for name in got._fields:
            ours, theirs = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
            np.testing.assert_allclose(ours[:n], theirs[:n], atol=1e-6, rtol=1e-6, err_msg=name)
            assert not ours[stop:].any(), f"{name} after block {stop} with {n} queries"
    assert run._cache_size() == 1  # the number of queries is data


def test_a_query_block_that_is_not_reached_costs_nothing():
    """A NaN in the hidden states of later blocks cannot be seen."""
    hidden, query, target, head = arrays(24)
    query = jnp.where(jnp.arange(24) < 8, jnp.minimum(query, N - 2), N - 1)
    poisoned = hidden.at[N - 1].set(jnp.nan)
    run = jax.jit(lambda n: unembed.score_queries(poisoned, query, target, n, head))
    assert np.isfinite(run(jnp.int32(8)).logprob).all()
    assert np.isnan(run(jnp.int32(9)).logprob[8:12]).all()


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_vocabulary_pass_holds_no_logits(dtype):
    """4096 queries at 152,000 columns would be 2.5 GB; a block of each is 4 MB.

    Nothing is allocated: the program is compiled from shapes and asked what it needs.
    """
    queries, columns, width = 4096, 152_000, 64

    def run(hidden, query, target, n, weight):
        head = Unembedding(weight, None, 1.0, None, forms=CPU)
        return unembed.score_queries(hidden, query, target, n, head)

    ids = functools.partial(struct, dtype=jnp.int32)
    given = (
        struct(queries, width),
        ids(queries),
        ids(queries, 4),
        ids(),
        struct(columns, width, dtype=storage_dtype(dtype, True)),
    )
    made = list(shapes_in(jax.make_jaxpr(run)(*given).jaxpr))
    largest = max(math.prod(shape) for shape in made)
    assert largest == CPU.query_blocks[0] * CPU.vocabulary_columns
    compiled = jax.jit(run).lower(*given).compile()
    assert "f32[4096,152000]" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < 100 * MB


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
        ids(rows * length),
        ids(rows * length, 4),
        ids(),
    )
    params = jax.eval_shape(
        functools.partial(decoder.init_params, config=config), jax.random.key(0)
    )
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
