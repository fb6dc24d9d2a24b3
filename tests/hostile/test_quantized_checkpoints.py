"""Quantized checkpoints from anywhere: refused by name, and nothing large is made of them."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from jaxscore.errors import InputError
from jaxscore.models.weights import quantization
from jaxscore.models.weights.checkpoint import Checkpoint, read_config
from jaxscore.models.weights.quantization import compressed_tensors
from tests.hostile.inputs import HOSTILE, any_texts, outcome, put, refused, values
from tests.models.weights.quantization.checkpoints import AWQ, FP8, GPTQ, METHODS, PACKED
from tests.models.weights.quantization.packers import mxfp4

MODULE = "model.layers.0.mlp.up_proj"
HUGE = (0, -1, 2**31, 2**63, 10**30, 10**400)
MXFP4 = {"quant_method": "mxfp4"}


def folder_of(place, settings, tensors):
    put(place / "model.safetensors", save(tensors))
    raw = {"model_type": "llama", "quantization_config": settings}
    return put(place / "config.json", json.dumps(raw).encode())


def opened(folder):
    """All tensors computed, as loading would."""
    tensors = Checkpoint.open(folder).tensors
    for name in tensors.arrays:
        outline, array = tensors.stored[name], tensors.arrays[name]
        assert (array.shape, array.dtype) == (outline.shape, outline.dtype)
    return tensors


def good(method):
    """A config, and the tensors of one module of [16, 32]."""
    draw = np.random.default_rng(0)
    if method == "mxfp4":
        blocks, scales, _ = mxfp4(draw, 2, 3, 32)
        return MXFP4, {"experts.down_proj_blocks": blocks, "experts.down_proj_scales": scales}
    config, quantized = METHODS[method]
    ends, _ = quantized(draw, draw.normal(size=(32, 32)).astype(np.float32))
    return config, {f"{MODULE}.{end}": array for end, array in ends.items()}


EVERY = [*METHODS, "mxfp4"]


@pytest.mark.parametrize("method", EVERY)
def test_a_good_one_is_read(tmp_path, method):
    folder_of(tmp_path, *good(method))
    assert opened(tmp_path).changed


@pytest.mark.parametrize("config", [GPTQ, AWQ, FP8, PACKED, MXFP4], ids=lambda c: c["quant_method"])
@HOSTILE
@given(st.data())
def test_any_settings(tmp_path, config, data):
    names = st.sampled_from(sorted(config)) | any_texts
    change = data.draw(st.dictionaries(names, values | st.sampled_from(HUGE), max_size=3))
    where = put(
        tmp_path / "config.json",
        json.dumps({"model_type": "llama", "quantization_config": config | change}).encode(),
    )
    outcome(lambda: quantization.read_scheme(tmp_path, read_config(tmp_path)), where)


@HOSTILE
@given(st.data())
def test_any_group_of_weights(tmp_path, data):
    group = PACKED["config_groups"]["group_0"]
    names = st.sampled_from(sorted(group["weights"])) | any_texts
    weights = data.draw(st.dictionaries(names, values | st.sampled_from(HUGE), max_size=3))
    others = data.draw(st.dictionaries(st.sampled_from(sorted(group)), values, max_size=1))
    groups = {data.draw(any_texts): group | {"weights": group["weights"] | weights} | others}
    where = put(
        tmp_path / "config.json",
        json.dumps(
            {"model_type": "llama", "quantization_config": PACKED | {"config_groups": groups}}
        ).encode(),
    )
    outcome(lambda: quantization.read_scheme(tmp_path, read_config(tmp_path)), where)


KINDS = [np.int32, np.int64, np.uint8, np.int8, np.float16, np.float32, np.bool_]


@pytest.mark.parametrize("method", EVERY)
@HOSTILE
@given(st.data())
def test_any_shape_type_and_bytes_of_a_tensor(tmp_path, method, data):
    config, tensors = good(method)
    name = data.draw(st.sampled_from(sorted(tensors)))
    kind = data.draw(st.sampled_from([tensors[name].dtype.type, *KINDS]))
    shape = data.draw(
        st.just(tensors[name].shape) | st.lists(st.integers(0, 33), max_size=4).map(tuple)
    )
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    if size > 1 << 16:
        shape, size = (0,), 0
    pattern = data.draw(st.binary(min_size=1, max_size=16))
    content = (pattern * (size // len(pattern) + 1))[:size]
    if kind is np.bool_:
        content = bytes(octet & 1 for octet in content)
    changed = tensors | {name: np.frombuffer(content, kind).reshape(shape)}
    if data.draw(st.booleans()):
        del changed[data.draw(st.sampled_from(sorted(changed)))]
    folder_of(tmp_path, config, changed)
    got = outcome(lambda: opened(tmp_path), tmp_path)
    if isinstance(got, InputError):
        assert any(one in str(got) for one in ("tensor ", "no tensor is stored that way"))


@pytest.mark.parametrize("shape", [[2**40, 2**40], [32, 2**62], [-1, -1], [0, 0], [32, 10**9]])
def test_a_shape_that_lies_takes_no_memory(tmp_path, shape):
    config, tensors = good("packed")
    folder_of(tmp_path, config, tensors | {f"{MODULE}.weight_shape": np.array(shape)})
    tracemalloc.start()
    message = refused(lambda: opened(tmp_path), tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"tensor {MODULE}.weight_shape is " in message
    assert most < 4 << 20


@pytest.mark.parametrize("size", [2**31, 2**63, 10**400])
def test_groups_larger_than_any_tensor(tmp_path, size):
    for method in ("gptq", "awq"):
        config, tensors = good(method)
        folder_of(tmp_path, config | {"group_size": size}, tensors)
        assert "not a multiple of the group size" in refused(lambda: opened(tmp_path), tmp_path)


@pytest.mark.parametrize("size", [2**31, 2**63, 10**400])
def test_blocks_larger_than_any_tensor(tmp_path, size):
    """They are cut off where the matrix ends, and nothing of their size is made."""
    config, tensors = good("fp8")
    scales = tensors[f"{MODULE}.weight_scale_inv"][:1, :1]
    folder_of(
        tmp_path,
        config | {"weight_block_size": [size, size]},
        tensors | {f"{MODULE}.weight_scale_inv": scales},
    )
    tracemalloc.start()
    opened(tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20


def test_a_pattern_that_hangs_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed_tensors, "PATTERN_SECONDS", 0.2)
    config, tensors = good("packed")
    group = config["config_groups"]["group_0"]
    other = group["weights"] | {"group_size": 16}
    groups = {
        "a": group | {"targets": ["re:(a|aa)+$"]},
        "b": {"weights": other, "targets": ["Linear"]},
    }
    module = f"{'a' * 200}!"
    moved = {name.replace(MODULE, module): array for name, array in tensors.items()}
    folder_of(tmp_path, config | {"config_groups": groups}, moved)
    message = refused(lambda: opened(tmp_path), tmp_path)
    assert "target 're:(a|aa)+$' takes more than 0.2 s" in message
