"""compressed-tensors: what the package itself unpacks, and damage.

`compressed_tensors.safetensors` is written by `make_compressed_tensors.py`, with the package.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from jaxscore.errors import InputError
from jaxscore.models.weights.tensor_files import map_file
from tests.models.weights.quantization.packers import packed, scheme, seen

FILE = Path(__file__).with_name("compressed_tensors.safetensors")
MODULE = "model.layers.0.mlp.up_proj"
NAME = f"{MODULE}.weight"
LINEAR = ["Linear"]
with safe_open(FILE, "np") as file:
    CASES = json.loads(file.metadata()["cases"])


def config(packing, weights, targets=LINEAR, **settings):
    group = {"weights": weights, "targets": targets, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": packing,
        "config_groups": {"group_0": group | settings},
        "ignore": ["lm_head", "re:.*gate$"],
        "kv_cache_scheme": None,
    }


def made(case):
    """The config, the tensors under a module's name, and the package's own weight."""
    tensors = {
        name.rpartition("/")[2]: array
        for name, array in map_file(FILE).items()
        if name.startswith(f"{case}/")
    }
    exact = tensors.pop("exact")
    settings = config(CASES[case]["format"], CASES[case]["weights"])
    return settings, {f"{MODULE}.{name}": array for name, array in tensors.items()}, exact


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_the_package_unpacks(case):
    settings, tensors, exact = made(case)
    got = seen(settings, tensors)
    assert (got.stored[NAME].shape, got.stored[NAME].dtype) == (exact.shape, np.float32)
    assert set(got.arrays) == {NAME}
    assert np.array_equal(got.arrays[NAME], exact)
    assert np.abs(exact).max() > 1


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16])
def test_scales_of_half_precision_are_widened_first(kind):
    settings, tensors, _ = made("integers channel")
    scales = tensors[f"{MODULE}.weight_scale"] = tensors[f"{MODULE}.weight_scale"].astype(kind)
    want = tensors[NAME].astype(np.float32) * scales.astype(np.float32)
    assert np.array_equal(seen(settings, tensors).arrays[NAME], want)


def test_zero_points_of_symmetric_values_have_to_be_zeros():
    settings, tensors, exact = made("floats channel")
    zeros = tensors[f"{MODULE}.weight_zero_point"] = np.zeros((12, 1), ml_dtypes.float8_e4m3fn)
    assert np.array_equal(seen(settings, tensors).arrays[NAME], exact)
    zeros[3] = 2
    with pytest.raises(InputError, match="weight_zero_point is not all zeros"):
        seen(settings, tensors).arrays[NAME]


def test_what_is_rounded_while_a_model_runs_is_said():
    settings, tensors, exact = made("floats tensor")
    assert scheme(settings).left_out == ""
    group = settings["config_groups"]["group_0"]
    group["input_activations"] = {"num_bits": 8, "type": "float", "dynamic": False}
    assert "activations" in scheme(settings).left_out
    settings["kv_cache_scheme"], group["input_activations"] = group["input_activations"], None
    assert "activations" in scheme(settings).left_out
    for name in ("input_scale", "input_zero_point", "k_scale", "v_scale"):
        tensors[f"{MODULE}.{name}"] = np.ones(1, np.float32)
    assert set(seen(settings, tensors).arrays) == {NAME}
    assert np.array_equal(seen(settings, tensors).arrays[NAME], exact)


def test_groups_that_are_stored_differently():
    """A module's own name comes before a pattern, and that before the class of all."""
    four, eight = {"num_bits": 4, "strategy": "channel"}, {"num_bits": 8, "strategy": "channel"}
    settings = config("mixed-precision", eight, format="pack-quantized")
    group = settings["config_groups"]["group_0"]
    settings["config_groups"] |= {
        "group_1": group | {"weights": four, "targets": ["re:.*down_proj"]},
        "group_2": group | {"weights": {**eight, "type": "int"}, "targets": ["b.down_proj"]},
        "group_3": group | {"weights": eight, "format": "int-quantized", "targets": ["re:c.*"]},
    }
    values = np.random.default_rng(0).integers(-8, 8, (4, 16))
    tensors = {}
    for module, bits in (("a.up_proj", 8), ("a.down_proj", 4), ("b.down_proj", 8)):
        tensors[f"{module}.weight_packed"] = packed(values + (1 << (bits - 1)), bits)
        tensors[f"{module}.weight_shape"] = np.array([4, 16])
        tensors[f"{module}.weight_scale"] = np.full((4, 1), 0.5, np.float32)
    tensors |= {"c.weight": values.astype(np.int8), "c.weight_scale": np.full(4, 0.5, np.float32)}
    got = seen(settings, tensors)
    assert len(got.arrays) == 4
    for name in got.arrays:
        assert np.array_equal(got.arrays[name], values * np.float32(0.5)), name
    del settings["config_groups"]["group_0"]
    with pytest.raises(InputError, match=r"module a\.up_proj matches no target of config_groups"):
        seen(settings, tensors)


def test_patterns_that_are_none():
    settings = config("pack-quantized", {"num_bits": 4, "strategy": "channel"}, ["re:("])
    other = {"num_bits": 8, "strategy": "channel"}
    settings["config_groups"]["group_1"] = {"weights": other, "targets": ["Linear"]}
    with pytest.raises(InputError, match=r"target 're:\(' is not a valid pattern"):
        seen(settings, made("packed 4 symmetric channel")[1])


GOOD = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized', handled are"),
        ({"format": "marlin-24"}, "format is 'marlin-24'"),
        ({"format": "dense"}, "format is 'dense'"),
        ({"format": "mixed-precision"}, "format is None, handled are"),
        ({"quantization_status": "frozen"}, "quantization_status is 'frozen', handled are"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "not handled: sparsity_config="),
        ({"transform_config": {"config_groups": {"a": 1}}}, "not handled: transform_config="),
        ({"config_groups": None}, "config_groups is None, expected an object"),
        ({"config_groups": {}}, "config_groups is {}, expected at least one group"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "W4A16 is ['Linear'], expected an object"),
        ({"config_groups": {"group_0": {"targets": ["Linear"]}}}, "weights is None, expected an"),
    ],
)
def test_settings_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(config("pack-quantized", GOOD) | setting)
    assert why in str(problem.value)
    assert str(problem.value).startswith("folder/config.json: quantization_config: ")


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"num_bits": 3}, "num_bits is 3, handled are 2, 4, 8"),
        ({"num_bits": 10**400}, "num_bits is 1"),
        ({"type": "float"}, "type is 'float', expected 'int' in format 'pack-quantized'"),
        ({"strategy": "tensor_group"}, "strategy is 'tensor_group', handled are tensor"),
        ({"strategy": "token"}, "strategy is 'token'"),
        ({"strategy": ["group"]}, "strategy is ['group']"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": -1}, "group_size is -1, expected a whole number above 0"),
        ({"strategy": "block"}, "block_structure is None"),
        ({"dynamic": True}, "dynamic is True"),
        ({"actorder": "sideways"}, "actorder is 'sideways'"),
        ({"setting_of_next_year": 1}, "not handled: setting_of_next_year=1"),
    ],
)
def test_weights_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(config("pack-quantized", GOOD | setting))
    assert why in str(problem.value)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"output_activations": {"num_bits": 8}}, "not handled: output_activations="),
        ({"targets": "Linear"}, "targets is 'Linear', expected names"),
        ({"targets": [3]}, "targets is [3], expected names"),
    ],
)
def test_groups_that_are_not_handled(setting, why):
    with pytest.raises(InputError) as problem:
        scheme(config("pack-quantized", GOOD, **setting))
    assert why in str(problem.value)


@pytest.mark.parametrize(
    ("case", "name", "array", "why"),
    [
        ("packed 4 symmetric group", "weight_scale", None, "is stored without"),
        ("packed 4 symmetric group", "weight_shape", None, "is stored without"),
        ("packed 4 symmetric group", "weight_scale", np.ones((12, 4), np.float32), "[12, 5]"),
        ("packed 4 symmetric group", "weight_shape", np.array([12, 2**40]), "is [12, 10995"),
        ("packed 4 symmetric group", "weight_shape", np.array([-12, 40]), "is [-12, 40]"),
        ("packed 4 symmetric group", "weight_shape", np.array([12, 41]), "is [12, 41]"),
        ("packed 4 symmetric group", "weight_shape", np.array([12, 39]), "the group size 8"),
        ("packed 4 symmetric group", "weight_shape", np.ones(2), "is stored as F64"),
        ("packed 4 symmetric group", "weight_packed", np.ones((12, 5)), "is stored as F64"),
        ("packed 4 symmetric group", "weight_packed", np.ones(5, np.int32), "expected 2 axes"),
        ("packed 4 asymmetric group", "weight_zero_point", None, "is stored without"),
        ("packed 4 asymmetric group", "weight_zero_point", np.ones((1, 5), np.int32), "[2, 5]"),
        ("packed 4 in another order", "weight_g_idx", None, "is stored without"),
        ("packed 4 in another order", "weight_g_idx", np.ones(39, np.int32), "expected [40]"),
        ("integers channel", "weight", np.ones((12, 40), np.int32), "is stored as I32"),
        ("integers channel", "weight_scale", np.ones((12, 2), np.float32), "[12, 1]"),
        ("floats block", "weight_scale", np.ones((2, 2), np.float32), "expected [2, 3]"),
        ("floats tensor", "weight_scale", np.ones(2, np.float32), "expected [1, 1]"),
    ],
)
def test_tensors_that_do_not_fit(case, name, array, why):
    settings, tensors, _ = made(case)
    tensors[f"{MODULE}.{name}"] = array
    with pytest.raises(InputError) as problem:
        seen(settings, {one: array for one, array in tensors.items() if array is not None})
    assert why in str(problem.value)
    assert str(problem.value).startswith(f"folder/model.safetensors: tensor {MODULE}.")


@pytest.mark.parametrize("name", ["weight", "weight_zero_point"])
def test_integers_of_more_bits(name):
    """A file of 8 bits under a config of 4, of which blocks would keep 4."""
    settings, tensors, _ = made("integers asymmetric")
    settings["config_groups"]["group_0"]["weights"]["num_bits"] = 4
    for one in ("weight", "weight_zero_point"):
        tensors[f"{MODULE}.{one}"] = np.clip(tensors[f"{MODULE}.{one}"], -8, 7)
    seen(settings, tensors).arrays[NAME]
    tensors[f"{MODULE}.{name}"][-1, -1] = 8
    with pytest.raises(
        InputError, match=rf"{name} has values from -?\d+ to 8, expected -8 to 7 for 4 bits"
    ):
        seen(settings, tensors).arrays[NAME]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0, -1])
@pytest.mark.parametrize("case", ["packed 4 symmetric group", "integers tensor", "floats block"])
def test_scales_that_are_none(case, bad):
    settings, tensors, _ = made(case)
    scales = tensors[f"{MODULE}.weight_scale"] = tensors[f"{MODULE}.weight_scale"].copy()
    scales.flat[-1] = bad
    with pytest.raises(InputError, match="weight_scale has scales that are not finite numbers"):
        seen(settings, tensors).arrays[NAME]


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (np.arange(40) // 8 + 1, "has groups 1 to 5, expected 0 to 4"),
        (np.arange(40) // 8 - 1, "has groups -1 to 3, expected 0 to 4"),
        (np.arange(40) % 3, "has groups of different sizes"),
    ],
)
def test_orders_that_are_none(groups, why):
    settings, tensors, _ = made("packed 4 in another order")
    tensors[f"{MODULE}.weight_g_idx"] = groups.astype(np.int32)
    with pytest.raises(InputError, match=why):
        seen(settings, tensors).arrays[NAME]
