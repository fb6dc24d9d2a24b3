"""Quantized checkpoints as models: torch's scores on the numbers that they stand for."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxscore.device.dots import from_storage
from jaxscore.device.sharding import check_divisible
from jaxscore.engine import provenance
from jaxscore.errors import InputError
from jaxscore.models import native
from jaxscore.models.load import load
from jaxscore.models.weights import converted, fingerprint, quantization
from jaxscore.models.weights.checkpoint import Checkpoint, read_config
from jaxscore.models.weights.quantization import fp8
from tests.models.checkpoints import (
    assert_agree,
    distance,
    loaded,
    ragged,
    saved,
    scorer,
    scores_on_devices,
    torch_scores,
)
from tests.models.weights.quantization.checkpoints import GPTQ, METHODS, SIZES, saved_as
from tests.models.weights.test_lora import adapt, with_adapter
from tests.releases import flax_classes, native_and_transformers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(kind, method)`: a folder, and torch's model on the same numbers."""
    known = {}

    def make(kind="llama", method="gptq"):
        if (kind, method) not in known:
            folder = tmp_path_factory.mktemp("quantized")
            known[kind, method] = folder, saved_as(folder, kind, method)
        return known[kind, method]

    return make


def plain(folder, model):
    """The same numbers stored plain."""
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "method"),
    [*(("llama", method) for method in METHODS), ("qwen2", "gptq"), ("qwen2", "awq"),
     ("mixtral", "fp8"), ("mixtral", "packed")],
)  # fmt: skip
def test_scores_are_torchs_on_the_numbers_that_are_stored(made, kind, method):
    folder, model = made(kind, method)
    got = scorer(loaded(folder)).score_sequences(ragged())
    assert_agree(got, torch_scores(model, ragged()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_parameters_are_those_of_the_same_numbers_stored_plain(made, tmp_path, method, dtype):
    """So they are rounded to bfloat16 once."""
    folder, model = made("llama", method)
    got = loaded(folder, dtype=dtype).params
    want = loaded(plain(tmp_path, model), dtype=dtype).params
    same = jax.tree.map(np.array_equal, got, want)
    assert all(jax.tree.leaves(same))


@flax_classes
@pytest.mark.parametrize("method", ["gptq", "fp8"])
def test_transformers_classes_take_them_too(made, tmp_path, method):
    folder, model = made("llama", method)
    got = loaded(folder, implementation="transformers")
    want = loaded(plain(tmp_path, model), implementation="transformers")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, got.params, want.params)))
    assert got.checkpoint.stored_as


def test_an_adapter_is_merged_into_the_numbers(made, tmp_path):
    folder, model = made("llama", "awq")
    base = plain(tmp_path / "plain", model)
    adapt(saved(tmp_path / "other", "llama", **SIZES), tmp_path / "adapter",
          target_modules=["q_proj", "down_proj"], r=4)  # fmt: skip
    got = with_adapter(folder, tmp_path / "adapter").params
    want = with_adapter(base, tmp_path / "adapter").params
    before = loaded(folder).params
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, got, want)))
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, got, before)))


def test_int8_weights_are_made_of_the_numbers(made, tmp_path):
    folder, model = made("llama", "packed")
    got = load(folder, dtype="float32", implementation="native", quantize="int8").params
    base = plain(tmp_path, model)
    want = load(base, dtype="float32", implementation="native", quantize="int8").params
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, got, want)))


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_stay_as_stored(made, method):
    """Where the groups of a row's weights are neighbours."""
    folder, _ = made("llama", method)
    if method == "gptq in order of activations":
        with pytest.raises(InputError, match="none of them can stay in blocks"):
            load(folder, quantize="stored")
        return
    for dtype in ("float32", "bfloat16"):
        want = loaded(folder, dtype=dtype).params
        kept = load(folder, dtype=dtype, quantize="stored")
        found = jax.tree.map(np.array_equal, from_storage(kept.params), from_storage(want))
        assert all(jax.tree.leaves(found))
    assert kept.checkpoint.stored_share > 0.5
    small, large = (
        sum(x.nbytes for x in jax.tree.leaves(p["layers"])) for p in (kept.params, want)
    )
    assert small < 0.8 * large


def test_meshes_split_rows_between_blocks_only(made):
    for method, model in (("fp8", 4), ("integers", 4), ("packed", 1)):
        folder, _ = made("llama", method)
        source = Checkpoint.open(folder)
        tensors = source.tensors
        family, config = native.translate(folder, source.config)
        config = native.with_storage(folder, family, config, tensors, "float32", "stored")
        check_divisible(config, model)
        if model == 1:  # 32 weights of 4 bits stay together, and a row of queries has as many
            rows = r"32 columns of layers/attention/out in blocks of 32; model can be 1$"
            with pytest.raises(ValueError, match=rows):
                check_divisible(config, 2)


@pytest.mark.slow
def test_a_mesh_splits_rows_with_one_scale(made):
    folder, model = made("llama", "integers")
    got = scores_on_devices(folder, "data=2,model=4", "stored")
    assert_agree(got, torch_scores(model, ragged()))


def test_a_converted_folder_is_plain(made, tmp_path):
    folder, _ = made("llama", "fp8")
    facts = converted.Facts("llama", "float32", "x", None, None, "0")
    original = loaded(folder)
    converted.save(tmp_path / "made", folder, original.params, facts, with_code=False)
    assert "quantization_config" not in read_config(tmp_path / "made")
    again = loaded(tmp_path / "made")
    assert again.checkpoint.stored_as is None
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, original.params, again.params)))


def test_people_are_told(made):
    model = loaded(made("llama", "floats")[0])
    assert model.checkpoint.stored_as == (
        "compressed-tensors, 8-bit floats, read as the numbers they stand for; activations are "
        "not rounded, although the config rounds them at inference"
    )
    assert provenance.of_model("demo", model, None)["stored_as"] == model.checkpoint.stored_as
    reported = loaded(made("llama", "gptq")[0]).checkpoint.stored_as
    assert reported == "gptq, 4-bit integers, read as the numbers they stand for"


@pytest.mark.parametrize("empty", [None, {}])
def test_a_plain_checkpoint_has_nothing_to_tell(checkpoint, empty):
    assert loaded(checkpoint("llama", quantization_config=empty)).checkpoint.stored_as is None


@pytest.mark.parametrize("method", ["gptq", "fp8", "packed"])
def test_auto_is_bfloat16_on_accelerators(made, monkeypatch, method):
    from jaxscore.models import load as loading

    folder, _ = made("llama", method)
    monkeypatch.setattr(loading, "current_platform", lambda: "tpu")
    assert load(folder).dtype == "bfloat16"
    monkeypatch.undo()
    assert load(folder).dtype == "float32"


def test_the_fingerprint_is_of_the_stored_bytes(made, tmp_path):
    folder, model = made("llama", "gptq")
    whole = fingerprint.fingerprint(folder)
    assert whole != fingerprint.fingerprint(plain(tmp_path / "plain", model))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((folder / name).read_bytes())
    assert fingerprint.fingerprint(copy) == whole
    tensors = load_file(copy / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.qweight"][0, 0] ^= 1
    save_file(tensors, copy / "model.safetensors")
    assert fingerprint.fingerprint(copy) != whole


def test_a_module_that_is_not_quantized_stays_plain(tmp_path):
    """A list of such modules is not asked: the names and types of tensors say it."""
    model = saved_as(tmp_path, "llama", "gptq", lambda name, _: name.endswith("up_proj.weight"))
    assert_agree(scorer(loaded(tmp_path)).score_sequences(ragged()), torch_scores(model, ragged()))


def test_the_unembedding_may_be_quantized(tmp_path):
    def of_layers_and_head(name, array):
        return array.ndim == 2 and "embed" not in name and array.shape[1] == 32

    model = saved_as(tmp_path / "quantized", "llama", "integers", of_layers_and_head)
    original = saved(tmp_path / "original", "llama", **SIZES)
    want = torch_scores(model, ragged())
    assert distance(want, torch_scores(original, ragged())) > 1e-3
    assert_agree(scorer(loaded(tmp_path / "quantized")).score_sequences(ragged()), want)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "hqq"}, "handled are awq, compressed-tensors, fp8, gptq, mxfp4; give"),
        ({"bits": 4}, "quant_method is None"),
        ({"quant_method": ["gptq"]}, "quant_method is ['gptq']"),
        ({"quant_method": "\x1b[31m"}, "quant_method is '\\x1b[31m'"),
        ("gptq", "quantization_config is 'gptq', expected an object"),
        (4, "quantization_config is 4, expected an object"),
        (GPTQ, "quantization_config says gptq, but no tensor is stored that way"),
    ],
)
@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_what_is_not_handled_is_refused(checkpoint, config, why, implementation):
    folder = checkpoint("llama", quantization_config=config)
    with pytest.raises(InputError) as problem:
        loaded(folder, implementation=implementation)
    assert why in str(problem.value)
    assert str(folder) in str(problem.value)


# As published models have them: their writers' settings that decide nothing among them.
PUBLISHED = (
    {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
     "weight_block_size": [128, 128]},
    {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"},
    {"backend": "autoawq", "bits": 4, "do_fuse": False, "exllama_config": None, "group_size": 128,
     "fuse_max_seq_len": None, "modules_to_fuse": None, "modules_to_not_convert": None,
     "quant_method": "awq", "version": "gemm", "zero_point": True},
    {"batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True,
     "damp_percent": 0.01, "dataset": None, "desc_act": False, "exllama_config": {"version": 1},
     "group_size": 128, "max_input_length": None, "model_seqlen": None, "pad_token_id": None,
     "module_name_preceding_first_block": None, "modules_in_block_to_quantize": None,
     "quant_method": "gptq", "sym": True, "tokenizer": None, "true_sequential": True,
     "use_cuda_fp16": False, "use_exllama": True},
    {"bits": 4, "checkpoint_format": "gptq", "desc_act": True, "group_size": 128, "lm_head": False,
     "meta": {"quantizer": ["gptqmodel:1.7.4"], "static_groups": False}, "pack_dtype": "int32",
     "dynamic": None, "quant_method": "gptq", "sym": True},
    {"config_groups": {"group_0": {"input_activations": None, "output_activations": None,
     "targets": ["Linear"], "weights": {"actorder": "weight", "block_structure": None,
     "dynamic": False, "group_size": 128, "num_bits": 4, "observer": "minmax",
     "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int"}}},
     "format": "pack-quantized", "global_compression_ratio": 1.89, "ignore": ["lm_head"],
     "kv_cache_scheme": None, "quant_method": "compressed-tensors", "sparsity_config": {},
     "quantization_status": "compressed", "transform_config": {}, "version": "0.12.2"},
    {"config_groups": {"group_0": {"input_activations": {"actorder": None, "dynamic": True,
     "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"},
     "output_activations": None, "targets": ["Linear"], "weights": {"actorder": None,
     "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
     "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True,
     "type": "float"}}}, "format": "float-quantized", "global_compression_ratio": 1.2,
     "ignore": ["lm_head", "re:.*router"], "kv_cache_scheme": None,
     "quant_method": "compressed-tensors", "quantization_status": "compressed"},
)  # fmt: skip


@pytest.mark.parametrize("settings", PUBLISHED, ids=lambda one: one["quant_method"])
def test_settings_of_published_models(tmp_path, settings):
    raw = {"model_type": "llama", "quantization_config": settings}
    assert quantization.plain_config(raw) == {"model_type": "llama"}
    assert (
        quantization.read_scheme(tmp_path, raw)
        .describe()
        .startswith(f"{settings['quant_method']}, ")
    )


def test_matrices_that_a_family_has_the_other_way_round(checkpoint):
    folder = checkpoint("gpt2", quantization_config=GPTQ)
    with pytest.raises(InputError, match="is not handled for model_type 'gpt2'"):
        loaded(folder)


def test_a_tensor_that_is_left_over_is_named(made, tmp_path):
    folder, _ = made("llama", "gptq")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.qweight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight is missing"):
        loaded(tmp_path)


@native_and_transformers
def test_biases_of_zeros_that_the_model_has_not(made, tmp_path, implementation):
    """As AutoGPTQ writes them. One that is not all zeros is left over."""
    folder, _ = made("llama", "gptq")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.bias"
    bias = np.zeros(SIZES["intermediate_size"], np.float16)
    save_file(tensors | {name: bias}, file)
    got = loaded(tmp_path, implementation=implementation).params
    want = loaded(folder, implementation=implementation).params
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, got, want)))
    for other in (name, "model.layers.1.input_layernorm.bias"):
        save_file(tensors | {other: bias + (other == name)}, file)
        with pytest.raises(InputError, match=other.removeprefix("model.")):
            loaded(tmp_path, implementation=implementation)


def test_biases_of_zeros_that_the_model_has(made, tmp_path):
    folder, _ = made("qwen2", "gptq")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.bias"
    save_file(tensors | {name: np.zeros_like(tensors[name])}, tmp_path / "model.safetensors")
    bias = loaded(tmp_path).params["layers"]["attention"]["q"]["bias"]
    assert np.abs(bias[0]).max() > 0
    assert np.abs(bias[1]).max() == 0


def test_shapes_are_checked_before_anything_is_computed(made, tmp_path, monkeypatch):
    folder, _ = made("llama", "fp8")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(raw | {"intermediate_size": 60}))
    monkeypatch.setattr(fp8, "widened", None)
    with pytest.raises(InputError, match=r"has shape \[32, 64\], expected \[32, 60\]"):
        loaded(tmp_path)


def test_one_tensor_at_a_time(made):
    """Outlines have no bytes, and nothing that was computed is kept."""
    folder, _ = made("llama", "gptq")
    source = Checkpoint.open(folder)
    tensors = source.tensors
    name = "model.layers.1.mlp.up_proj.weight"
    assert tensors.stored[name].strides == (0, 0)
    assert name in tensors.changed
    assert tensors.arrays[name] is not tensors.arrays[name]
    assert len(tensors.arrays) == len(list(tensors.arrays)) == len(tensors.stored)
    assert np.array_equal(tensors.piece(name, 3), tensors.arrays[name][3])
    norm = tensors.arrays["model.norm.weight"]
    assert norm is tensors.stored["model.norm.weight"]
    assert norm.dtype != ml_dtypes.bfloat16
