"""Every form of the mixture against one token and one expert at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import experts as device_experts
from jaxscore.device import grouped_matmul
from jaxscore.device.backends import BACKENDS, Build
from jaxscore.device.dots import as_integers
from jaxscore.device.experts import (
    GROUPED,
    SUMS,
    fits_grouped_gpu,
    grouped,
    in_chunks,
    mixture,
    one_block,
)
from jaxscore.models.weights.params import int8_scales, int8_values

pytestmark = pytest.mark.numeric

PRODUCTS = {"blocked": functools.partial(in_chunks, one_block, None, None)} | {
    f"{name}, {shards} shards": functools.partial(
        in_chunks,
        functools.partial(grouped, functools.partial(product, interpret=True)),
        shards,
        functools.partial(SUMS[name], interpret=True) if name in SUMS else None,
    )
    for name, product in GROUPED.items()
    for shards in (1, 64)  # one chunk; several
}
LAYERS, COUNT, D, F, K = 2, 5, 12, 20, 2


def weights(seed=0):
    draw = np.random.default_rng(seed)

    def one(*shape):
        return draw.normal(size=(LAYERS, COUNT, *shape), scale=0.4).astype(np.float32)

    return {"gate": one(F, D), "up": one(F, D), "down": one(D, F)}


def given(T, seed=0, only=None):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(T, D)).astype(np.float32)
    share = draw.uniform(0.1, 0.9, (T, K)).astype(np.float32)
    pool = only or list(range(COUNT))
    chosen = np.stack([draw.permutation(pool)[:K] for _ in range(T)]).astype(np.int32)
    return x, share, chosen


def relu_gate(gate, up):
    return jax.nn.relu(gate) * up


def slow(weights, layer, x, share, chosen, biases=None, weighs_input=False):
    out = np.zeros_like(x)
    for t in range(len(x)):
        for weight, e in zip(share[t], chosen[t], strict=True):
            gate, up, down = (weights[name][layer, e] for name in ("gate", "up", "down"))
            b_gate, b_up, b_down = (
                0.0 if biases is None else biases[name][layer, e] for name in ("gate", "up", "down")
            )
            read = weight * x[t] if weighs_input else x[t]
            inner = np.maximum(gate @ read + b_gate, 0) * (up @ read + b_up)
            out[t] += (1.0 if weighs_input else weight) * (down @ inner + b_down)
    return out


def tree(weights, dtype=jnp.float32):
    return {
        name: {"weight": as_integers(jnp.asarray(w).astype(dtype))} for name, w in weights.items()
    }


def run(form, tree, layer, *arrays, quantized="", weighs_input=False):
    compiled = jax.jit(
        lambda *a: PRODUCTS[form](a[0], a[1], relu_gate, *a[2:], quantized, weighs_input)
    )
    return np.asarray(compiled(tree, jnp.int32(layer), *map(jnp.asarray, arrays)))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize(
    ("T", "block", "only"),
    [
        (1, 8, None),
        (3, 8, None),  # blocks mostly empty, experts without a token
        (40, 8, None),  # several blocks an expert, the last ragged
        (40, 8, [1, 4]),  # all tokens at two experts
        (33, 128, None),
    ],
)
def test_each_token_has_its_experts(monkeypatch, form, T, block, only):
    monkeypatch.setattr(device_experts, "BLOCK", block)
    monkeypatch.setattr(grouped_matmul, "SUM_TOKENS", 16)  # several, the last ragged
    own, arrays = weights(), given(T, T, only)
    for layer in range(LAYERS):
        want = slow(own, layer, *arrays)
        got = run(form, tree(own), layer, *arrays)
        np.testing.assert_allclose(got, want, atol=2e-5, rtol=0)
    assert np.abs(want - slow(own, 0, *arrays)).max() > 0.1  # the layers differ


@pytest.mark.parametrize("only", [None, [1, 4], [-2, 3, 7]])
@pytest.mark.parametrize("T", [1, 40])
def test_blocks_one_pair_at_a_time(monkeypatch, T, only):
    """Every pair of an expert of this shard is in one block, in order; -2 and 7 are elsewhere."""
    monkeypatch.setattr(device_experts, "BLOCK", 8)
    _, _, chosen = given(T, T, only)
    blocks = device_experts._lay_out_blocks(jnp.asarray(chosen), COUNT)
    of_expert = [np.flatnonzero(chosen.reshape(-1) == e).tolist() for e in range(COUNT)]
    assert blocks.rows.tolist() == [len(pairs) for pairs in of_expert]
    assert blocks.row_end.tolist() == np.cumsum(blocks.rows).tolist()
    want = [
        (e, pairs[n : n + 8]) for e, pairs in enumerate(of_expert) for n in range(0, len(pairs), 8)
    ]
    assert blocks.block_end[-1] == len(want)
    for block, (expert, pairs) in enumerate(want):
        pair, mine = blocks.pairs(block)
        assert blocks.expert(block) == expert
        assert pair[mine].tolist() == pairs


@pytest.mark.parametrize("form", PRODUCTS)
@pytest.mark.parametrize("weighs_input", [False, True])
def test_biases_and_weights_on_what_an_expert_reads(monkeypatch, form, weighs_input):
    monkeypatch.setattr(device_experts, "BLOCK", 8)
    own, arrays, draw = weights(), given(21), np.random.default_rng(5)
    biases = {
        name: draw.normal(size=(LAYERS, COUNT, width)).astype(np.float32)
        for name, width in {"gate": F, "up": F, "down": D}.items()
    }
    stored = {name: one | {"bias": jnp.asarray(biases[name])} for name, one in tree(own).items()}
    want = slow(own, 1, *arrays, biases, weighs_input)
    got = run(form, stored, 1, *arrays, weighs_input=weighs_input)
    np.testing.assert_allclose(got, want, atol=2e-5, rtol=0)
    for other in (slow(own, 1, *arrays), slow(own, 1, *arrays, biases, not weighs_input)):
        assert np.abs(want - other).max() > 0.1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("form", PRODUCTS)
def test_bfloat16_and_int8_are_near(form):
    own, arrays = weights(), given(40)
    want = slow(own, 1, *arrays)
    size = np.abs(want).max()
    near = run(form, tree(own, jnp.bfloat16), 1, *arrays)
    assert 1e-4 * size < np.abs(near - want).max() < 0.03 * size
    stored = {
        name: {
            "weight": jnp.asarray([[int8_values(e) for e in layer] for layer in w]),
            "channel_scale": jnp.asarray([[int8_scales(e) for e in layer] for layer in w]),
        }
        for name, w in own.items()
    }
    exact = {
        name: np.asarray(one["weight"], np.float32) * np.asarray(one["channel_scale"])[..., None]
        for name, one in stored.items()
    }
    got = run(form, stored, 1, *arrays, quantized="float32")
    np.testing.assert_allclose(got, slow(exact, 1, *arrays), atol=2e-5, rtol=0)
    assert 1e-4 * size < np.abs(got - want).max() < 0.03 * size


@pytest.mark.parametrize("form", PRODUCTS)
def test_a_broken_token_breaks_no_other(monkeypatch, form):
    monkeypatch.setattr(device_experts, "BLOCK", 8)
    own, (x, share, chosen) = tree(weights()), given(20)
    want = run(form, own, 0, x, share, chosen)
    x[7] = np.nan
    got = run(form, own, 0, x, share, chosen)
    assert np.isnan(got[7]).all()
    others = np.arange(20) != 7
    np.testing.assert_array_equal(got[others], want[others])


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        ((24, 60, 1408, 2048), "bfloat16", True),
        ((24, 60, 1408, 2048), "int8", False),  # 4.2e9 bytes, behind 32-bit addresses
        ((12, 8, 1408, 2048), "int8", True),
        ((2, 4, 24, 32), "float32", False),
    ],
)
def test_what_the_gpu_kernel_takes(shape, dtype, taken):
    assert fits_grouped_gpu(shape, dtype) == taken


def test_what_the_gpu_kernel_does_not_take_goes_block_by_block(monkeypatch):
    own, (x, share, chosen) = tree(weights()), given(20)  # widths of 12 and 20
    monkeypatch.setitem(GROUPED, "kernel_gpu", None)
    rows = (jnp.asarray(one)[None] for one in (x, share, chosen))
    got = mixture(own, jnp.int32(1), relu_gate, *rows, build=Build(BACKENDS["gpu"]))
    np.testing.assert_allclose(got[0], slow(weights(), 1, x, share, chosen), atol=2e-5, rtol=0)
