"""What a config or its tensors have that is not handled is refused by its name."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from tests.models.checkpoints import loaded


def refused(folder, *parts, implementation="native"):
    """Loading fails with a message that has all the parts, in order."""
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    with pytest.raises(InputError, match=f"(?s){pattern}"):
        loaded(folder, implementation=implementation)


ATTRIBUTES = [
    ("llama", {"my_scale": 2.0}, "my_scale=2.0"),
    ("llama", {"my_scale": 0.0}, "my_scale=0.0"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"embedding_multiplier": 12.0, "logits_scaling": 8}, "logits_scaling=8"),
    ("llama", {"sliding_window": 4}, "sliding_window=4"),
    ("llama", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3"),
    ("llama", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters="),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "odd": 1}}, "'odd'"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
    ("llama", {"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope_theta 5.0"),
    ("gpt2", {"n_head": 0}, "sizes that make no model"),
    ("gpt2", {"n_inner": "abc"}, "'abc'"),
    ("gpt2", {"n_layer": 0}, "n_layers comes out as 0"),
    ("llama", {"rope_scaling": [2.0]}, "transformers refuses it"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor '2'"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor 0"),
    ("llama", {"num_hidden_layers": "2"}, "num_hidden_layers is '2', expected a value like 32"),
    ("llama", {"rms_norm_eps": None}, "rms_norm_eps is None"),
    ("llama", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ("llama", {"attention_bias": 1}, "attention_bias is 1"),
    ("llama", {"hidden_act": ["silu"]}, "hidden_act is ['silu']"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"activation_function": "mish"}, "activation_function is 'mish'"),
    ("gpt2", {"rotary_dim": 8}, "rotary_dim=8"),
    ("qwen2", {"layer_types": ["chunked_attention", "full_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention"]}, "number of layer types (1)"),
    ("qwen2", {"attention_bias": True}, "attention_bias=True"),
]


@pytest.mark.parametrize(("kind", "attributes", "named"), ATTRIBUTES, ids=str)
def test_an_attribute_that_is_not_handled(checkpoint, kind, attributes, named):
    folder = checkpoint(kind, **attributes)
    refused(folder, folder / "config.json", named)


@pytest.mark.parametrize("implementation", ["native", "transformers", "auto"])
@pytest.mark.parametrize("kind", ["no_such_model", "mistral", "qwen3", "bert"])
def test_a_model_type_that_is_not_covered(checkpoint, kind, implementation):
    folder = checkpoint("llama", model_type=kind)
    refused(folder, folder / "config.json", kind, implementation=implementation)


@pytest.mark.parametrize(
    ("kind", "attributes", "named"),
    [
        ("llama", {"rope_theta": 500000.0}, "rope_theta is 500000.0"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("llama", {"head_dim": 16}, "head_dim is 16"),
        ("llama", {"my_scale": 2.0}, "my_scale=2.0"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"activation_function": "mish"}, "activation_function"),
        ("llama", {"hidden_act": "mish"}, "hidden_act"),
        ("qwen2", {}, "'qwen2'"),
    ],
    ids=str,
)
def test_what_transformers_flax_classes_get_wrong(checkpoint, kind, attributes, named):
    folder = checkpoint(kind, **attributes)
    refused(folder, folder / "config.json", named, implementation="transformers")


BOTH = pytest.mark.parametrize("implementation", ["native", "transformers"])
DOWN = "model.layers.1.mlp.down_proj.weight"


def with_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


@BOTH
def test_a_missing_tensor(checkpoint, implementation):
    folder = with_tensors(checkpoint("llama"), lambda tensors: tensors.pop(DOWN))
    refused(folder, folder, "missing", implementation=implementation)
    refused(folder, "layers.1.mlp.down_proj", implementation=implementation)


@BOTH
@pytest.mark.parametrize("name", ["model.layers.2.mlp.down_proj.weight", "lm_head.bias", "extra"])
def test_a_tensor_that_is_not_used(checkpoint, implementation, name):
    folder = with_tensors(
        checkpoint("llama"), lambda tensors: tensors.update({name: tensors[DOWN]})
    )
    refused(folder, folder, name.removeprefix("model."), implementation=implementation)


@BOTH
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", DOWN),
        ("llama", "model.embed_tokens.weight"),
        ("llama", "model.norm.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_a_wrong_shape(checkpoint, implementation, kind, name):
    """One more at the end: of a tensor that is cut in three parts, too."""

    def longer(tensors):
        value = tensors[name]
        tensors[name] = np.concatenate([value, value[..., :1]], axis=-1)

    folder = with_tensors(checkpoint(kind), longer)
    bare = name.removeprefix("model.").removeprefix("transformer.")
    refused(folder, folder, bare, "shape", implementation=implementation)


@BOTH
def test_a_transposed_tensor(checkpoint, implementation):
    def turned(tensors):
        tensors[DOWN] = np.ascontiguousarray(tensors[DOWN].T)

    folder = with_tensors(checkpoint("llama"), turned)
    refused(folder, folder, "layers.1.mlp.down_proj.weight", "shape", implementation=implementation)


@BOTH
def test_the_same_tensor_with_and_without_the_prefix(checkpoint, implementation):
    folder = with_tensors(
        checkpoint("llama"), lambda t: t.update({DOWN.removeprefix("model."): t[DOWN] + 1})
    )
    refused(folder, folder, "layers.1.mlp.down_proj.weight", implementation=implementation)


@BOTH
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
def test_weights_that_are_no_floats(checkpoint, implementation, dtype):
    folder = with_tensors(
        checkpoint("llama"), lambda tensors: tensors.update({DOWN: tensors[DOWN].astype(dtype)})
    )
    refused(folder, folder, "layers.1.mlp.down_proj.weight", implementation=implementation)
    refused(folder, np.dtype(dtype).name, implementation=implementation)


def test_an_untied_config_without_an_unembedding(checkpoint):
    folder = checkpoint("gpt2", tie_word_embeddings=False)
    refused(folder, folder, "lm_head.weight", "missing")
