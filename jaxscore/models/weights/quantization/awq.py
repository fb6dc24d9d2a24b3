"""AWQ in its "gemm" version: 4-bit values in 32-bit words along the output channels.

    q_proj.qweight  I32 [in, out / 8]
    q_proj.qzeros   I32 [G, out / 8]
    q_proj.scales   float [G, out]
    -> q_proj.weight, float32 [out, in]: (value - zero) * scale

The nibbles of a word, lowest first, belong to the output channels 0 2 4 6 1 3 5 7 (AutoAWQ,
`awq/modules/linear/gemm.py`, `order_map`).
"""

import numpy as np

from jaxscore.models.weights.quantization.dequantize import (
    FLOAT32,
    Computed,
    Found,
    Parts,
    Scheme,
    find_modules,
    good_scales,
    integer_rows,
    scaled,
    unpacked,
)
from jaxscore.models.weights.quantization.settings import Settings
from jaxscore.models.weights.tensor_files import Tensors

READ = frozenset("quant_method bits group_size zero_point version format pack_dtype".split())
# Settings of calibration and of kernels. Unquantized modules are recognised by their tensors'
# names, and zero points are stored even if `sym` is true.
INERT = frozenset(
    "backend do_fuse exllama_config fuse_max_seq_len lm_head meta modules_to_fuse "
    "modules_to_not_convert sym".split()
)
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # output channel of each nibble
FLOATS = ("F16", "BF16", "F32")


def read(settings: Settings) -> Scheme:
    """Check the settings and return the scheme.

    Raises:
        InputError: a setting is not supported.
    """
    settings.refuse_others(READ, INERT)
    settings.one_of("bits", (4,))
    settings.one_of("pack_dtype", ("int32",), "int32")
    for name in ("version", "format"):  # newer writers use `format`
        settings.one_of(name, ("gemm", "GEMM"), "gemm")
    settings.one_of("zero_point", (True,), True)
    group_size = settings.size("group_size", 128)

    def find(tensors: Tensors) -> Found:
        return find_modules(
            tensors,
            ".qweight",
            ".weight",
            lambda parts, module: _computed(parts, module, group_size),
        )

    return Scheme("awq", "4-bit integers", "", find)


def _computed(parts: Parts, module: str, group_size: int) -> Computed:
    name = f"{module}.qweight"
    words = parts.take(name, ("I32",), 2)
    n_in, n_words = words.shape
    n_out = n_words * 8
    size = n_in if group_size == -1 else group_size
    if n_in == 0 or n_out == 0 or n_in % size:
        raise parts.refusal(
            name, f"has {n_in} input channels, which is not a multiple of the group size {size}"
        )
    n_groups = n_in // size
    packed_zeros = parts.shaped(f"{module}.qzeros", ("I32",), (n_groups, n_words))
    scales = parts.shaped(f"{module}.scales", FLOATS, (n_groups, n_out))

    def compute() -> np.ndarray:
        factors = good_scales(parts, f"{module}.scales", scales, signed=True)
        return scaled(ordered(words), factors, ordered(packed_zeros)).T

    def signed(packed_words: np.ndarray) -> np.ndarray:
        return ordered(packed_words).T.view(np.int8) - np.int8(8)

    rows = integer_rows(
        4,
        (n_out, n_in),
        (1, size),
        lambda: signed(words),
        lambda: signed(packed_zeros),
        lambda: good_scales(parts, f"{module}.scales", scales, signed=True).T,
        exact=scales.dtype != FLOAT32,
    )
    return Computed(parts.where, (n_out, n_in), FLOAT32, compute, rows=rows)


def ordered(words: np.ndarray) -> np.ndarray:
    """Unpack int32 words [..., n] to uint8 [..., 8 * n] in the order of output channels."""
    nibbles = unpacked(words, 4, words.shape[-1] * 8).reshape(*words.shape, 8)
    out = np.empty_like(nibbles)
    out[..., list(ORDER)] = nibbles
    return out.reshape(*words.shape[:-1], -1)
