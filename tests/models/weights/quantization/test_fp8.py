"""8-bit floats with scales: slow products, transformers' own, and damage."""

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from jaxscore.errors import InputError
from tests.models.weights.quantization.packers import fp8, scheme, seen

METHOD = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
NAME = "model.layers.0.mlp.up_proj.weight"


def weight(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("shape", [(256, 384), (200, 130), (3, 129), (128, 1)])
def test_blocks_of_which_the_last_are_cut_off(kind, shape):
    stored, scales, exact = fp8(weight(*shape), (128, 128), kind)
    tensors = seen(METHOD, {NAME: stored, f"{NAME}_scale_inv": scales})
    assert (tensors.stored[NAME].shape, tensors.stored[NAME].dtype) == (shape, np.float32)
    assert set(tensors.arrays) == {NAME}
    got = tensors.arrays[NAME]
    assert got.dtype == np.float32
    assert np.array_equal(got, exact)


@pytest.mark.parametrize("block", [[128, 128], None])
@pytest.mark.parametrize("end", ["_scale", "_scale_inv"])
@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_one_scale_for_a_tensor(block, end, scale_shape):
    stored, scales, exact = fp8(weight(200, 130), None)
    tensors = {NAME: stored, NAME + end: scales.reshape(scale_shape)}
    method = METHOD | {"weight_block_size": block, "activation_scheme": "static"}
    rounded = {NAME.replace("weight", "input_scale"): np.ones((), np.float32)}
    assert np.array_equal(seen(method, tensors | rounded).arrays[NAME], exact)


def test_every_value_of_the_type():
    octets = np.arange(256, dtype=np.uint8)
    for kind in ("float8_e4m3fn", "float8_e5m2"):
        stored = octets.view(getattr(ml_dtypes, kind)).reshape(2, 128)
        scale = np.full((1, 1), 0.375, np.float32)
        got = seen(METHOD, {NAME: stored, f"{NAME}_scale_inv": scale}).arrays[NAME]
        theirs = torch.from_numpy(octets).view(getattr(torch, kind)).float() * 0.375
        assert np.array_equal(got.ravel(), theirs.numpy(), equal_nan=True)


@pytest.mark.parametrize("setting", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize(
    ("plain", "kept"),
    [
        (["lm_head"], True),
        (["model.layers.0.mlp.up"], True),  # another module's name
        (["model.layers.0.mlp.up_proj"], False),
        (["model.language_model.layers.0"], False),
        (["model.layers.*.up_proj"], False),
    ],
)
def test_modules_that_a_config_leaves_out_stay_in_no_blocks(setting, plain, kept):
    method = {**METHOD, "modules_to_not_convert": None, setting: plain}
    assert (scheme(method).expected_form(NAME, False, 384) is not None) == kept


def test_experts_along_a_leading_axis():
    made = [fp8(weight(130, 140) * (k + 1), (128, 128)) for k in range(3)]
    stored, scales, exact = (np.stack(one) for one in zip(*made, strict=True))
    tensors = seen(METHOD, {NAME: stored, f"{NAME}_scale_inv": scales})
    assert np.array_equal(tensors.arrays[NAME], exact)
    assert np.array_equal(tensors.pieces[NAME](2), exact[2])
    one = seen(METHOD, {NAME: stored, f"{NAME}_scale": scales[0, 0, 0]})
    assert np.array_equal(one.pieces[NAME](1), one.arrays[NAME][1])


def test_scales_that_are_powers_of_two_in_a_byte():
    stored, scales, _ = fp8(weight(256, 128), (128, 128))
    powers = scales.astype(ml_dtypes.float8_e8m0fnu)
    method = METHOD | {"scale_fmt": "ue8m0"}
    got = seen(method, {NAME: stored, f"{NAME}_scale_inv": powers}).arrays[NAME]
    wide = np.repeat(powers.astype(np.float32), 128, axis=0)
    assert np.array_equal(got, stored.astype(np.float32) * wide)


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 has no dequantisation")
def test_transformers_own():
    """Where the blocks divide the matrix: elsewhere it takes smaller blocks, or refuses."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    stored, scales, _ = fp8(weight(256, 384), (128, 128))
    theirs = Fp8Dequantize(None).convert(
        {
            "weight": torch.from_numpy(stored.view(np.uint8)).view(torch.float8_e4m3fn),
            "weight_scale_inv": torch.from_numpy(scales),
        }
    )["weight"]
    got = seen(METHOD, {NAME: stored, f"{NAME}_scale_inv": scales}).arrays[NAME]
    assert np.array_equal(got, theirs.numpy())


def test_what_is_left_out_is_said():
    assert "activations" in scheme(METHOD).left_out


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"weight_block_size": [128]}, "weight_block_size is [128], expected two whole numbers"),
        ({"weight_block_size": [128, 0]}, "weight_block_size is [128, 0], expected two"),
        ({"weight_block_size": 10**400}, "weight_block_size is 1"),
        ({"activation_scheme": "none"}, "activation_scheme is 'none', handled are 'dynamic'"),
        ({"fmt": "e3m4"}, "fmt is 'e3m4'"),
        ({"expert_dtype": "fp4"}, "expert_dtype is 'fp4', handled are 'fp8'"),
        ({"setting_of_next_year": 1}, "settings that are not handled: setting_of_next_year=1"),
    ],
)
def test_settings_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(METHOD | setting)
    assert why in str(problem.value)
    assert str(problem.value).startswith("folder/config.json: quantization_config: ")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_scales_that_are_none(bad):
    stored, scales, _ = fp8(weight(256, 128), (128, 128))
    scales[1, 0] = bad
    tensors = seen(METHOD, {NAME: stored, f"{NAME}_scale_inv": scales})
    with pytest.raises(InputError, match=rf"safetensors: tensor {NAME}_scale_inv has scales"):
        tensors.arrays[NAME]


@pytest.mark.parametrize(
    ("scales", "why"),
    [
        (None, f"is stored without {NAME}_scale_inv"),
        (np.ones((1, 2), np.float32), r"has shape \[1, 2\], expected \[2, 1\]"),
        (np.ones((2, 1), np.int32), "is stored as I32, expected F32"),
        (np.ones(2, np.float32), r"has shape \[2\], expected \[2, 1\]"),
    ],
)
def test_scales_that_do_not_fit(scales, why):
    stored, _, _ = fp8(weight(200, 100), (128, 128))
    tensors = {NAME: stored} | ({} if scales is None else {f"{NAME}_scale_inv": scales})
    with pytest.raises(InputError, match=why):
        seen(METHOD, tensors)


def test_a_grid_without_a_block_size():
    stored, scales, _ = fp8(weight(256, 128), (128, 128))
    with pytest.raises(InputError, match="expected one number"):
        seen(METHOD | {"weight_block_size": None}, {NAME: stored, f"{NAME}_scale_inv": scales})
