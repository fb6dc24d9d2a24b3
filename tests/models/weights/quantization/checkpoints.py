"""Tiny checkpoints whose layers' matrices are stored quantized, and torch's model on the numbers
that these stand for."""

import json
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.models.checkpoints import from_folder, saved
from tests.models.weights.quantization.packers import awq, fp8, gptq, grouped, packed

SIZES = {"intermediate_size": 64, "num_key_value_heads": 4}  # whole words of 3 bits need 32 rows
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": True, "desc_act": False}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}
PACKED = {
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": WEIGHTS, "targets": ["Linear"]}},
    "ignore": ["lm_head"],
}
FLOATS = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}, "targets": ["Linear"]}
INTEGERS = {"weights": {"num_bits": 8, "strategy": "tensor"}, "targets": ["Linear"]}
ROUNDED = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 24]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": True, "version": "gemm"}


def _gptq(config):
    def quantized(draw, weight):
        groups = None
        if config["desc_act"]:
            groups = draw.permutation(np.arange(weight.shape[1]) // config["group_size"])
        return gptq(
            draw, weight, bits=config["bits"], size=config["group_size"],
            symmetric=config["sym"], groups=groups,
            version=config.get("checkpoint_format", "gptq"),
        )  # fmt: skip

    return config, quantized


def _fp8(draw, weight):
    stored, scales, exact = fp8(weight, FP8["weight_block_size"])
    return {"weight": stored, "weight_scale_inv": scales}, exact


def _fp8_one(draw, weight):
    stored, scales, exact = fp8(weight, None)
    ends = {"weight_scale": scales.reshape(()), "input_scale": np.ones((), np.float32)}
    return {"weight": stored, **ends}, exact


def _packed(draw, weight):
    values, scales, _, exact = grouped(draw, weight, 4, 8, symmetric=True)
    return {
        "weight_packed": packed(values, 4),
        "weight_shape": np.array(weight.shape),
        "weight_scale": scales,
    }, exact


def _floats(draw, weight):
    stored, scales, exact = fp8(weight, (1, weight.shape[1]))
    return {"weight": stored, "weight_scale": scales}, exact


def _integers(draw, weight):
    scale = np.float32(np.abs(weight).max() / 127)
    values = np.rint(weight / scale).astype(np.int8)
    return {"weight": values, "weight_scale": scale.reshape(1)}, values * scale


# The config's `quantization_config`, and (draw, weight) -> ({end of the name: tensor}, numbers).
METHODS = {
    "gptq": _gptq(GPTQ),
    "gptq in order of activations": _gptq(GPTQ | {"desc_act": True, "sym": False}),
    "gptq 8 bits": _gptq(GPTQ | {"bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"}),
    "gptq 3 bits": _gptq(GPTQ | {"bits": 3}),
    "gptq 2 bits": _gptq(GPTQ | {"bits": 2}),
    "awq": (AWQ, lambda draw, weight: awq(draw, weight, size=8)),
    "fp8": (FP8, _fp8),
    "fp8 static": (
        FP8 | {"weight_block_size": None, "activation_scheme": "static", "ignored_layers": ["x"]},
        _fp8_one,
    ),
    "packed": (PACKED, _packed),
    "floats": (
        PACKED | {
            "format": "float-quantized",
            "config_groups": {"group_0": FLOATS | {"input_activations": ROUNDED}},
        },
        _floats,
    ),
    "integers": (PACKED | {"format": "int-quantized", "config_groups": {"a": INTEGERS}}, _integers),
}  # fmt: skip


def is_matrix(name, array):
    """Whether quantizers take it: a layer's linear map, and not the choice of experts."""
    return array.ndim == 2 and ".layers." in name and not name.endswith("gate.weight")


def rewritten(folder, method, only=is_matrix):
    """The folder's checkpoint stored as the method does; the numbers that it stands for."""
    config, quantized = METHODS[method]
    draw = np.random.default_rng(5)
    tensors, exact = {}, {}
    for name, array in load_file(folder / "model.safetensors").items():
        if only(name, array):
            ends, exact[name] = quantized(draw, array)
            module = name.removesuffix(".weight")
            tensors |= {f"{module}.{end}": one for end, one in ends.items()}
        else:
            tensors[name] = array
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(raw | {"quantization_config": config}), encoding="utf-8")
    return exact


def saved_as(folder, kind, method, only=is_matrix):
    """Written to the folder as the method stores it; torch's model, float32, on those numbers."""
    saved(folder, kind, **SIZES)
    plain = folder / "plain"
    shutil.copytree(folder, plain)
    exact = rewritten(folder, method, only)
    save_file(load_file(plain / "model.safetensors") | exact, plain / "model.safetensors")
    model = from_folder(plain)
    shutil.rmtree(plain)
    return model
