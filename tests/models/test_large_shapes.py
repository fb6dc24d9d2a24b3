"""Models that no test could hold: their shapes by the configs of the hub, and what they take."""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding

from jaxscore.device.dots import storage_dtype
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.score import score_rows
from jaxscore.device.sharding import bytes_a_device, parameter_specs
from jaxscore.engine.footprint import abstract_rows, measure
from jaxscore.models import costs, native
from jaxscore.models.weights.params import shapes_of
from tests.models.config.test_defaults import required
from tests.models.families import BASE

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
GEMMA = {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}


class Large(NamedTuple):
    """A published model and its number of parameters, those of float32 vectors apart."""

    raw: dict
    parameters: int
    norms: int
    biases: int = 0
    active: int | None = None


def sized(raw, width, inner, layers, heads, **own):
    return {
        **raw,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **own,
    }


MODELS = {
    "Llama-3.1-8B": Large(
        sized(LLAMA, 4096, 14336, 32, 32), 8_030_261_248, (2 * 32 + 1) * 4096
    ),
    "Llama-3.1-70B": Large(
        sized(LLAMA, 8192, 28672, 80, 64), 70_553_706_496, (2 * 80 + 1) * 8192
    ),
    "Qwen2.5-7B": Large(
        sized(QWEN, 3584, 18944, 28, 28, num_key_value_heads=4, max_window_layers=28),
        7_615_616_512,
        (2 * 28 + 1) * 3584,
        28 * (28 + 4 + 4) * 128,
    ),
    "Qwen2.5-72B": Large(
        sized(QWEN, 8192, 29568, 80, 64, num_key_value_heads=8, max_window_layers=80),
        72_706_203_648,
        (2 * 80 + 1) * 8192,
        80 * (64 + 8 + 8) * 128,
    ),
    "Qwen3-30B-A3B": Large(
        sized(
            QWEN, 2048, 6144, 48, 32, model_type="qwen3_moe", num_key_value_heads=4, head_dim=128,
            attention_bias=False, decoder_sparse_step=1, max_position_embeddings=40960,
            max_window_layers=48, mlp_only_layers=[], moe_intermediate_size=768,
            norm_topk_prob=True, num_experts=128, num_experts_per_tok=8,
            output_router_logits=False, router_aux_loss_coef=0.001, sliding_window=None,
            vocab_size=151936,
        ),
        30_532_122_624,
        (2 * 48 + 1) * 2048 + 48 * 2 * 128,
        active=30_532_122_624 - 48 * 120 * 3 * 2048 * 768,  # 120 of 128 experts a layer stand by
    ),
    "gemma-2-9b": Large(
        sized(
            GEMMA, 3584, 14336, 42, 16, num_key_value_heads=8, head_dim=256,
            query_pre_attn_scalar=256,
        ),
        9_241_705_984,
        (4 * 42 + 1) * 3584,
    ),
    "gemma-2-27b": Large(
        sized(
            GEMMA, 4608, 36864, 46, 32, num_key_value_heads=16, head_dim=128,
            query_pre_attn_scalar=144,
        ),
        27_227_128_320,
        (4 * 46 + 1) * 4608,
    ),
    "Mistral-7B-v0.3": Large(
        sized(
            LLAMA, 4096, 14336, 32, 32, model_type="mistral", max_position_embeddings=32768,
            rope_scaling=None, rope_theta=1000000.0, sliding_window=None, vocab_size=32768,
        ),
        7_248_023_552,
        (2 * 32 + 1) * 4096,
    ),
}  # fmt: skip


@functools.cache
def decoder(name):
    return native.translate(Path(name), MODELS[name].raw)[1]


def model(name):
    """As loaded in bfloat16, but that its parameters are shapes."""
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, storage_dtype(leaf.dtype, True)),
        shapes_of(decoder(name), BFLOAT16),
    )
    kind = MODELS[name].raw["model_type"]
    return native.from_params(decoder(name), shapes, "bfloat16", kind)


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name):
    large, config = MODELS[name], decoder(name)
    shapes = shapes_of(config, BFLOAT16)
    leaves = jax.tree.leaves(shapes)
    assert sum(leaf.size for leaf in leaves) == large.parameters
    vectors = sum(leaf.size for leaf in leaves if leaf.dtype == np.float32)
    assert vectors == large.norms + large.biases
    assert costs.active_parameters(shapes, config) == (large.active or large.parameters)


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_a_batch(name):
    functions, rows, length = model(name).functions, 4, 1024
    scored = functools.partial(score_rows, functions.hidden_states, functions.unembedding)
    scores = jax.eval_shape(scored, model(name).params, abstract_rows(rows, length))
    assert scores.logprob.shape == scores.greedy.shape == (4 * rows * length,)
    for values in (scores.entropy, scores.self_certainty, scores.greedy_id):
        assert values.shape == (rows * length,)


# Parameters that each of eight devices has all of: 4 key heads, and what chooses experts.
WHOLE = {"Qwen3-30B-A3B": 48 * (2 * 4 * 128 + 128) * 2048}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"Qwen2.5-7B"}))
def test_bytes_on_each_of_two_times_eight_devices(name):
    large, config, mesh = MODELS[name], decoder(name), MeshShape(2, 8)
    shapes = shapes_of(config, BFLOAT16)
    placed = parameter_specs(shapes, config, mesh)
    abstract = AbstractMesh((2, 8), ("data", "model"))

    def shard(leaf, spec):
        return leaf.dtype.itemsize * int(
            np.prod(NamedSharding(abstract, spec).shard_shape(leaf.shape), dtype=np.int64)
        )

    found = bytes_a_device(shapes, placed, mesh)
    assert found == jax.tree.map(shard, shapes, placed)
    whole = WHOLE.get(name, 0)
    split = large.parameters - large.norms - large.biases - whole
    assert sum(jax.tree.leaves(found)) == (
        2 * split // 8 + 2 * whole + 4 * large.norms + 4 * large.biases // 8
    )


def test_28_heads_are_not_split_over_eight():
    large, config = MODELS["Qwen2.5-7B"], decoder("Qwen2.5-7B")
    shapes = shapes_of(config, BFLOAT16)
    with pytest.raises(ValueError, match=r"model=8 .* 28 query heads.* model can be 1, 2, 4$"):
        parameter_specs(shapes, config, MeshShape(1, 8))
    mesh = MeshShape(2, 4)
    found = bytes_a_device(shapes, parameter_specs(shapes, config, mesh), mesh)
    matrices = large.parameters - large.norms - large.biases
    assert sum(jax.tree.leaves(found)) == 2 * matrices // 4 + 4 * large.norms + large.biases


@pytest.mark.parametrize("kind", BASE)
def test_every_parameter_of_every_family_has_a_rule(kind):
    config = native.translate(Path(kind), BASE[kind] | required(kind) | BASE[kind])[1]
    shapes = shapes_of(config, BFLOAT16)
    placed = parameter_specs(shapes, config, MeshShape(1, 1))
    assert jax.tree.structure(placed) == jax.tree.structure(shapes)


@pytest.mark.slow
def test_temporary_memory_is_a_layer_and_some_activations():
    """Neither the logits nor a float32 copy of the vocabulary, 2.1 GB each."""
    one, config = model("Llama-3.1-8B"), decoder("Llama-3.1-8B")
    found = measure(one, 8, 512)
    layer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one.params["layers"]))
    activation = 8 * 512 * config.width * 4
    assert 4 * activation < found.temporary_bytes < layer / config.n_layers + 8 * activation
    assert found.temporary_bytes < 8 * 512 * config.vocab_size * 4 / 2
