"""Writes `compressed_tensors.safetensors`: what the `compressed-tensors` package itself packs and
unpacks, so that tests need not install it (it asks for pydantic, loguru, psutil and torch).

Run by hand, with the package in two versions, since the older alone knows groups in another order
and the newer alone unpacks zero points:

    pip install compressed-tensors==0.12.2 && python make_compressed_tensors.py
    pip install compressed-tensors==0.20.0 && python make_compressed_tensors.py

Each run adds its cases to the file. A case has the tensors of a module as stored, `exact`, which
the package makes of them, and in the file's metadata its version and the settings of the weights.
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors import safe_open
from safetensors.torch import save_file

FILE = Path(__file__).with_name("compressed_tensors.safetensors")
OLD = version("compressed-tensors").startswith("0.12.")
SHAPE = (12, 40)  # neither is whole words of every width, nor whole blocks
GROUP = {"strategy": "group", "group_size": 8}
CASES = {
    **{
        f"packed {bits} {'symmetric' if symmetric else 'asymmetric'} {name}": (
            "pack-quantized",
            {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy},
        )
        for bits in (4, 8)
        for symmetric in (True, False)
        for name, strategy in (("group", GROUP), ("channel", {"strategy": "channel"}))
    },
    "packed 4 symmetric tensor": ("pack-quantized", {"num_bits": 4, "strategy": "tensor"}),
    "packed 2 symmetric group": ("pack-quantized", {"num_bits": 2, **GROUP}),
    "integers channel": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "integers tensor": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "integers asymmetric": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "integers group": ("naive-quantized", {"num_bits": 4, **GROUP}),
    "floats tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "floats channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "floats naive": ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "floats block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 16]},
    ),
}


def extremes(weight, args):
    """Smallest and largest of each part that has a scale, shaped as scales are."""
    if args.strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if args.strategy == "block":
        rows, columns = args.block_structure
        weight = torch.nn.functional.pad(weight, (0, -SHAPE[1] % columns, 0, -SHAPE[0] % rows))
        parts = weight.reshape(len(weight) // rows, rows, -1, columns)
        return parts.amin((1, 3)), parts.amax((1, 3))
    size = args.group_size if args.strategy == "group" else SHAPE[1]
    parts = weight.reshape(SHAPE[0], SHAPE[1] // size, size)
    return parts.amin(-1), parts.amax(-1)


def made(packing, settings, groups=None):
    """The tensors of one module, and what the package makes of them."""
    args = QuantizationArgs(**settings)
    weight = torch.randn(SHAPE)
    scale, zero = calculate_qparams(*extremes(weight, args), args)
    scale = scale.float()
    if OLD:
        return _old(packing, args, weight, scale, zero, groups)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    stored = {"weight": weight, "weight_scale": scale}
    if not args.symmetric:
        stored["weight_zero_point"] = zero.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(packing)
    stored = compressor.compress(stored, scheme)
    return stored, compressor.decompress(stored, scheme)["weight"]


def _old(packing, args, weight, scale, zero, groups):
    """Groups in another order, which the older version alone has."""
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import pack_to_int32

    values = quantize(weight, scale, zero, args, dtype=torch.int8, g_idx=groups)
    exact = dequantize(values, scale, zero, args, g_idx=groups)
    stored = {
        "weight_packed": pack_to_int32(values, args.num_bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
        "weight_g_idx": groups,
    }
    return stored, exact


def main():
    tensors, about = {}, {}
    if FILE.exists():
        with safe_open(FILE, "pt") as file:
            about = json.loads(file.metadata()["cases"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    cases = {name: (*case, None) for name, case in CASES.items()}
    if OLD:
        torch.manual_seed(0)
        groups = torch.randperm(SHAPE[1]).div(8, rounding_mode="floor").int()
        settings = {"num_bits": 4, **GROUP, "actorder": "group"}
        cases = {
            "packed 4 in another order": ("pack-quantized", settings, groups),
            "packed 4 in no other order": (
                "pack-quantized",
                settings,
                torch.full((SHAPE[1],), -1, dtype=torch.int32),
            ),
        }
    for name, (packing, settings, groups) in cases.items():
        torch.manual_seed(len(name))
        stored, exact = made(packing, settings, groups)
        tensors |= {f"{name}/{end}": one.contiguous() for end, one in stored.items()}
        tensors[f"{name}/exact"] = exact.contiguous()
        about[name] = {
            "version": version("compressed-tensors"), "format": packing, "weights": settings
        }  # fmt: skip
    save_file(tensors, FILE, {"cases": json.dumps(about)})


if __name__ == "__main__":
    main()
