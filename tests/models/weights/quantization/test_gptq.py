"""GPTQ: every width, order and version, made by a slow packer; and damage."""

import numpy as np
import pytest

from jaxscore.errors import InputError
from tests.models.weights.quantization.packers import gptq, packed, scheme, seen

METHOD = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
MODULE = "model.layers.0.mlp.up_proj"
NAME = f"{MODULE}.weight"


def weight(n_out=32, n_in=96):
    return np.random.default_rng(2).normal(size=(n_out, n_in)).astype(np.float32)


def named(tensors):
    return {f"{MODULE}.{name}": array for name, array in tensors.items()}


def made(**settings):
    """(tensors, exact weight) and the config that says so."""
    draw = np.random.default_rng(3)
    chosen = {"bits": 4, "size": 32} | settings
    tensors, exact = gptq(draw, weight(), **chosen)
    method = METHOD | {
        "bits": chosen["bits"],
        "group_size": chosen["size"],
        "sym": chosen.get("symmetric", True),
        "desc_act": chosen.get("groups") is not None,
        "checkpoint_format": chosen.get("version", "gptq"),
    }
    return named(tensors), exact, method


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("size", [32, 96, -1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_weights_are_those_that_were_packed(bits, size, symmetric, version):
    tensors, exact, method = made(bits=bits, size=size, symmetric=symmetric, version=version)
    got = seen(method, tensors)
    assert (got.stored[NAME].shape, got.stored[NAME].dtype) == ((32, 96), np.float32)
    assert set(got.arrays) == {NAME}
    assert np.array_equal(got.arrays[NAME], exact)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_channels_in_another_order(bits):
    groups = np.random.default_rng(4).permutation(np.arange(96) // 32)
    tensors, exact, method = made(bits=bits, groups=groups, symmetric=False)
    assert np.array_equal(seen(method, tensors).arrays[NAME], exact)
    got = seen(method | {"desc_act": False}, tensors)
    with pytest.raises(InputError, match="g_idx has groups that are not 32 consecutive channels"):
        got.arrays[NAME]


def test_an_order_may_be_left_out_where_there_is_none():
    tensors, exact, method = made()
    del tensors[f"{MODULE}.g_idx"]
    assert np.array_equal(seen(method, tensors).arrays[NAME], exact)
    with pytest.raises(InputError, match=r"is stored without \S+up_proj\.g_idx"):
        seen(method | {"desc_act": True}, tensors)


def test_scales_below_zero_are_some_writers_own():
    tensors, exact, method = made()
    tensors[f"{MODULE}.scales"] = -tensors[f"{MODULE}.scales"]
    assert np.array_equal(seen(method, tensors).arrays[NAME], -exact)


def test_a_symmetric_file_of_the_other_version_is_found_out():
    tensors, _, method = made(version="gptq_v2")
    got = seen(method | {"checkpoint_format": "gptq"}, tensors)
    with pytest.raises(InputError, match=r"qzeros has zero point 9, expected 8"):
        got.arrays[NAME]


def test_a_zero_that_readers_take_for_another():
    tensors, _, method = made(symmetric=False)
    zeros = np.full((3, 32), 7)
    zeros[1, 5] = 15
    tensors[f"{MODULE}.qzeros"] = packed(zeros, 4)
    with pytest.raises(InputError, match="take for 0 or for 16; save the model as 'gptq_v2'"):
        seen(method, tensors).arrays[NAME]
    got = seen(method | {"checkpoint_format": "gptq_v2"}, tensors)
    assert np.isfinite(got.arrays[NAME]).all()


def test_newer_writers_call_the_version_format():
    tensors, exact, method = made(version="gptq_v2")
    method["format"] = method.pop("checkpoint_format")
    assert np.array_equal(seen(method, tensors).arrays[NAME], exact)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"bits": 5}, "bits is 5, handled are 2, 3, 4, 8"),
        ({"bits": True}, "bits is True"),
        ({"bits": 10**400}, "bits is 1"),
        ({"bits": None}, "bits is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": -2}, "group_size is -2"),
        ({"group_size": "32"}, "group_size is '32'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"format": "marlin"}, "checkpoint_format is 'marlin'"),
        (
            {"format": "gptq", "checkpoint_format": "gptq_v2"},
            "format is 'gptq', handled are 'gptq_",
        ),
        ({"method": "qqq"}, "method is 'qqq'"),
        ({"is_marlin_format": True}, "settings that are not handled: is_marlin_format=True"),
        ({"dynamic": {"-:x": {}}}, "settings that are not handled: dynamic="),
        ({"pack_dtype": "int8"}, "pack_dtype is 'int8'"),
    ],
)
def test_settings_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(METHOD | setting)
    assert why in str(problem.value)
    assert "give the unquantized checkpoint" in str(problem.value)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("qzeros", None, "is stored without"),
        ("scales", None, "is stored without"),
        ("qweight", np.zeros((12, 32), np.float32), "is stored as F32, expected I32"),
        ("qweight", np.zeros((2, 12, 32), np.int32), "expected 2 axes"),
        ("qweight", np.zeros((0, 32), np.int32), "impossible with 4 bits"),
        ("qweight", np.zeros((12, 31), np.int32), "impossible with 4 bits"),
        ("qweight", np.zeros((13, 32), np.int32), "not a multiple of the group size 32"),
        ("qweight", np.zeros((16, 32), np.int32), "qzeros has shape"),
        ("qzeros", np.zeros((3, 3), np.int32), "expected [3, 4]"),
        ("scales", np.zeros((2, 32), np.float16), "expected [3, 32]"),
        ("g_idx", np.zeros(95, np.int32), "expected [96]"),
        ("g_idx", np.zeros(96, np.int64), "is stored as I64, expected I32"),
    ],
)
def test_tensors_that_do_not_fit(name, array, why):
    tensors, _, method = made()
    tensors[f"{MODULE}.{name}"] = array
    with pytest.raises(InputError) as problem:
        seen(method, {one: array for one, array in tensors.items() if array is not None})
    assert why in str(problem.value)
    assert str(problem.value).startswith(f"folder/model.safetensors: tensor {MODULE}.")


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("g_idx", 5, 3, "has groups 0 to 3, expected 0 to 2"),
        ("g_idx", 5, -1, "has groups -1 to 2, expected 0 to 2"),
        ("g_idx", 5, 2**31 - 1, "expected 0 to 2"),
        ("scales", (1, 4), np.nan, "not finite numbers other than 0"),
        ("scales", (1, 4), np.inf, "not finite numbers other than 0"),
        ("scales", (1, 4), 0, "not finite numbers other than 0"),
    ],
)
def test_values_that_cannot_be(name, place, value, why):
    tensors, _, method = made()
    tensors[f"{MODULE}.{name}"][place] = value
    got = seen(method, tensors)
    with pytest.raises(InputError) as problem:
        got.arrays[NAME]
    assert why in str(problem.value)
    assert f"tensor {MODULE}.{name}" in str(problem.value)
