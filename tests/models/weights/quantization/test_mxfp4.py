"""MXFP4: every value of the format, transformers' own reading, and damage."""

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from jaxscore.errors import InputError
from tests.models.weights.quantization.packers import mxfp4, seen

METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
NAME = "model.layers.0.mlp.experts.gate_up_proj"


def checkpoint(blocks, scales):
    return {f"{NAME}_blocks": blocks, f"{NAME}_scales": scales}


def test_values_are_those_of_the_format_and_of_transformers():
    blocks, scales, exact = mxfp4(np.random.default_rng(0), 3, 6, 96)
    tensors = seen(METHOD, checkpoint(blocks, scales))
    outline = tensors.stored[NAME]
    assert (outline.shape, outline.dtype) == ((3, 96, 6), ml_dtypes.bfloat16)
    got = tensors.arrays[NAME]
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.astype(np.float32), exact)
    theirs = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    assert np.array_equal(theirs.float().numpy(), exact)
    for expert in range(3):
        assert np.array_equal(tensors.piece(NAME, expert), got[expert])


def test_one_expert_takes_no_other():
    blocks, scales, exact = mxfp4(np.random.default_rng(0), 3, 6, 96)
    scales[1:] = 255
    tensors = seen(METHOD, checkpoint(blocks, scales))
    assert np.array_equal(tensors.piece(NAME, 0).astype(np.float32), exact[0])
    with pytest.raises(InputError, match="has exponent 255 in expert 2"):
        tensors.piece(NAME, 2)


def test_every_byte_with_every_scale():
    """bfloat16 holds the smallest, which no normal float32 is, and the largest exactly."""
    scales = np.arange(253, dtype=np.uint8).reshape(1, 253, 1)
    for start in range(0, 256, 16):
        octets = np.arange(start, start + 16)
        blocks = np.broadcast_to(octets.astype(np.uint8), (1, 253, 1, 16))
        got = seen(METHOD, checkpoint(blocks, scales)).arrays[NAME][0].astype(np.float64)
        signs = [1.0, -1.0]
        sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        values = [
            signs[nibble >> 3] * sizes[nibble & 7]
            for octet in octets.tolist()
            for nibble in (octet % 16, octet // 16)
        ]
        want = np.outer(values, 2.0 ** (np.arange(253.0) - 127))
        assert np.array_equal(got, want)


def test_the_first_nibble_is_the_low_one():
    blocks = np.zeros((1, 1, 1, 16), np.uint8)
    blocks[0, 0, 0, 0] = 0x72  # 1 and 6
    got = seen(METHOD, checkpoint(blocks, np.full((1, 1, 1), 127, np.uint8))).arrays[NAME]
    assert got[0, :3, 0].tolist() == [1, 6, 0]


@pytest.mark.parametrize("exponent", [253, 254, 255])
def test_scales_that_make_no_numbers(exponent):
    blocks, scales, _ = mxfp4(np.random.default_rng(0), 2, 2, 32)
    scales[1, 0, 0] = exponent
    tensors = seen(METHOD, checkpoint(blocks, scales))
    assert np.isfinite(tensors.piece(NAME, 0).astype(np.float32)).all()
    with pytest.raises(InputError, match=rf"{NAME}_scales has exponent {exponent} in expert 1"):
        tensors.arrays[NAME]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({f"{NAME}_scales": None}, f"is stored without {NAME}_scales"),
        ({f"{NAME}_scales": np.zeros((2, 2, 2), np.uint8)}, r"has shape \[2, 2, 2\], expected"),
        ({f"{NAME}_scales": np.zeros((2, 2, 1), np.float32)}, "is stored as F32, expected U8"),
        ({f"{NAME}_blocks": np.zeros((2, 2, 1, 8), np.uint8)}, "expected a last axis of 16"),
        ({f"{NAME}_blocks": np.zeros((2, 2, 16), np.uint8)}, "expected 4 axes"),
        ({NAME: np.zeros(3, np.float32)}, "is stored both plain and quantized"),
    ],
)
def test_tensors_that_do_not_fit(change, why):
    blocks, scales, _ = mxfp4(np.random.default_rng(0), 2, 2, 32)
    tensors = checkpoint(blocks, scales) | change
    with pytest.raises(InputError, match=why) as problem:
        seen(METHOD, {name: array for name, array in tensors.items() if array is not None})
    assert "model.safetensors: tensor " + NAME in str(problem.value)
