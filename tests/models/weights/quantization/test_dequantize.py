"""Small integers out of words, and their products with scales."""

import numpy as np
import pytest

from jaxscore.models.weights.quantization.dequantize import (
    n_blocks,
    times_blocks,
    unpacked,
    unpacked_rows,
)
from tests.models.weights.quantization.packers import packed


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 7, 32, 33, 95, 96])
def test_any_number_of_any_bits(bits, count):
    values = np.random.default_rng(bits).integers(0, 1 << bits, (3, count))
    words = packed(values, bits)
    assert words.shape[1] == -(-count * bits // 32)
    got = unpacked(words, bits, count)
    assert got.dtype == np.uint8
    assert np.array_equal(got, values)
    turned = unpacked(np.asfortranarray(words), bits, count)
    assert np.array_equal(turned, values)
    if count * bits % 32 == 0:
        assert np.array_equal(unpacked_rows(words.T, bits), values.T)
        assert np.array_equal(unpacked_rows(np.ascontiguousarray(words.T), bits), values.T)


@pytest.mark.parametrize("shape", [(6, 9), (7, 10), (2, 3), (1, 1), (2, 5, 8)])
def test_blocks_that_are_cut_off(shape):
    draw = np.random.default_rng(0)
    values = draw.normal(size=shape).astype(np.float32)
    scales = draw.normal(size=n_blocks(shape, (3, 4))).astype(np.float32)
    want = np.empty_like(values)
    for *leading, i, j in np.ndindex(shape):
        want[(*leading, i, j)] = values[(*leading, i, j)] * scales[(*leading, i // 3, j // 4)]
    assert np.array_equal(times_blocks(values.copy(), scales, (3, 4)), want)
