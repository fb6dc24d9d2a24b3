"""GGUF files: the parameters of each architecture, types of values, damage."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import peft
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from jaxscore import Scorer
from jaxscore.device.dots import (
    FIELDS,
    NESTED,
    Blocks,
    abstract_blocks,
    common_form,
    from_storage,
    is_blocks,
)
from jaxscore.engine.generation import Generator
from jaxscore.errors import InputError
from jaxscore.io.gguf_file import read_gguf
from jaxscore.models import native
from jaxscore.models.load import load
from jaxscore.models.weights import filling, fingerprint, folder, gguf, gguf_blocks
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.gguf import architectures
from jaxscore.types.requests import GenerationRequest
from tests.models import gguf_files
from tests.models.checkpoints import distance, ragged, random_model, scorer, scores_on_devices
from tests.models.published import RELEASED

# Types that the package gguf can write
QUANTIZED = {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"}
# What float32 loses of a norm between 1 and 2, to which one is added and subtracted, and of a
# logarithm below 2, which is stored as its exponential
ROUNDING = {
    gguf_files.plus_one: 1.2e-7,
    gguf_files.delta_tensors: 2.4e-7,
    gguf_files.tiled_delta_tensors: 2.4e-7,
    gguf_files.mamba_tensors: 2.4e-7,
    gguf_files.falcon_h1_tensors: 2.4e-7,
    gguf_files.scan_tensors: 2.4e-7,
}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEEP = {"mscale": 0.707, "mscale_all_dim": 0.707}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
LLAMA4 = LLAMA3 | {"high_freq_factor": 1.0, "factor": 16.0}
MSCALED = LONGROPE | {
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 16,
}
SLIDING, FULL = "sliding_attention", "full_attention"
VARIANTS = [
    *((name, {}) for name in gguf_files.ARCHITECTURES),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 64, "rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    ("qwen2", {"rope_scaling": YARN}),
    ("phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 16}),
    ("apertus", {"head_dim": 64, "rope_scaling": LLAMA3}),
    ("command-r", {"use_qk_norm": False}),
    ("deepseek2", {"q_lora_rank": None, "rope_scaling": YARN | DEEP}),
    ("deepseek2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}),
    ("deepseek2, v3", {"n_group": 1, "topk_group": 1, "rope_scaling": YARN | DEEP}),
    ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False}),
    ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 4}),
    ("exaone4", {"head_dim": 64, "rope_scaling": LLAMA3 | {"factor": 16.0}}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("gemma4", {"enable_moe_block": True, "hidden_size_per_layer_input": 0}),
    ("gemma4", {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    ("gemma4", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("glm4moe", {"use_qk_norm": False, "attention_bias": True, "n_group": 2, "topk_group": 1}),
    ("gptneox", {"use_parallel_residual": False, "attention_bias": False}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("granitehybrid", {"position_embedding_type": "rope", "mamba_conv_bias": False}),
    ("hunyuan-moe", {"attention_bias": True, "tie_word_embeddings": True}),
    ("jamba", {"attn_layer_period": 1, "attn_layer_offset": 0, "num_experts": 1}),
    ("jamba", {"mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True}),
    ("mamba", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}),
    ("mamba2", {"use_bias": True, "use_conv_bias": False, "n_groups": 1}),
    ("nemotron_h_moe", {"moe_latent_size": 12, "mlp_bias": True, "n_group": 3, "topk_group": 1}),
    ("lfm2", {"conv_bias": True, "tie_word_embeddings": False}),
    ("llama4", {"head_dim": 64, "rope_scaling": LLAMA4}),
    ("mistral3", {"rope_scaling": {"rope_type": "default", "rope_theta": 1e6}}),
    ("nemotron", {"attention_bias": True, "mlp_bias": True}),
    ("olmo2, windows", {"rope_scaling": YARN}),
    ("phimoe", {"sliding_window": 7, "lm_head_bias": False}),
    ("qwen2moe", {"qkv_bias": False}),
    # Three heads of values for each of two heads of keys, a tiling that is not its own inverse
    ("qwen35", {"linear_num_value_heads": 6, "partial_rotary_factor": 0.5}),
    ("qwen35moe", {"linear_num_value_heads": 6}),
    ("qwen3next", {"linear_num_value_heads": 6}),
    ("seed_oss", {"attention_bias": False, "mlp_bias": False}),
    ("stablelm", {"qk_layernorm": False, "use_parallel_residual": True}),
    ("starcoder2", {"use_bias": False}),
]


def written(folder, name, types=None, metadata=None, **config):
    """A random checkpoint's folder, and the same as a GGUF file."""
    family = gguf_files.ARCHITECTURES[name]
    model = random_model(family.kind, **family.config | config)
    model.save_pretrained(folder)
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    path = folder / "model.gguf"
    gguf_files.write(path, name, model.config, tensors, types, metadata)
    return folder, path


@pytest.mark.parametrize(("name", "config"), VARIANTS, ids=lambda part: str(part)[:40])
def test_a_gguf_file_has_the_decoder_and_parameters_of_its_checkpoint(tmp_path, name, config):
    folder, path = written(tmp_path, name, **config)
    assert_same(folder, path, ROUNDING.get(gguf_files.ARCHITECTURES[name].change, 0))


def assert_same(folder, path, most=0.0):
    """Assert that a checkpoint and a file have the same decoder, and parameters up to `most`."""
    (expected, params), (found, own) = loaded(folder), loaded(path)
    assert found == expected
    different = jax.tree.map(
        lambda a, b: float(np.abs(np.float64(a) - np.float64(b)).max()), params, own
    )
    assert max(jax.tree.leaves(different)) <= most


def loaded(path):
    """The decoder's config, which with the parameters decides every score, and those."""
    _, config = native.translate(path, read_config(path))
    return config, load(path, dtype="float32").params


# Published configs, with what is needed of tiny ones
PUBLISHED = {
    "bloom": (RELEASED["BLOOM"], {}),
    "cohere2": (RELEASED["COMMAND_R7B"], {}),
    "command-r": (RELEASED["COMMAND_R"], {}),
    "deepseek2": (RELEASED["DEEPSEEK_V2"], {"n_group": 4, "topk_group": 2}),
    "ernie4_5-moe": (RELEASED["ERNIE_4_5_21B"], {}),
    "falcon": (RELEASED["FALCON_40B"], {}),
    "gemma2": (RELEASED["GEMMA_2_9B"], {"head_dim": 12, "query_pre_attn_scalar": 12}),
    "glm4moe": (RELEASED["GLM_4_5"], {}),
    "gpt-oss": (RELEASED["GPT_OSS_20B"], {}),
    "gpt2": (RELEASED["GPT2"], {}),
    "gptneox": (RELEASED["PYTHIA"], {}),
    "jamba": (RELEASED["JAMBA"], {}),
    "llama4": (
        RELEASED["SCOUT_TEXT"],
        {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "head_dim": 64},
    ),
    "mamba": (RELEASED["MAMBA_130M"], {}),
    "mamba, norms": (RELEASED["FALCON_MAMBA_7B"], {}),
    "minimax-m2": (RELEASED["MINIMAX_M2"], {}),
    "mistral3": (RELEASED["DEVSTRAL_SMALL_2"]["text_config"], {}),
    "nemotron": (RELEASED["MINITRON_4B"], {}),
    "olmo2, windows": (RELEASED["OLMO_3"], {}),
    "olmoe": (RELEASED["OLMOE"], {}),
    "qwen2moe": (RELEASED["QWEN1_5_MOE"], {}),
    "qwen3moe": (RELEASED["QWEN3_30B"], {}),
    "smollm3": (RELEASED["SMOLLM3"], {}),
    "stablelm": (RELEASED["STABLELM_2"], {}),
    "starcoder2": (RELEASED["STARCODER_2"], {}),
}
LENGTHS = "sliding_window attention_chunk_size floor_scale max_position_embeddings rope_theta"


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_files_leave_out_is_as_in_published_configs(tmp_path, name):
    raw, tiny = PUBLISHED[name]
    attributes = {
        key: value
        for key, value in raw.items()
        if (isinstance(value, bool | str | float | dict) or key in LENGTHS.split())
        and not key.startswith("_")
        and key not in ("model_type", "quantization_config", "torch_dtype", "dtype")
    }
    folder, path = written(tmp_path, name, **attributes | tiny)
    assert loaded(path)[0] == loaded(folder)[0]


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek2", "gpt-oss"])
def test_a_gguf_file_has_the_states_of_its_checkpoint(tmp_path, name):
    states = [hidden_states(load(path, dtype="float32")) for path in written(tmp_path, name)]
    np.testing.assert_allclose(*states, rtol=0, atol=1e-5 if name == "gemma2" else 0)


def hidden_states(model):
    """States of a random text of 16 tokens."""
    ids = np.random.default_rng(0).integers(0, model.vocab_size, (1, 16), np.int32)
    position = np.arange(16, dtype=np.int32)[None]
    args = (jnp.asarray(a) for a in (ids, position, np.full((1, 16), 16, np.int32)))
    found = model.functions.hidden_states(model.params, *args)
    return np.asarray(found, np.float32)


BLOCKS = {name: kind for kind in GGMLQuantizationType if (name := kind.name) in QUANTIZED}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_quantized_tensor_has_the_values_of_its_blocks(tmp_path, name):
    kind = BLOCKS[name]
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    stored = "blk.0.ffn_down.weight"
    folder, path = written(tmp_path, "llama", {stored: kind}, **sizes)
    theirs = "model.layers.0.mlp.down_proj.weight"
    plain = load_file(folder / "model.safetensors")[theirs]
    scheme = gguf.GgufScheme(path)
    tensors = scheme.open_tensors(path)
    np.testing.assert_array_equal(
        tensors.arrays[theirs], quants.dequantize(quants.quantize(plain, kind), kind)
    )
    assert scheme.describe().endswith(f"1 {name}")


DAMAGES = {
    "cut within the metadata": (lambda data: data[:700], "ends within its metadata"),
    "cut within a tensor": (lambda data: data[:-100], "the file is cut off"),
    "another version": (lambda data: data[:4] + b"\x00\x00\x00\x03" + data[8:], "big endian"),
    "too many tensors": (lambda data: data[:8] + b"\xff" * 8 + data[16:], "tensors, for which"),
    "too many keys": (lambda data: data[:16] + b"\xff" * 8 + data[24:], "keys, for which"),
    "an endless string": (lambda data: data[:24] + b"\xff" * 8 + data[32:], "ends within"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_one_message(tmp_path, kind):
    damage, message = DAMAGES[kind]
    _, path = written(tmp_path, "llama")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message) as refusal:
        load(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.attention.foo": 2}, "keys that are not handled.*attention.foo=2"),
        ({"llama.rope.scaling.type": "su"}, "rope.scaling.type 'su' is not supported"),
        ({"general.type": "adapter"}, "general.type is 'adapter'"),
        ({"llama.attention.value_length": 3}, "values of 3 channels"),
        ({"llama.rope.dimension_count": 2}, "rope.dimension_count is 2"),
        ({"llama.vocab_size": 3}, "the key vocab_size is 3"),
        ({"llama.attention.head_count": 0}, "attention.head_count is 0, expected 1 to"),
        ({"llama.block_count": 2**31}, "block_count is 2147483648, expected 1 to"),
        ({"llama.block_count": 3}, "block_count is 3, but the tensors of layer 3 are missing"),
        ({"tokenizer.ggml.bos_token_id": "x"}, "bos_token_id is 'x', expected the id"),
        ({"tokenizer.ggml.tokens": 5}, "tokens is 5, expected a list"),
        ({"llama.rope.scaling.type": [1, 2]}, "is an array of 2, expected a value of type str"),
    ],
)
def test_metadata_that_is_not_handled_is_refused(tmp_path, metadata, message):
    _, path = written(tmp_path, "llama", metadata=metadata)
    with pytest.raises(InputError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("name", "metadata", "config", "message"),
    [
        ("granite", {"rope.scaling.finetuned": False}, {}, "models without rotary positions"),
        ("llama4", {"attention.sliding_window": 0}, {}, "llama4 without chunked attention"),
        ("qwen2vl", {"rope.dimension_sections": [1, 1, 1, 0]}, {}, "expected a sum of"),
        (
            "glm4moe",
            {"expert_gating_func": 1},
            {},
            "gating_func is 1, expected 2",
        ),
        ("deepseek2", {"expert_weights_norm": True}, {}, "norm_topk_prob is True"),
        ("gemma4", {"rope.dimension_count": 4}, {}, "rope.dimension_count is 4, expected 16"),
        ("glm4moe", {"nextn_predict_layers": 3}, {}, "nextn_predict_layers is 3 of 3 layers"),
        ("stablelm", {"context_length": 16_384}, {}, "key stablelm.rope.freq_base is missing"),
        ("nemotron", {}, {"head_dim": 12}, "heads have 12 channels, expected 32 / 4"),
        ("phimoe", {}, {"rope_scaling": MSCALED}, "short_mscale and long_mscale"),
        ("hunyuan-moe", {"expert_shared_count": 2}, {}, r"num_shared_expert is \[2, 2\]"),
        (
            "hunyuan-moe",
            {"expert_feed_forward_length": 9},
            {},
            r"moe_intermediate_size is \[9, 9\]",
        ),
        ("lfm2", {"attention.head_count_kv": [0, 2, 4]}, {}, r"has \[2, 4\], expected one number"),
        ("lfm2moe", {"expert_gating_func": 1}, {}, "gating_func is 1, expected 2"),
        ("qwen35", {"ssm.group_count": 3}, {}, "time_step_rank 4 is not a multiple of"),
        ("qwen35", {"rope.dimension_sections": [1, 1, 1, 0]}, {}, "expected a sum of"),
        ("deepseek2", {}, {"n_group": None}, "key deepseek2.expert_group_count is missing"),
        (
            "falcon",
            {},
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            "key falcon.rope.freq_base is missing",
        ),
    ],
)
def test_what_a_file_cannot_say_is_refused_by_name(tmp_path, name, metadata, config, message):
    architecture = name.partition(",")[0]
    keys = {f"{architecture}.{key}": value for key, value in metadata.items()}
    _, path = written(tmp_path, name, metadata=keys, **config)
    with pytest.raises(InputError, match=message):
        load(path)


def test_a_pattern_of_zero_is_windows_in_all_layers(tmp_path):
    folder, _ = written(tmp_path, "gemma3", layer_types=[SLIDING] * 3, num_hidden_layers=3)
    pattern = {"gemma3.attention.sliding_window_pattern": 0}
    _, path = written(tmp_path / "file", "gemma3", metadata=pattern, num_hidden_layers=3)
    assert loaded(path)[0] == loaded(folder)[0]


def test_the_factor_of_yarn_may_be_there_and_no_other(tmp_path):
    folder, _ = written(tmp_path, "qwen2", rope_scaling=YARN)
    key = "qwen2.rope.scaling.yarn_attn_factor"
    usual = 1 + 0.1 * math.log(YARN["factor"])
    for name, known in (("own", usual), ("inverse", 1 / usual)):
        path = written(tmp_path / name, "qwen2", metadata={key: known}, rope_scaling=YARN)[1]
        assert_same(folder, path)
    _, path = written(tmp_path / "b", "qwen2", metadata={key: 1.0}, rope_scaling=YARN)
    with pytest.raises(InputError, match=r"yarn_attn_factor is 1, expected 1\.138629"):
        load(path)


def test_a_factor_of_rotary_scaling_without_a_type_is_linear(tmp_path):
    linear = {"rope_type": "linear", "factor": 3.0}
    folder, _ = written(tmp_path, "llama", rope_scaling=linear)
    _, path = written(tmp_path / "file", "llama", metadata={"llama.rope.scaling.factor": 3.0})
    assert_same(folder, path)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("glm4moe", "expert_weights_scale"),
        ("granite", "residual_scale"),
        ("granite", "embedding_scale"),
        ("granite", "logit_scale"),
    ],
)
def test_a_factor_of_zero_is_none(tmp_path, name, key):
    """llama.cpp skips such a factor, and writes 0 for one that a model does not have."""
    of_one, of_zero = (
        loaded(written(tmp_path / str(value), name, metadata={f"{name}.{key}": value})[1])[0]
        for value in (1.0, 0.0)
    )
    assert of_one == of_zero


def test_old_mixtrals_have_a_tensor_for_each_expert(tmp_path, monkeypatch):
    folder, _ = written(tmp_path, "llama, experts")
    whole = gguf_files.converted

    def unstacked(*args):
        found = {}
        for name, values in whole(*args).items():
            if "_exps" not in name:
                found[name] = values
                continue
            for expert, matrix in enumerate(values):
                found[name.replace("_exps", f".{expert}")] = matrix
        return found

    monkeypatch.setattr(gguf_files, "converted", unstacked)
    _, path = written(tmp_path / "old", "llama, experts")
    assert "blk.0.ffn_gate.0.weight" in read_gguf(path).tensors
    assert_same(folder, path)


@pytest.mark.parametrize("name", ["llama", "phi2"])
def test_queries_keys_and_values_may_be_one_tensor(tmp_path, monkeypatch, name):
    folder, _ = written(tmp_path, name)
    whole = gguf_files.converted

    def fused(*args):
        found, parts = {}, {}
        for own, values in whole(*args).items():
            block, _, part = own.rpartition("attn_")
            if part.partition(".")[0] in ("q", "k", "v"):
                key = f"{block}attn_qkv.{part.partition('.')[2]}"
                parts.setdefault(key, {})[part[0]] = values
            else:
                found[own] = values
        return found | {key: np.concatenate([of[p] for p in "qkv"]) for key, of in parts.items()}

    monkeypatch.setattr(gguf_files, "converted", fused)
    _, path = written(tmp_path / "fused", name)
    assert "blk.0.attn_qkv.weight" in read_gguf(path).tensors
    assert_same(folder, path)


def test_old_files_of_qwen3next_have_its_whole_projection(tmp_path, monkeypatch):
    def whole(config, name, values):
        if name.endswith("in_proj_qkvz.weight"):
            return {"ssm_in.weight": values}
        return gguf_files.delta_tensors(config, name, values)

    old = gguf_files.ARCHITECTURES["qwen3next"]._replace(change=whole)
    monkeypatch.setitem(gguf_files.ARCHITECTURES, "qwen3next", old)
    assert_same(*written(tmp_path, "qwen3next"), ROUNDING[gguf_files.delta_tensors])


def test_gates_and_ups_of_gemma4_may_be_two_tensors(tmp_path, monkeypatch):
    config = {"enable_moe_block": True, "hidden_size_per_layer_input": 0}
    folder, _ = written(tmp_path, "gemma4", **config)
    whole = gguf_files.converted

    def split(*args):
        found = {}
        for name, values in whole(*args).items():
            if "gate_up" in name:
                gate, up = np.split(values, 2, axis=1)
                found[name.replace("gate_up", "gate")], found[name.replace("gate_up", "up")] = (
                    gate,
                    up,
                )
            else:
                found[name] = values
        return found

    monkeypatch.setattr(gguf_files, "converted", split)
    _, path = written(tmp_path / "split", "gemma4", **config)
    assert "blk.0.ffn_gate_exps.weight" in read_gguf(path).tensors
    assert_same(folder, path)


def test_the_width_of_experts_may_be_that_of_their_tensors(tmp_path, monkeypatch):
    family = gguf_files.ARCHITECTURES["qwen3moe"]._replace(keys=lambda config: {})
    monkeypatch.setitem(gguf_files.ARCHITECTURES, "qwen3moe", family)
    folder, path = written(tmp_path, "qwen3moe")
    assert_same(folder, path)


def test_parts_of_other_shapes_are_one_message(tmp_path, monkeypatch):
    whole = gguf_files.converted

    def cut(*args):
        found = whole(*args)
        return found | {"blk.0.attn_v_b.weight": found["blk.0.attn_v_b.weight"][..., 1:]}

    monkeypatch.setattr(gguf_files, "converted", cut)
    _, path = written(tmp_path, "deepseek2")
    with pytest.raises(InputError, match=r"tensor shapes do not match: blk.0.attn_k_b.weight \["):
        load(path)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, monkeypatch):
    folder, _ = written(tmp_path, "glm4moe")
    more = {
        "blk.3.attn_norm.weight": np.zeros(4, np.float32),
        "blk.3.nextn.eh_proj.weight": np.zeros((4, 8), np.float32),
    }
    monkeypatch.setattr(gguf_files, "rope_tensors", lambda config: more)
    keys = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    _, path = written(tmp_path / "further", "glm4moe", metadata=keys)
    assert_same(folder, path)


@pytest.mark.parametrize("name", ["hunyuan-dense", "hunyuan-moe"])
def test_the_scaled_base_of_hunyuan_is_that_of_its_alpha(tmp_path, name):
    alpha = {"type": "dynamic", "factor": 1.0, "alpha": 50.0}
    width = 12
    folder, _ = written(tmp_path, name, rope_scaling=alpha)
    keys = {
        "rope.freq_base": 10_000.0 * 50.0 ** (width / (width - 2)),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": 262_144,
    }
    keys = {f"{name}.{key}": value for key, value in keys.items()}
    _, path = written(tmp_path / "scaled", name, metadata=keys)
    tables = [loaded(source)[0].positions.rotary[0].frequencies for source in (folder, path)]
    np.testing.assert_allclose(*tables, rtol=2e-7)


@pytest.mark.parametrize("name", ["hunyuan-moe", "jamba", "mamba", "mamba, norms"])
def test_a_file_has_the_scores_of_its_checkpoint(tmp_path, name):
    of_folder, of_file = (
        scorer(load(source, dtype="float32")).score_sequences(ragged())
        for source in written(tmp_path, name)
    )
    assert distance(of_folder, of_file) < 1e-5


def test_a_jamba_whose_attention_has_no_period_is_refused(tmp_path, monkeypatch):
    more = {"blk.0.attn_q.weight": np.zeros((4, 4), np.float32)}
    monkeypatch.setattr(gguf_files, "rope_tensors", lambda config: more)
    _, path = written(tmp_path, "jamba")
    with pytest.raises(
        InputError, match=r"layers \[0, 1\] have attn_q.weight, expected a constant"
    ):
        load(path)


def test_multipliers_of_falcon_h1_are_in_its_weights(tmp_path):
    multipliers = {
        "attention_in_multiplier": 0.7,
        "attention_out_multiplier": 0.6,
        "embedding_multiplier": 3.0,
        "key_multiplier": 0.4,
        "lm_head_multiplier": 0.5,
        "mlp_multipliers": [0.8, 0.3],
        "ssm_in_multiplier": 0.9,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 1.2],
        "ssm_out_multiplier": 0.4,
    }
    folder, path = written(tmp_path, "falcon-h1", **multipliers)
    of_folder, of_file = (
        scorer(load(source, dtype="float32")).score_sequences(ragged()) for source in (folder, path)
    )
    assert distance(of_folder, of_file) < 2e-5
    _, tied = written(tmp_path / "tied", "falcon-h1", tie_word_embeddings=True)
    with pytest.raises(InputError, match=r"tensor output.weight is missing"):
        load(tied)


def test_every_architecture_of_llama_cpp_is_read_or_refused_with_a_reason():
    read, refused = set(architectures.ARCHITECTURES), architectures.REFUSED
    assert not read & set(refused)
    assert set(MODEL_ARCH_NAMES.values()) <= read | set(refused)
    assert all(refused.values())
    assert {name.partition(",")[0] for name in gguf_files.ARCHITECTURES} == read


def test_a_dense_file_that_counts_no_experts_is_read(tmp_path):
    none = {"llama.expert_count": 0, "llama.expert_used_count": 0}
    _, path = written(tmp_path, "llama", metadata=none)
    assert load(path).model_type == "llama"


@pytest.mark.parametrize(
    "end",
    [
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ],
)
def test_a_text_ends_at_other_ends_than_the_eos_too(tmp_path, end):
    tokens = {"tokenizer.ggml.tokens": ["a", end], "tokenizer.ggml.token_type": [1, 3]}
    _, path = written(tmp_path, "llama", metadata=tokens | {"tokenizer.ggml.eos_token_id": 0})
    assert load(path).checkpoint.eos_ids == (0, 1)


@pytest.mark.parametrize(
    ("others", "ends"),
    [
        (["<|call|>", "<|return|>"], (0, 2, 3)),
        (["<|calls|>", "<|flush|>"], (0, 2, 3)),
        (["<|calls|>"], (0, 1, 2)),
        ([], (0, 1)),
    ],
)
def test_the_end_of_a_message_ends_no_answer_that_calls(others, ends, tmp_path):
    names = ["a", "<|end|>", *others]
    tokens = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [1, *[3] * (len(names) - 1)],
    }
    _, path = written(tmp_path, "llama", metadata=tokens | {"tokenizer.ggml.eos_token_id": 0})
    assert load(path).checkpoint.eos_ids == ends


@pytest.mark.parametrize(("base", "is_lost"), [(10_000.0, True), (1e6, False)])
def test_a_file_of_mistrals_sizes_says_that_its_window_is_lost(tmp_path, base, is_lost):
    sizes = {f"llama.{key}": value for key, value in gguf.MISTRAL.items()}
    _, path = written(tmp_path, "llama", metadata=sizes | {"llama.rope.freq_base": base})
    assert gguf.GgufScheme(path).describe().endswith(gguf.LOST_WINDOW) is is_lost
    assert "window" not in gguf.GgufScheme(written(tmp_path / "small", "qwen2")[1]).describe()


def test_factors_of_no_known_rotary_scaling_are_refused(tmp_path, monkeypatch):
    odd = {"rope_freqs.weight": np.linspace(1, 3, 4, dtype=np.float32)}
    monkeypatch.setattr(gguf_files, "rope_tensors", lambda config: odd)
    _, path = written(tmp_path, "llama")
    with pytest.raises(InputError, match="other than those of Llama 3"):
        load(path)


def test_a_tensor_that_is_not_known_is_refused(tmp_path, monkeypatch):
    more = {"blk.0.attn_odd.weight": np.zeros((4, 4), np.float32)}
    monkeypatch.setattr(gguf_files, "rope_tensors", lambda config: more)
    _, path = written(tmp_path, "llama")
    with pytest.raises(InputError, match=r"blk.0.attn_odd.weight is not known"):
        load(path)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("rwkv7", "recurrent state"),
        ("bert", "masked"),
        ("xyz", "not known"),
    ],
)
def test_an_architecture_that_is_not_read_is_refused_with_its_reason(
    tmp_path, architecture, reason
):
    writer = GGUFWriter(tmp_path / "a.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match=f"{architecture}.*{reason}.*supported are .*llama"):
        load(tmp_path / "a.gguf")


def test_a_folder_of_gguf_files_lists_them(tmp_path):
    _, path = written(tmp_path / "both", "llama")
    (tmp_path / "files").mkdir()
    path.rename(tmp_path / "files" / "b.gguf")
    with pytest.raises(InputError, match=r"give one of them as the model: b\.gguf"):
        load(tmp_path / "files")


def test_a_file_is_recognised_without_an_ending_and_has_a_fingerprint(tmp_path):
    _, path = written(tmp_path, "llama")
    blob = path.rename(tmp_path / "sha256-0a1b")
    assert load(blob).model_type == "llama"
    first = fingerprint.fingerprint(blob)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert fingerprint.fingerprint(blob) != first


def test_files_of_a_split_are_read_as_one(tmp_path):
    _, path = written(tmp_path, "llama")
    whole = read_gguf(path)
    parts = [tmp_path / f"part-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for number, part in enumerate(parts):
        writer = GGUFWriter(part, "llama")
        for key, value in whole.metadata.items() if number == 0 else ():
            if key != "general.architecture":
                add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                add(key, value)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(whole.tensors))
        for name, tensor in list(whole.tensors.items())[number::2]:
            writer.add_tensor(name, tensor.data.view(np.float32).reshape(tensor.shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    same = jax.tree.map(np.array_equal, load(path).params, load(parts[0]).params)
    assert all(jax.tree.leaves(same))
    with pytest.raises(InputError, match=r"give the first file, part-00001-of-00002\.gguf"):
        load(parts[1])
    parts[1].unlink()
    with pytest.raises(InputError, match="all 2 files of a split must be there"):
        load(parts[0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name:m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("org/name:Q8_0", "m-Q8_0.gguf"),
        ("org/name:big", "big-00001-of-00002.gguf"),
        ("org/name:m-Q", None),
        ("org/name:F16", None),
    ],
)
def test_a_file_of_a_hub_repository_is_named_after_a_colon(tmp_path, monkeypatch, name, expected):
    files = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]
    for file in files:
        (tmp_path / file).write_bytes(b"GGUF")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    if expected is not None:
        assert folder.resolve(name, None) == tmp_path / expected
        return
    with pytest.raises(InputError, match="expected the name of one GGUF file"):
        folder.resolve(name, None)


WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
STORED = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()


def written_in(tmp_path, name, kinds):
    """A file whose matrices of layers have these types in turn, layer by layer."""
    stored = {
        f"blk.{layer}.{part}.weight": kinds[layer % len(kinds)]
        for layer in range(2)
        for part in STORED
    }
    return written(tmp_path, name, stored, **WIDE)[1]


@pytest.mark.parametrize(
    "kinds",
    [("Q4_0",), ("Q4_1",), ("Q5_0",), ("Q5_1",), ("Q8_0",), ("Q4_0", "Q4_1"), ("Q8_0", "Q5_1")],
)
def test_weights_that_stay_in_blocks_are_those_of_the_file(tmp_path, kinds):
    path = written_in(tmp_path, "llama", [GGMLQuantizationType[kind] for kind in kinds])
    plain = load(path, dtype="float32")
    small = load(path, dtype="float32", quantize="stored")
    assert_same_weights(plain, small)
    assert small.quantized == "stored"
    assert small.checkpoint.stored_share > 0.5
    with pytest.raises(InputError, match="in the blocks of their file; load it without"):
        small.replace_params({"model.norm.weight": np.ones(3, np.float32)})
    np.testing.assert_allclose(hidden_states(plain), hidden_states(small), rtol=0, atol=1e-5)
    narrow = [load(path, dtype="bfloat16", quantize=how) for how in (None, "stored")]
    assert_same_weights(*narrow)


def assert_same_weights(one, other):
    same = jax.tree.map(np.array_equal, from_storage(one.params), from_storage(other.params))
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize(
    "types",
    [(name,) for name in gguf_blocks.LAYOUTS]
    + [
        ("Q4_K", "Q6_K"),
        ("Q3_K", "Q4_K"),
        ("Q2_K", "Q3_K"),
        ("Q5_K", "Q3_K"),
        ("Q4_0", "Q4_1"),
        ("IQ4_NL", "Q5_1"),
        ("IQ4_XS", "Q6_K"),
    ],
)
def test_random_blocks_have_the_weights_that_they_stand_for(types):
    form = common_form([gguf_blocks.form_of(name, 512) for name in types])
    for name in types:
        layout = gguf_blocks.LAYOUTS[name]
        n_blocks = 512 // (32 if layout.outer is None else 256)
        draw = np.random.default_rng(0)
        rows = draw.integers(0, 256, (24, n_blocks, layout.n_bytes), np.uint8)
        for start in places_of_floats(name):
            scales = draw.normal(0, 0.01, (24, n_blocks)).astype(np.float16)
            rows[..., start : start + 2] = scales[..., None].view(np.uint8)
        rows = rows.reshape(24, -1)
        arrays = {
            field: jnp.asarray(read(rows, name, form))
            if getattr(abstract_blocks(form, (24, 512), np.dtype(np.float32)), field) is not None
            else None
            for field, read in gguf_blocks.READ_FIELD.items()
            if field.startswith("outer") <= (form.scale == NESTED)
        }
        arrays = dict.fromkeys(FIELDS) | arrays
        found = jax.jit(Blocks.dequantized)(
            Blocks(**arrays, quant_type=form.quant_type, dtype=np.dtype(np.float32))
        )
        wanted = quants.dequantize(rows, GGMLQuantizationType[name])
        np.testing.assert_array_equal(np.asarray(found), wanted)
        decoded = gguf_blocks.block_weights(rows, name)
        np.testing.assert_array_equal(decoded.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("kind", ["Q4_0", "MXFP4"])
def test_a_few_rows_at_a_time_give_the_weights_of_the_whole(tmp_path, monkeypatch, kind):
    path = written_in(tmp_path, "llama", [GGMLQuantizationType[kind]])
    whole = load(path, dtype="float32"), load(path, dtype="float32", quantize="int8")
    arrays = gguf.GgufScheme(path).open_tensors(path).arrays
    down = np.asarray(whole[0].params["layers"]["mlp"]["down"]["weight"])
    for layer, matrix in enumerate(down):
        expected = arrays[f"model.layers.{layer}.mlp.down_proj.weight"]
        np.testing.assert_array_equal(matrix, expected)
    monkeypatch.setattr(filling, "STORED", 3000)
    pieces = load(path, dtype="float32"), load(path, dtype="float32", quantize="int8")
    for one, other in zip(whole, pieces, strict=True):
        assert_same_weights(one, other)


def test_only_types_without_an_own_decoder_need_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    part = "blk.0.ffn_down.weight"
    for kind in ("Q4_0", "MXFP4"):
        _, path = written(tmp_path / kind, "llama", {part: GGMLQuantizationType[kind]}, **WIDE)
        if kind == "Q4_0":
            assert load(path).model_type == "llama"
            continue
        with pytest.raises(InputError, match=f"tensor {part} is stored as MXFP4, which needs the"):
            load(path)


def places_of_floats(name):
    """Where blocks have their float16."""
    return {
        "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2),
        "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,),
    }.get(name, (0,))  # fmt: skip


def test_a_type_that_cannot_be_kept_is_refused(tmp_path):
    _, path = written(tmp_path, "llama")
    with pytest.raises(InputError, match="none of them can stay in blocks"):
        load(path, quantize="stored")


EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
DELTA_PARTS = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_out")
LINEAR = "linear_attention"
DELTA = {"layer_types": [LINEAR, LINEAR], "linear_value_head_dim": 16, "linear_key_head_dim": 16}
CONVOLUTIONS = {"layer_types": ["conv", "conv"]}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("name", "parts", "config", "kept"),
    [
        ("llama, experts", EXPERTS, {"intermediate_size": 64}, {"experts"}),
        ("qwen2moe", EXPERTS, {"moe_intermediate_size": 64}, {"experts"}),
        ("phi3", ("attn_qkv", "ffn_up", "ffn_down"), {"intermediate_size": 64}, {"layers"}),
        ("qwen35", DELTA_PARTS, DELTA, {"recurrent"}),
        ("qwen3next", ("attn_qkv", "attn_gate", "ssm_out"), DELTA, {"recurrent"}),
        ("lfm2", ("shortconv.in_proj", "shortconv.out_proj"), CONVOLUTIONS, {"recurrent"}),
    ],
)
def test_experts_and_parts_of_joined_matrices_stay_in_blocks(tmp_path, name, parts, config, kept):
    kind = GGMLQuantizationType.Q4_0
    types = {f"blk.{layer}.{part}.weight": kind for layer in range(2) for part in parts}
    _, path = written(tmp_path, name, types, hidden_size=64, num_hidden_layers=2, **config)
    plain, small = (load(path, dtype="float32", quantize=how) for how in (None, "stored"))
    assert_same_weights(plain, small)
    found = jax.tree_util.tree_leaves_with_path(small.params, is_leaf=is_blocks)
    assert {place[0].key for place, leaf in found if is_blocks(leaf)} == kept
    want = scorer(plain).score_sequences(ragged())
    assert distance(scorer(small).score_sequences(ragged()), want) < 1e-5


def test_a_scale_whose_shift_float16_does_not_hold_is_refused():
    form = common_form([gguf_blocks.form_of(name, 32) for name in ("Q4_0", "Q4_1")])
    rows = np.zeros((1, 18), np.uint8)
    rows[0, :2] = np.array([8192], np.float16).view(np.uint8)
    with pytest.raises(InputError, match=r"a block has the scale 8192\.0, expected at most 8,188"):
        gguf_blocks.block_minima(rows, "Q4_0", form)


@pytest.mark.slow
def test_weights_in_blocks_are_split_over_two_devices(tmp_path):
    """Compared with plain weights split likewise: one device adds in another order."""
    path = written_in(tmp_path, "llama", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1])
    found = [scores_on_devices(path, "model=2", *quantize) for quantize in ([], ["stored"])]
    assert distance(*found) < 1e-5


@pytest.mark.slow
def test_weights_in_blocks_generate_the_tokens_of_plain_ones(tmp_path, scorers):
    sizes = WIDE | {"vocab_size": 1208, "max_position_embeddings": 1024}
    types = {f"blk.{i}.{part}.weight": GGMLQuantizationType.Q4_1 for i in (0, 1) for part in STORED}
    _, path = written(tmp_path, "llama", types, **sizes)
    encoder = scorers("tiny-llama3").encoder
    shared = "Arlen moved from Dunmere to Merrow in 1856. " * 8
    prompts = [shared + "So", shared + "Then", "The cat"]
    found = []
    for how in (None, "stored"):
        writer = Generator(Scorer(load(path, dtype="float32", quantize=how), encoder))
        results = writer.generate(
            [GenerationRequest(k, text, 16) for k, text in enumerate(prompts)]
        )
        found.append([result.token_ids.tolist() for result in results])
    assert found[0] == found[1]


def test_an_adapted_matrix_does_not_stay_in_blocks(tmp_path):
    path = written_in(tmp_path, "llama", [GGMLQuantizationType.Q4_0])
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )
    base = AutoModelForCausalLM.from_pretrained(tmp_path)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    plain, small = (
        load(path, dtype="float32", quantize=how, adapter=tmp_path / "adapter")
        for how in (None, "stored")
    )
    assert_same_weights(plain, small)
    assert not is_blocks(small.params["layers"]["attention"]["q"]["weight"])
    assert is_blocks(small.params["layers"]["attention"]["k"]["weight"])
