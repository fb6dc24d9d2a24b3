"""Blocks of GGUF's types: conversion to weights, and to the arrays of `device.dots.Blocks`.

A type is described by the arrays in its blocks (layouts: ggml-common.h of ggml). Weights of all
layers are one parameter with one form: the smallest that is exact for all their types.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxscore.device.dots import FLOAT16, INT4, INT8, NESTED, PACKED, Form
from jaxscore.errors import InputError

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


Read = Callable[[np.ndarray], np.ndarray]  # reads an array from blocks uint8 [n, bytes]


class Layout(NamedTuple):
    """Layout of the blocks of one type, with functions that read their arrays.

    Attributes:
        n_bytes: the bytes of a block.
        bits: 4 if the values fit into 4 bits, otherwise 8.
        size: the number of weights of a group.
        values: reads int8 [n, block]. 4-bit values are 0 to 15 with minima, otherwise -8 to 7.
        scale: reads float16 [n, groups], or int8 if `outer` is not None.
        minimum: reads minima like `scale`; None if the type is symmetric. Minima are added.
        outer: reads float16 [n]; None if scales are not nested.
        outer_minimum: reads float16 [n]; None if minima are not nested.
    """

    n_bytes: int
    bits: int
    size: int
    values: Read
    scale: Read
    minimum: Read | None = None
    outer: Read | None = None
    outer_minimum: Read | None = None


def _bytes(start: int, stop: int, dtype: type = np.uint8) -> Read:
    """Create a reader of an array in a block."""
    return lambda blocks: np.ascontiguousarray(blocks[:, start:stop]).view(dtype)


def _float16(start: int) -> Read:
    return _bytes(start, start + 2, np.float16)


def _halves(packed: np.ndarray) -> np.ndarray:
    """Return the low nibbles of bytes [..., k], then the high ones: [..., 2 k]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _planes(packed: np.ndarray, bits: int) -> np.ndarray:
    """Split bytes [..., k] into fields of `bits` bits, lowest first: [..., 8 / bits, k]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _flat(parts: np.ndarray) -> np.ndarray:
    return parts.reshape(len(parts), -1)


def _values_4(blocks: np.ndarray, start: int) -> np.ndarray:
    return _halves(blocks[:, start : start + 16])


def _values_q4_0(blocks: np.ndarray) -> np.ndarray:
    return _values_4(blocks, 2).view(np.int8) - np.int8(8)


def _values_5(blocks: np.ndarray, start: int) -> np.ndarray:
    """Read 5-bit values: 32 fifth bits, of which bit k belongs to weight k, then the nibbles."""
    fifth = np.unpackbits(blocks[:, start : start + 4], axis=-1, bitorder="little")
    return _values_4(blocks, start + 4) | (fifth << 4)


def _values_q5_0(blocks: np.ndarray) -> np.ndarray:
    return _values_5(blocks, 2).view(np.int8) - np.int8(16)


def _values_q2_k(blocks: np.ndarray) -> np.ndarray:
    return _flat(_planes(blocks[:, 16:80].reshape(-1, 2, 32), 2))


def _values_q3_k(blocks: np.ndarray) -> np.ndarray:
    """Read 3-bit values; bit k of the mask's bytes is the third bit of weights 32k to 32k + 31."""
    low = _flat(_planes(blocks[:, 32:96].reshape(-1, 2, 32), 2))
    third = _flat(_planes(blocks[:, :32], 1))
    return (low | (third << 2)).view(np.int8) - np.int8(4)


def _values_q4_k(blocks: np.ndarray) -> np.ndarray:
    return _flat(_halves(blocks[:, 16:144].reshape(-1, 4, 32)))


def _values_q5_k(blocks: np.ndarray) -> np.ndarray:
    fifth = _flat(_planes(blocks[:, 16:48], 1))
    return _flat(_halves(blocks[:, 48:176].reshape(-1, 4, 32))) | (fifth << 4)


def _values_q6_k(blocks: np.ndarray) -> np.ndarray:
    low = _halves(blocks[:, :128].reshape(-1, 2, 64))
    high = _planes(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    return _flat(low | (high.reshape(low.shape) << 4)).view(np.int8) - np.int8(32)


def _values_iq4(blocks: np.ndarray, start: int) -> np.ndarray:
    packed = blocks[:, start:].reshape(len(blocks), -1, 16)
    return IQ4_VALUES[_flat(_halves(packed))]


def _scales_q3_k(blocks: np.ndarray) -> np.ndarray:
    low, high = _halves(blocks[:, 96:104]), _flat(_planes(blocks[:, 104:108], 2))
    return (low | (high << 4)).view(np.int8) - np.int8(32)


def _scales_k(blocks: np.ndarray, which: int) -> np.ndarray:
    """Read scales (0) or minima (1) of Q4_K and Q5_K: 8 of each in 12 bytes, 6 bits each.

    Bytes 0 to 3 and 4 to 7 have the first four in their low 6 bits, and in their high 2 bits the
    high bits of the last four, whose low nibbles are in bytes 8 to 11.
    """
    first, last = blocks[:, 4 + 4 * which : 8 + 4 * which], blocks[:, 12:16]
    low = last >> 4 if which else last & 15
    return np.concatenate([first & 63, low | ((first >> 6) << 4)], axis=-1)


def _scales_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    low = _flat(np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=-1))
    high = np.stack([(blocks[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return (low | (_flat(high) << 4)).view(np.int8) - np.int8(32)


def _negative(read: Read) -> Read:
    return lambda blocks: -read(blocks)


def _nested_minima(bits: int, values: Read, n_bytes: int) -> Layout:
    return Layout(
        n_bytes,
        bits,
        32,
        values,
        functools.partial(_scales_k, which=0),
        functools.partial(_scales_k, which=1),
        _float16(0),
        _negative(_float16(2)),
    )


LAYOUTS = {
    "Q4_0": Layout(18, 4, 32, _values_q4_0, _float16(0)),
    "Q4_1": Layout(20, 4, 32, functools.partial(_values_4, start=4), _float16(0), _float16(2)),
    "Q5_0": Layout(22, 8, 32, _values_q5_0, _float16(0)),
    "Q5_1": Layout(24, 8, 32, functools.partial(_values_5, start=4), _float16(0), _float16(2)),
    "Q8_0": Layout(34, 8, 32, _bytes(2, 34, np.int8), _float16(0)),
    "Q2_K": Layout(
        84,
        4,
        16,
        _values_q2_k,
        lambda blocks: blocks[:, :16] & 15,
        lambda blocks: blocks[:, :16] >> 4,
        _float16(80),
        _negative(_float16(82)),
    ),
    "Q3_K": Layout(110, 4, 16, _values_q3_k, _scales_q3_k, None, _float16(108)),
    "Q4_K": _nested_minima(4, _values_q4_k, 144),
    "Q5_K": _nested_minima(8, _values_q5_k, 176),
    "Q6_K": Layout(210, 8, 16, _values_q6_k, _bytes(192, 208, np.int8), None, _float16(208)),
    "IQ4_NL": Layout(18, 8, 32, functools.partial(_values_iq4, start=2), _float16(0)),
    "IQ4_XS": Layout(
        136, 8, 32, functools.partial(_values_iq4, start=8), _scales_iq4_xs, None, _float16(0)
    ),
}


def form_of(type_name: str, columns: int) -> Form | None:
    """Return the smallest form that represents a type exactly, or None."""
    if (layout := LAYOUTS.get(type_name)) is None:
        return None
    value_type = INT4 if layout.bits == 4 else INT8
    scale = FLOAT16 if layout.outer is None else NESTED
    return Form(value_type, layout.size, layout.minimum is not None, scale, columns)


def block_weights(rows: np.ndarray, type_name: str) -> np.ndarray:
    """Dequantize uint8 [rows, bytes] to float32 [rows, columns], bit for bit like `gguf.quants`.

    The function makes six passes, so it is fastest on a few rows that fit into a core's cache.
    """
    layout = LAYOUTS[type_name]
    blocks = rows.reshape(-1, layout.n_bytes)
    with np.errstate(over="ignore", invalid="ignore"):  # scales of damaged files
        scale = _times(layout.scale(blocks), layout.outer, blocks)
        weights = layout.values(blocks).astype(np.float32).reshape(*scale.shape, -1)
        weights *= scale[..., None]
        if layout.minimum is not None:
            weights += _times(layout.minimum(blocks), layout.outer_minimum, blocks)[..., None]
    return weights.reshape(len(rows), -1)


def _times(numbers: np.ndarray, outer: Read | None, blocks: np.ndarray) -> np.ndarray:
    """Return float32 scales or minima [n, groups]."""
    wide = numbers.astype(np.float32)
    return wide if outer is None else wide * outer(blocks).astype(np.float32)


def block_values(rows: np.ndarray, type_name: str, form: Form) -> np.ndarray:
    """Return `Blocks.values`: int8 [rows, columns], or uint8 [rows, columns / 2] with 4 bits."""
    layout = LAYOUTS[type_name]
    values = layout.values(rows.reshape(-1, layout.n_bytes))
    if form.quant_type == INT8:
        return values.view(np.int8).reshape(len(rows), -1)
    codes = values.view(np.uint8) & np.uint8(15)
    return packed(codes ^ np.uint8(8) if _is_shifted(layout, form) else codes, len(rows))


def packed(codes: np.ndarray, n_rows: int) -> np.ndarray:
    """Pack 4-bit codes of rows to uint8 [rows, columns / 2]; for the order see `dots.PACKED`."""
    halves = codes.reshape(-1, 2, PACKED // 2)
    return (halves[:, 0] | halves[:, 1] << np.uint8(4)).reshape(n_rows, -1)


def block_scales(rows: np.ndarray, type_name: str, form: Form) -> np.ndarray:
    """Return `Blocks.scale` [rows, groups]."""
    layout = LAYOUTS[type_name]
    scales = layout.scale(rows.reshape(-1, layout.n_bytes))
    return _per_group(scales, len(rows), layout, form)


def block_minima(rows: np.ndarray, type_name: str, form: Form) -> np.ndarray:
    """Return `Blocks.minimum` [rows, groups]; symmetric types get minima that undo the shift."""
    layout = LAYOUTS[type_name]
    blocks = rows.reshape(-1, layout.n_bytes)
    if layout.minimum is not None:
        minima = layout.minimum(blocks)
    else:
        minima = layout.scale(blocks)
        if layout.outer is None:
            minima = _times_shift(minima, layout, form)
    return _per_group(minima, len(rows), layout, form)


def block_outer_scales(rows: np.ndarray, type_name: str, form: Form) -> np.ndarray:
    """Return `Blocks.outer_scale` [rows, columns / 256]."""
    layout = LAYOUTS[type_name]
    assert layout.outer is not None
    return layout.outer(rows.reshape(-1, layout.n_bytes)).view(np.uint16).reshape(len(rows), -1)


def block_outer_minima(rows: np.ndarray, type_name: str, form: Form) -> np.ndarray:
    """Return `Blocks.outer_minimum` [rows, columns / 256]."""
    layout = LAYOUTS[type_name]
    blocks = rows.reshape(-1, layout.n_bytes)
    if layout.outer_minimum is not None:
        outer = layout.outer_minimum(blocks)
    else:
        assert layout.outer is not None
        outer = _times_shift(layout.outer(blocks), layout, form)
    return outer.view(np.uint16).reshape(len(rows), -1)


READ_FIELD: dict[str, Callable[[np.ndarray, str, Form], np.ndarray]] = {
    "values": block_values,
    "scale": block_scales,
    "minimum": block_minima,
    "outer_scale": block_outer_scales,
    "outer_minimum": block_outer_minima,
}


def _is_shifted(layout: Layout, form: Form) -> bool:
    """Return True if a symmetric type's values -8 to 7 become 0 to 15, as the form has minima."""
    return form.quant_type == INT4 and form.has_minimum and layout.minimum is None


def _times_shift(scales: np.ndarray, layout: Layout, form: Form) -> np.ndarray:
    """Return the minima that exactly undo the shift of a symmetric type's values.

    Raises:
        InputError: a scale is above 8,188, so that 8 times the scale exceeds float16.
    """
    if not _is_shifted(layout, form):
        return np.zeros_like(scales)
    with np.errstate(over="ignore"):
        minima = scales * np.float16(-8)
    if not np.isfinite(minima).all():
        largest = np.abs(scales).max()
        raise InputError(
            f"a block has the scale {largest}, expected at most 8,188 if other layers have minima; "
            "leave out --quantize stored"
        )
    return minima


def _per_group(numbers: np.ndarray, n_rows: int, layout: Layout, form: Form) -> np.ndarray:
    """Convert numbers per group of a type to the form's groups, which may be smaller."""
    bits = numbers.view(np.int8 if form.scale == NESTED else np.uint16).reshape(n_rows, -1)
    return np.repeat(bits, layout.size // form.size, axis=1) if layout.size > form.size else bits
