"""AWQ: its order of nibbles, made by a slow packer; and damage."""

import numpy as np
import pytest

from jaxscore.errors import InputError
from tests.models.weights.quantization.packers import awq, scheme, seen

METHOD = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
MODULE = "model.layers.0.mlp.up_proj"
NAME = f"{MODULE}.weight"


def made(size=32):
    draw = np.random.default_rng(3)
    weight = draw.normal(size=(40, 96)).astype(np.float32)
    tensors, exact = awq(draw, weight, size=size)
    return {f"{MODULE}.{name}": array for name, array in tensors.items()}, exact


@pytest.mark.parametrize("size", [32, 96, -1])
def test_weights_are_those_that_were_packed(size):
    tensors, exact = made(size)
    got = seen(METHOD | {"group_size": size}, tensors)
    assert (got.stored[NAME].shape, got.stored[NAME].dtype) == ((40, 96), np.float32)
    assert set(got.arrays) == {NAME}
    assert np.array_equal(got.arrays[NAME], exact)


def test_the_order_of_a_word():
    """0x76543210 has nibble k in place k, which is of output channel 0 2 4 6 1 3 5 7."""
    words = np.full((1, 1), 0x76543210, np.int32)
    tensors = {
        f"{MODULE}.qweight": words,
        f"{MODULE}.qzeros": np.zeros((1, 1), np.int32),
        f"{MODULE}.scales": np.ones((1, 8), np.float16),
    }
    got = seen(METHOD | {"group_size": -1}, tensors).arrays[NAME]
    assert got[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"bits": 8}, "bits is 8, handled are 4"),
        ({"version": "gemv"}, "version is 'gemv', handled are 'gemm'"),
        ({"format": "marlin"}, "format is 'marlin'"),
        ({"pack_dtype": "int16"}, "pack_dtype is 'int16'"),
        ({"zero_point": False}, "zero_point is False, handled are True"),
        ({"group_size": 0}, "group_size is 0"),
        ({"w_bit": 4}, "settings that are not handled: w_bit=4"),
    ],
)
def test_settings_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(METHOD | setting)
    assert why in str(problem.value)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("qzeros", None, "is stored without"),
        ("scales", None, "is stored without"),
        ("qweight", np.zeros((96, 5), np.int64), "is stored as I64, expected I32"),
        ("qweight", np.zeros((95, 5), np.int32), "not a multiple of the group size 32"),
        ("qweight", np.zeros((0, 5), np.int32), "not a multiple of the group size 32"),
        ("qzeros", np.zeros((3, 4), np.int32), "expected [3, 5]"),
        ("scales", np.zeros((3, 5), np.float16), "expected [3, 40]"),
    ],
)
def test_tensors_that_do_not_fit(name, array, why):
    tensors, _ = made()
    tensors[f"{MODULE}.{name}"] = array
    with pytest.raises(InputError) as problem:
        seen(METHOD, {one: array for one, array in tensors.items() if array is not None})
    assert why in str(problem.value)
    assert str(problem.value).startswith(f"folder/model.safetensors: tensor {MODULE}.")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0])
def test_scales_that_are_none(bad):
    tensors, _ = made()
    tensors[f"{MODULE}.scales"][1, 3] = bad
    with pytest.raises(InputError, match="scales has scales that are not finite numbers other"):
        seen(METHOD, tensors).arrays[NAME]
