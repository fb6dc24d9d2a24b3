"""8-bit floats with a float scale for each block, or for the whole tensor.

    q_proj.weight            F8_E4M3 or F8_E5M2 [..., out, in]
    q_proj.weight_scale_inv  float [..., ceil(out / 128), ceil(in / 128)], or one number
    -> q_proj.weight         float32: each value times the scale of its block

Despite its name the scale is a factor, not a divisor (DeepSeek-V3, "README_WEIGHTS.md", section
"FP8 weight documentation"). The last block of a row or column may be incomplete.
"""

import re

import numpy as np

from jaxscore.device.dots import E4M3, E5M2, Form
from jaxscore.models.weights.quantization.dequantize import (
    FLOAT32,
    Computed,
    Found,
    Parts,
    Scheme,
    block_form,
    block_rows,
    good_scales,
    n_blocks,
    times_blocks,
)
from jaxscore.models.weights.quantization.settings import Settings
from jaxscore.models.weights.tensor_files import DTYPES, Tensors

READ = frozenset(
    "quant_method activation_scheme weight_block_size fmt scale_fmt expert_dtype".split()
)
# Unquantized modules are recognised by their tensors' types. `dequantize` selects how transformers
# runs the model, and `kv_cache_scheme` how servers store keys and values.
INERT = frozenset(
    "modules_to_not_convert modules_to_convert ignored_layers dequantize kv_cache_scheme".split()
)
KINDS = ("F8_E4M3", "F8_E5M2")
SCALE_KINDS = ("F32", "BF16", "F16", "F8_E8M0")
SCALES = ("_scale_inv", "_scale")
ROUNDED = tuple(  # scales of activations, keys and values, which inference servers quantize
    ".input_scale .activation_scale .output_scale .k_scale .v_scale .q_scale".split()
)
BLOCK = (128, 128)  # default of transformers' FineGrainedFP8Config
LEFT_OUT = "activations are not rounded to 8 bits, as inference servers may do"


def read(settings: Settings) -> Scheme:
    """Check the settings and return the scheme.

    Raises:
        InputError: a setting is not supported.
    """
    settings.refuse_others(READ, INERT)
    settings.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
    fmt = settings.one_of("fmt", ("e4m3", "float8_e4m3fn", "e5m2", "float8_e5m2"), "e4m3")
    settings.one_of("scale_fmt", ("float", "ue8m0"), "float")
    settings.one_of("expert_dtype", ("fp8",), "fp8")
    block = None
    if settings.values.get("weight_block_size", BLOCK) is not None:
        block = settings.blocks("weight_block_size", BLOCK)
    lists = [settings.values.get(name) for name in ("modules_to_not_convert", "ignored_layers")]
    modules = [str(module) for names in lists if isinstance(names, list) for module in names]
    # Names in wrappers contain `language_model.`, and `*` is a wildcard.
    patterns = [
        re.escape(module.replace("language_model.", "")).replace(r"\*", ".*") for module in modules
    ]
    is_plain = re.compile(rf"(^|\.)({'|'.join(patterns)})(\.|$)").search

    def expected_form(name: str, is_transposed: bool, columns: int) -> Form | None:
        module = name.removesuffix(".weight")
        if is_transposed or (patterns and is_plain(module)):
            return None
        stored = E5M2 if "e5m2" in fmt else E4M3
        size = columns if block is None else block[1]
        return block_form(stored, columns, size, has_minimum=False)

    return Scheme(
        "fp8", "8-bit floats", LEFT_OUT, lambda tensors: find(tensors, block), expected_form
    )


def find(tensors: Tensors, block: tuple[int, int] | None) -> Found:
    """Find all tensors of 8-bit floats and their scales.

    Raises:
        InputError: a scale is missing or has the wrong shape.
    """
    computed: dict[str, Computed] = {}
    used = {name for name in tensors.stored if name.endswith(ROUNDED)}
    for name, array in tensors.stored.items():
        if array.dtype in [DTYPES[dtype] for dtype in KINDS]:
            parts = Parts(tensors, name)
            computed[name] = _computed(parts, name, block)
            used |= parts.used
    return Found(computed, frozenset(used))


def _computed(parts: Parts, name: str, block: tuple[int, int] | None) -> Computed:
    array = parts.take(name, KINDS)
    scale_name = next((name + end for end in SCALES if parts.has(name + end)), name + SCALES[0])
    scales = parts.take(scale_name, SCALE_KINDS)
    is_scalar = scales.shape in ((), (1,))
    if not is_scalar:
        if block is None or array.ndim < 2:
            raise parts.refusal(
                scale_name, f"has shape {list(scales.shape)}, expected one number for {name}"
            )
        parts.shaped(scale_name, SCALE_KINDS, n_blocks(array.shape, block))

    def product(stored: np.ndarray, stored_scales: np.ndarray) -> np.ndarray:
        factors = good_scales(parts, scale_name, stored_scales)
        values = widened(stored)
        if is_scalar or block is None:
            values *= factors.reshape(())
            return values
        return times_blocks(values, factors, block)

    def piece(index: int) -> np.ndarray:
        return product(array[index], scales if is_scalar else scales[index])

    def values_at(index: int | None) -> np.ndarray:
        stored = array.view(np.uint8)
        return stored if index is None else stored[index]

    def scales_at(index: int | None) -> np.ndarray:
        stored = scales if is_scalar or index is None else scales[index]
        factors = good_scales(parts, scale_name, stored)
        return factors.reshape(1, 1) if is_scalar else factors

    rows = None
    if array.ndim >= 2:
        shape = (array.shape[-2], array.shape[-1])
        scale_block = shape if is_scalar or block is None else block
        rows = block_rows(array.dtype.name, shape, scale_block, values_at, scales_at)
    return Computed(
        parts.where,
        array.shape,
        FLOAT32,
        lambda: product(array, scales),
        piece if array.ndim > 2 else None,
        rows,
    )


def widened(array: np.ndarray) -> np.ndarray:
    """Convert 8-bit floats to float32 with a table, which is ten times as fast as a cast."""
    table = np.arange(256, dtype=np.uint8).view(array.dtype).astype(np.float32)
    return table[array.view(np.uint8)]
