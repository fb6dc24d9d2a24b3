"""MXFP4 as stored by gpt-oss: experts of 4-bit floats in blocks of 32 with a power-of-two scale.

    gate_up_proj_blocks  uint8 [E, out, G, 16]   two values per byte, low nibble first
    gate_up_proj_scales  uint8 [E, out, G]       exponents with a bias of 127
    -> gate_up_proj      bfloat16 [E, 32 G, out]

A value is e2m1 (sign, two bits of exponent, one of mantissa) times 2 ** (scale - 127): the OCP
Microscaling Formats (MX) Specification 1.0, tables 5 and 7. bfloat16 represents each of them
exactly. The result is transposed to the layout of the experts in transformers.
"""

import ml_dtypes
import numpy as np

from jaxscore.device import dots
from jaxscore.errors import InputError
from jaxscore.models.weights.quantization.dequantize import (
    Computed,
    Found,
    Parts,
    Scheme,
    block_form,
    block_rows,
    find_modules,
)
from jaxscore.models.weights.quantization.settings import Settings
from jaxscore.models.weights.tensor_files import Tensors

READ = frozenset({"quant_method"})
# Unquantized modules are recognised by their tensors' names; `dequantize` selects how transformers
# runs the model.
INERT = frozenset({"modules_to_not_convert", "dequantize"})
BLOCKS, SCALES = "_blocks", "_scales"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BIAS = 127
MAX_EXPONENT = 252  # 6 * 2 ** (253 - 127) exceeds the largest float32, and 255 is NaN
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def _table() -> np.ndarray:
    """Return uint64 [256]: the two values of each byte as adjacent float32."""
    values = np.array([*E2M1, *(-value for value in E2M1)], np.float32)
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=-1).view(np.uint64)[:, 0]


TABLE = _table()


def read(settings: Settings) -> Scheme:
    """Check the settings and return the scheme.

    Raises:
        InputError: a setting is not supported.
    """
    settings.refuse_others(READ, INERT)
    return Scheme("mxfp4", "4-bit floats in blocks of 32", "", _find, _expected_form)


def _expected_form(name: str, is_transposed: bool, columns: int) -> dots.Form | None:
    """Return the form of experts, the only tensors that are transposed when unquantized."""
    return block_form(dots.E2M1, columns, 32, has_minimum=False) if is_transposed else None


def _find(tensors: Tensors) -> Found:
    return find_modules(tensors, BLOCKS, "", _computed)


def _computed(parts: Parts, name: str) -> Computed:
    where = parts.where
    blocks = parts.take(name + BLOCKS, ("U8",), 4)
    if blocks.shape[-1] != 16:
        shape = list(blocks.shape)
        raise parts.refusal(name + BLOCKS, f"has shape {shape}, expected a last axis of 16")
    scales = parts.shaped(name + SCALES, ("U8",), blocks.shape[:-1])
    n_experts, n_out, n_groups, _ = blocks.shape
    n_in = n_groups * 32

    def exponents_of(index: int | None) -> np.ndarray:
        exponents = scales[index]
        if exponents.max(initial=0) > MAX_EXPONENT:
            raise InputError(
                f"{where}: tensor {name}{SCALES} has exponent {exponents.max()} in expert {index}, "
                f"expected at most {MAX_EXPONENT}, since larger ones exceed float32; the "
                "checkpoint is damaged, fetch it again"
            )
        return exponents

    def expert(index: int) -> np.ndarray:
        """Compute one expert, bfloat16 [in, out]."""
        exponents = exponents_of(index).astype(np.int32)
        values = TABLE[blocks[index]].view(np.float32).reshape(n_out, n_groups, 32)
        values *= np.ldexp(np.float32(1), exponents - BIAS)[..., None]
        return values.reshape(n_out, n_in).astype(BFLOAT16).T

    def all_experts() -> np.ndarray:
        # Filled as [E, out, in], the memory order of `expert`; one expert at a time is float32.
        out = np.empty((n_experts, n_out, n_in), BFLOAT16)
        for index in range(n_experts):
            out[index] = expert(index).T
        return out.transpose(0, 2, 1)

    rows = block_rows(
        dots.E2M1,
        (n_out, n_in),
        (1, 32),
        lambda index: blocks[index].reshape(n_out, -1),
        exponents_of,
        is_transposed=True,
    )
    return Computed(where, (n_experts, n_in, n_out), BFLOAT16, all_experts, expert, rows)
