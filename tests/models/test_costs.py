"""Parameters, bytes and FLOPs by the config, against loaded parameters and traced programs."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jaxscore.device import decoder
from jaxscore.device.decoder_config import Experts, GatedDelta, Recurrent, SharedBlocks, StateSpace
from jaxscore.device.lm_head import lm_head_terms
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import bytes_a_device, parameter_specs
from jaxscore.models import costs
from jaxscore.models.weights.params import shapes_of
from tests.device.configs import gpt2like, llamalike

FLOAT32 = np.dtype(np.float32)
EXPERTS = Experts.of(count=6, per_token=2, router_renormalised=True)
CONFIGS = {
    "llama": llamalike(),
    "untied": llamalike(head_tied=False, head_bias=True, n_kv_heads=1),
    "gpt2": gpt2like(),
    "other widths": llamalike(embedding_width=16, n_heads=3, n_kv_heads=3, head_width=10),
    "int8": llamalike(quantized="float32", qk_norm_kind="heads"),
    "deep": llamalike(n_layers=5, windows=(0,) * 5),
}


def product_flops(jaxpr):
    """2 for each multiplication of every matrix product that runs, loops as often as they do."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * inner
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        assert equation.primitive.name != "while"  # nobody knows how often that runs
        for inner_jaxpr in jaxprs_in_params(equation.params):
            total += times * product_flops(inner_jaxpr)
    return total


def traced(function, *args):
    return product_flops(jax.make_jaxpr(function)(*args).jaxpr)


def abstract_tokens(rows, length):
    return jax.ShapeDtypeStruct((rows, length), jnp.int32)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("rows", "length"), [(1, 64), (3, 96), (10, 128)])
def test_flops_are_those_of_the_traced_products(name, rows, length):
    """A row of up to 128 tokens is one block of attention, in which each token meets each."""
    config = CONFIGS[name]
    shapes = shapes_of(config, FLOAT32)
    run = functools.partial(decoder.hidden_states, config=config)
    at = abstract_tokens(rows, length)
    found = traced(lambda p, *rows: run(p, ids=rows[0], position=rows[1], subtree_end=rows[2]),
                   shapes, at, at, at)  # fmt: skip
    each = costs.linear_flops(shapes, config) + costs.attention_flops(config, length)
    assert found == rows * length * each


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_of_the_unembedding(name):
    config = CONFIGS[name]
    head = decoder.unembedding(shapes_of(config, FLOAT32), config)
    hidden = jax.ShapeDtypeStruct((7, config.embedding.width or config.width), jnp.float32)

    def run(hidden, weight, bias):
        return lm_head_terms(hidden, head._replace(weight=weight, bias=bias))

    found = traced(run, hidden, head.weight, head.bias)
    assert found == 7 * costs.unembedding_flops(config)


def test_a_window_bounds_what_is_seen():
    config = llamalike(n_layers=3, windows=(0, 8, 100))
    assert costs.attention_flops(config, 5) == 4 * 4 * 8 * 15
    assert costs.attention_flops(config, 50) == 4 * 4 * 8 * (50 + 8 + 50)
    assert costs.attention_flops(config, 200) == 4 * 4 * 8 * (200 + 8 + 100)


def test_each_layer_that_uses_a_shared_block_multiplies_by_it():
    mixer = StateSpace(4, 6, 2, 8, 4, True, True, "silu", 0.0, 1e9)
    own = {"n_layers": 3, "windows": (0,) * 3, "mlp_layers": ()}
    config = llamalike(
        **own, recurrent=Recurrent((0, 1, 2), mixer), shared_blocks=SharedBlocks((0, 1), 1)
    )
    once = dataclasses.replace(config, shared_blocks=SharedBlocks((0,), 1))
    two, one = (costs.linear_flops(shapes_of(c, FLOAT32), c) for c in (config, once))
    of_block = (32 + 16 + 16) * 48 + 24 * 32 + 3 * 24 * 40 + 24 * 24
    assert two - one == 2 * of_block
    depths = (costs.attention_flops(c, 5) for c in (config, once))
    assert list(depths) == [2 * 4 * 16 * 5 * 2, 2 * 4 * 16 * 5]


def test_experts_that_a_token_runs():
    """As wide as those together, and the product that chooses them."""
    mixture = llamalike(experts=EXPERTS)
    wide = llamalike(mlp_width=2 * mixture.mlp.width)
    chooses = mixture.n_layers * EXPERTS.count * mixture.width
    sparse, dense = shapes_of(mixture, FLOAT32), shapes_of(wide, FLOAT32)
    assert costs.linear_flops(sparse, mixture) == costs.linear_flops(dense, wide) + 2 * chooses
    active = costs.active_parameters(sparse, mixture)
    assert active == costs.active_parameters(dense, wide) + chooses
    one = 3 * mixture.n_layers * mixture.mlp.width * mixture.width
    assert sum(leaf.size for leaf in jax.tree.leaves(sparse)) == active + 4 * one


def test_scales_are_no_parameters():
    for config in (llamalike(), llamalike(experts=EXPERTS)):
        stored = dataclasses.replace(config, quantized="float32")
        plain, quantized = shapes_of(config, FLOAT32), shapes_of(stored, FLOAT32)
        for count in (costs.active_parameters, costs.linear_flops):
            assert count(quantized, stored) == count(plain, config)
        for one, other in zip(parts(plain, config), parts(quantized, stored), strict=True):
            assert one.parameters == other.parameters
            smaller = one.name in (costs.LAYERS, costs.EXPERTS)
            assert (other.bytes < one.bytes) == smaller


def parts(shapes, config, mesh=None):
    mesh = mesh or MeshShape()
    return costs.parts(shapes, bytes_a_device(shapes, parameter_specs(shapes, config, mesh), mesh))


def test_parts():
    config = llamalike(experts=EXPERTS, head_tied=False, embedding_width=16, embedding_norm=True)
    shapes = shapes_of(config, FLOAT32)
    found = parts(shapes, config, MeshShape(3, 2))
    assert [part.name for part in found] == ["embedding", "layers", "experts", "unembedding"]
    by_name = {part.name: part for part in found}
    assert by_name["embedding"].parameters == 50 * 16 + 24 + 24 * 16
    assert by_name["unembedding"].parameters == 50 * 16 + 24 + 24 * 16
    assert by_name["experts"] == ("experts", 2 * 6 * 3 * 24 * 40, 69120 * 2, 69120)
    leaves = jax.tree.leaves(shapes)
    assert sum(part.parameters for part in found) == sum(leaf.size for leaf in leaves)
    assert sum(part.bytes for part in found) == sum(4 * leaf.size for leaf in leaves)
    tied = parts(shapes_of(llamalike(), FLOAT32), llamalike())
    assert [part.name for part in tied] == ["embedding", "layers", "unembedding"]
    assert tied[2].parameters == 24  # the norm before it


def test_bytes_of_states():
    """Qwen3.5-4B: 24 layers of 32 heads of 128 x 128, and 3 inputs of 8,192 channels, float32."""
    mixer = GatedDelta(16, 32, 128, 128, 4, "silu", 1.0, 1e-6)
    config = llamalike(width=2560, n_layers=24, windows=(0,) * 24)
    config = dataclasses.replace(config, recurrent=Recurrent(tuple(range(24)), mixer))
    assert costs.state_bytes(config, 1) == 24 * (32 * 128 * 128 + 3 * 8192) * 4
    assert costs.key_value_bytes(config, 4, 1) == 0


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_bytes_of_keys_and_values(n_kv_heads):
    config = llamalike(n_kv_heads=n_kv_heads)
    at = abstract_tokens(2, 64)
    run = functools.partial(decoder.extend, config=config)
    _, kept = jax.eval_shape(
        lambda p, at: run(p, ids=at, position=at, subtree_end=at), shapes_of(config, FLOAT32), at
    )
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    assert held == 2 * 64 * costs.key_value_bytes(config, 4, 1)
    for model in (2, 4):
        share = max(1, n_kv_heads // model) / n_kv_heads
        found = costs.key_value_bytes(config, 4, model)
        assert found == share * costs.key_value_bytes(config, 4, 1)
