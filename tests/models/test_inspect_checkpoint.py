"""What is said of a checkpoint is what loading it does, and no weight's value is read."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxscore.errors import InputError
from jaxscore.models.families import FAMILIES
from jaxscore.models.inspect_checkpoint import inspect_checkpoint
from jaxscore.models.model_types import REFUSED as KINDS
from jaxscore.models.weights import params
from tests.conftest import CASES
from tests.models.checkpoints import loaded
from tests.models.families import REFUSED, UNUSABLE
from tests.releases import flax_classes

QWEN = CASES / "models/tiny-qwen2"


def with_config(folder, raw):
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("kind", "attributes", "named"), REFUSED + UNUSABLE, ids=str)
def test_what_loading_refuses(checkpoint, kind, attributes, named):
    folder = checkpoint(kind, **attributes)
    with pytest.raises(InputError) as refusal:
        loaded(folder)
    assert inspect_checkpoint(folder).refused == [str(refusal.value)]
    assert named in str(refusal.value)


def test_what_loads(checkpoint):
    for kind in ("gpt2", "gemma2", "qwen3_moe"):
        folder = checkpoint(kind)
        assert loaded(folder).model_type == kind
        found = inspect_checkpoint(folder)
        assert not found.refused
        assert (found.family, found.text, found.stored) == (kind, None, "plain")
        assert f"of {len(load_file(folder / 'model.safetensors'))} tensors fit" in found.weights
        assert {one.name for one in found.attributes} <= FAMILIES[kind].reads


def test_where_values_come_from(tmp_path):
    raw = {"model_type": "gemma2", "head_dim": 12, "num_hidden_layers": 2, "rope_theta": 300.0}
    found = inspect_checkpoint(with_config(tmp_path, raw))
    assert not found.refused
    assert found.weights == "the config alone is checked"
    seen = {one.name: (one.value, one.origin) for one in found.attributes}
    assert seen["head_dim"] == (12, "file")
    assert seen["hidden_size"] == (2304, "default")
    assert seen["layer_types"] == (["sliding_attention", "full_attention"], "derived")
    assert seen["rope_parameters"] == ({"rope_theta": 300.0, "rope_type": "default"}, "file")


def test_a_wrapper(tmp_path):
    text = {"hidden_size": 64, "head_dim": 16}
    found = inspect_checkpoint(with_config(tmp_path, {"model_type": "gemma3", "text_config": text}))
    assert not found.refused
    assert (found.family, found.text) == ("gemma3_text", "gemma3_text")
    seen = {one.name: (one.value, one.origin) for one in found.attributes}
    assert seen["head_dim"] == (16, "file")
    assert seen["tie_word_embeddings"] == (True, "default")


def test_all_that_is_wrong_is_told_in_the_order_of_loading(checkpoint):
    folder = checkpoint("llama", my_scale=2.0, quantization_config={"quant_method": "odd"})
    found = inspect_checkpoint(folder)
    assert ["quant_method is 'odd'" in one for one in found.refused] == [True, False]
    assert "my_scale=2.0" in found.refused[1]
    with pytest.raises(InputError) as refusal:
        loaded(folder)
    assert str(refusal.value) == found.refused[0]


@pytest.mark.parametrize("change", ["missing", "unused", "shape", "pickle"])
def test_tensors_that_do_not_fit(checkpoint, change):
    folder = checkpoint("llama")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "unused":
        tensors["extra"] = tensors[name]
    elif change == "shape":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    save_file(tensors, file)
    if change == "pickle":
        file.rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError) as refusal:
        loaded(folder)
    assert inspect_checkpoint(folder).refused == [str(refusal.value)]


def test_no_value_is_read(checkpoint, monkeypatch):
    def read(*words, **options):
        raise AssertionError("a value is read")

    monkeypatch.setattr(params, "device_arrays", read)
    monkeypatch.setattr(params, "check_tied", read)
    assert not inspect_checkpoint(checkpoint("gpt2")).refused


@pytest.mark.parametrize("kind", KINDS)
def test_known_families_that_are_refused(tmp_path, kind):
    found = inspect_checkpoint(with_config(tmp_path, {"model_type": kind}))
    [why] = found.refused
    with pytest.raises(InputError) as refusal:
        loaded(tmp_path)
    assert str(refusal.value) == why


@flax_classes
def test_the_class_of_transformers():
    found = inspect_checkpoint(CASES / "models/tiny-gpt2", "transformers")
    assert (found.implementation, found.family, found.refused) == ("transformers", "gpt2", [])
    seen = {one.name: one for one in found.attributes}
    assert seen["n_layer"].origin == "file"
    assert dataclasses.asdict(seen["scale_attn_weights"])["value"] is True
    [why] = inspect_checkpoint(QWEN, "transformers").refused
    assert "no transformers Flax class is trusted for model_type 'qwen2'" in why
