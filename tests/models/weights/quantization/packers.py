"""Quantized tensors made slowly from the formats' own words, and the numbers that they stand for.

A word is built as a Python integer, bit by bit; nothing here is the package's.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxscore.models.weights.quantization import METHODS, Settings
from jaxscore.models.weights.quantization.dequantize import view
from jaxscore.models.weights.tensor_files import Tensors

FILE = Path("folder/model.safetensors")
PACKAGE = "jaxscore.models.weights.quantization"
WHERE = "folder/config.json: quantization_config"


def scheme(quantization: Mapping):
    """What the package makes of a `quantization_config`."""
    module = importlib.import_module(f"{PACKAGE}.{METHODS[quantization['quant_method']]}")
    return module.read(Settings(quantization, WHERE))


def seen(quantization: Mapping, arrays: Mapping[str, np.ndarray]) -> Tensors:
    """A checkpoint's tensors as the package gives them."""
    tensors = Tensors(arrays, dict.fromkeys(arrays, FILE), arrays)
    return view(tensors, scheme(quantization).find(tensors))


def word_row(values: Sequence[int], bits: int) -> list[int]:
    """A row of small integers as 32-bit words, the first value in the lowest bits."""
    whole = sum(int(value) << (bits * k) for k, value in enumerate(values))
    n_words = -(-len(values) * bits // 32)
    words = [(whole >> (32 * k)) & 0xFFFFFFFF for k in range(n_words)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """I32 [rows, words] of integers [rows, columns] from 0 up."""
    return np.array([word_row(row, bits) for row in values.tolist()], np.int32)


def grouped(draw, weight, bits, size, *, symmetric, groups=None):
    """(values from 0 up, scales float16, zeros, exact float32 weight) of a weight [out, in]."""
    n_out, n_in = weight.shape
    groups = np.arange(n_in) // size if groups is None else groups
    n_groups, top = int(groups.max()) + 1, (1 << bits) - 1
    values = np.zeros((n_out, n_in), np.int64)
    scales = np.zeros((n_out, n_groups), np.float16)
    zeros = np.full((n_out, n_groups), 1 << (bits - 1))
    exact = np.zeros((n_out, n_in), np.float32)
    for o in range(n_out):
        for g in range(n_groups):
            of_group = weight[o, groups == g]
            scales[o, g] = max(2 * np.abs(of_group).max() / top, 1e-3)
            if not symmetric:
                zeros[o, g] = draw.integers(1, top + 1)
        for i in range(n_in):
            scale, zero = float(scales[o, groups[i]]), int(zeros[o, groups[i]])
            values[o, i] = min(max(round(float(weight[o, i]) / scale) + zero, 0), top)
            exact[o, i] = (int(values[o, i]) - zero) * scale
    return values, scales, zeros, exact


def gptq(draw, weight, *, bits, size, symmetric=True, groups=None, version="gptq"):
    """({end of the name: tensor}, exact weight)."""
    size = weight.shape[1] if size == -1 else size
    values, scales, zeros, exact = grouped(
        draw, weight, bits, size, symmetric=symmetric, groups=groups
    )
    tensors = {
        "qweight": np.ascontiguousarray(packed(values, bits).T),
        "qzeros": packed(zeros.T - (version == "gptq"), bits),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": np.asarray(
            np.arange(weight.shape[1]) // size if groups is None else groups, np.int32
        ),
    }
    return tensors, exact


AWQ_PLACES = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}  # output channel: its nibble


def interleaved(values: np.ndarray) -> np.ndarray:
    """Eight by eight, each value in the place of its nibble."""
    out = np.zeros_like(values)
    for column in range(values.shape[1]):
        start, channel = column // 8 * 8, column % 8
        out[:, start + AWQ_PLACES[channel]] = values[:, column]
    return out


def awq(draw, weight, *, size):
    """({end of the name: tensor}, exact weight)."""
    size = weight.shape[1] if size == -1 else size
    values, scales, zeros, exact = grouped(draw, weight, 4, size, symmetric=False)
    tensors = {
        "qweight": packed(interleaved(values.T), 4),
        "qzeros": packed(interleaved(zeros.T), 4),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, exact


def fp8(weight, block, kind=ml_dtypes.float8_e4m3fn):
    """(8-bit floats, scales float32, exact float32 weight); a block of None is one for all."""
    rows, columns = weight.shape if block is None else block
    n_rows, n_columns = -(-weight.shape[0] // rows), -(-weight.shape[1] // columns)
    stored = np.zeros(weight.shape, kind)
    scales = np.zeros((n_rows, n_columns), np.float32)
    exact = np.zeros(weight.shape, np.float32)
    top = np.float32(ml_dtypes.finfo(kind).max)
    for i in range(n_rows):
        for j in range(n_columns):
            at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale = scales[i, j] = np.abs(weight[at]).max() / top
            stored[at] = (weight[at] / scale).astype(kind)
            exact[at] = stored[at].astype(np.float32) * scale
    return stored, scales, exact


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def mxfp4(draw, n_experts, n_out, n_in):
    """(blocks, scales, exact [experts, in, out]) of random bytes."""
    blocks = draw.integers(0, 256, (n_experts, n_out, n_in // 32, 16)).astype(np.uint8)
    scales = draw.integers(120, 130, (n_experts, n_out, n_in // 32)).astype(np.uint8)
    exact = np.zeros((n_experts, n_in, n_out), np.float32)
    for e, o, i in np.ndindex(n_experts, n_out, n_in):
        octet = int(blocks[e, o, i // 32, i % 32 // 2])
        nibble = octet >> 4 if i % 2 else octet & 15
        exact[e, i, o] = E2M1[nibble] * 2.0 ** (int(scales[e, o, i // 32]) - 127)
    return blocks, scales, exact
