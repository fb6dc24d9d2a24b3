"""GPTQ: values of 2, 3, 4 or 8 bits in 32-bit words along the input channels.

    q_proj.qweight  I32 [in * bits / 32, out]
    q_proj.qzeros   I32 [G, out * bits / 32]
    q_proj.scales   float [G, out]
    q_proj.g_idx    I32 [in], the group of each input channel
    -> q_proj.weight, float32 [out, in]: (value - zero) * scale

`checkpoint_format` "gptq" stores zero points minus 1, "gptq_v2" stores them unchanged (AutoGPTQ's
pull request 640). Readers of "gptq" disagree whether a stored zero point of all ones is 0 or
2 ** bits, so it is refused. Some "gptq_v2" files are labelled "gptq" (vLLM's pull request 38966).
Symmetric checkpoints reveal this, since their zero points are known. AutoGPTQ adds a bias to every
module, all zeros if the model has none (its issue 555).
"""

import dataclasses
from typing import NamedTuple

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
    unpacked_rows,
)
from jaxscore.models.weights.quantization.settings import Settings
from jaxscore.models.weights.tensor_files import Tensors

READ = frozenset(
    "quant_method method bits group_size sym desc_act checkpoint_format format pack_dtype".split()
)
# Settings of calibration and of kernels. Unquantized modules are recognised by their tensors.
INERT = frozenset(
    "act_group_aware amp autoround_version backend batch_size block_name_to_quantize "
    "cache_block_outputs damp_auto_increment damp_percent data_type dataset disable_exllama "
    "enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config "
    "gradient_accumulate_steps iters lm_head low_gpu_mem_usage lr max_input_length meta minmax_lr "
    "model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block "
    "modules_in_block_to_quantize mse nsamples pad_token_id quantizer scale_dtype seqlen "
    "static_groups tokenizer train_bs true_sequential use_cuda_fp16 use_exllama".split()
)
BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")
FLOATS = ("F16", "BF16", "F32")


class _Form(NamedTuple):
    """Storage settings; `group_size` -1 means one group, and `plus` is added to zero points."""

    bits: int
    group_size: int
    symmetric: bool
    reordered: bool
    plus: int


def read(settings: Settings) -> Scheme:
    """Check the settings and return the scheme.

    Raises:
        InputError: a setting is not supported.
    """
    settings.refuse_others(READ, INERT)
    settings.one_of("method", ("gptq",), "gptq")
    settings.one_of("pack_dtype", ("int32",), "int32")
    # Newer writers call it `format`; some write both.
    version = settings.one_of("checkpoint_format", FORMATS, settings.values.get("format", "gptq"))
    settings.one_of("format", (version,), version)
    form = _Form(
        bits=settings.one_of("bits", BITS),
        group_size=settings.size("group_size", 128),
        symmetric=settings.one_of("sym", (True, False), True),
        reordered=settings.one_of("desc_act", (True, False), False),
        plus=version == "gptq",
    )
    return Scheme("gptq", f"{form.bits}-bit integers", "", lambda tensors: _find(tensors, form))


def _find(tensors: Tensors, form: _Form) -> Found:
    quantized = find_modules(
        tensors, ".qweight", ".weight", lambda parts, module: _computed(parts, module, form)
    )
    biases = [name.removesuffix("weight") + "bias" for name in quantized.computed]
    idle = frozenset(
        name for name in biases if name in tensors.stored and not tensors.stored[name].any()
    )
    return dataclasses.replace(quantized, idle=idle)


def _computed(parts: Parts, module: str, form: _Form) -> Computed:
    name = f"{module}.qweight"
    words = parts.take(name, ("I32",), 2)
    n_in, remainder = divmod(words.shape[0] * 32, form.bits)
    n_out = words.shape[1]
    if remainder or n_in == 0 or n_out == 0 or n_out * form.bits % 32:
        raise parts.refusal(
            name, f"has shape {list(words.shape)}, which is impossible with {form.bits} bits"
        )
    size = n_in if form.group_size == -1 else form.group_size
    if n_in % size:
        raise parts.refusal(
            name, f"has {n_in} input channels, which is not a multiple of the group size {size}"
        )
    n_groups = n_in // size
    packed_zeros = parts.shaped(f"{module}.qzeros", ("I32",), (n_groups, n_out * form.bits // 32))
    scales = parts.shaped(f"{module}.scales", FLOATS, (n_groups, n_out))
    g_idx = f"{module}.g_idx"
    stored_groups = None
    if form.reordered or parts.has(g_idx):
        stored_groups = parts.shaped(g_idx, ("I32",), (n_in,))

    def good_factors() -> np.ndarray:
        return good_scales(parts, f"{module}.scales", scales, signed=True)

    def zero_points() -> np.ndarray:
        return _zeros(parts, module, unpacked(packed_zeros, form.bits, n_out), form)

    def compute() -> np.ndarray:
        factors, zeros = good_factors(), zero_points()
        groups = None if stored_groups is None else _groups(parts, g_idx, stored_groups, form, size)
        return scaled(unpacked_rows(words, form.bits), factors, zeros, groups).T

    middle = 1 << (form.bits - 1)

    def values() -> np.ndarray:
        if form.symmetric:
            zero_points()  # checks them
        return (unpacked_rows(words, form.bits).T - np.uint8(middle)).view(np.int8)

    rows = None
    if stored_groups is None or np.array_equal(stored_groups, np.arange(n_in) // size):
        rows = integer_rows(
            form.bits,
            (n_out, n_in),
            (1, size),
            values,
            None if form.symmetric else lambda: zero_points().T - middle,
            lambda: good_factors().T,
            exact=scales.dtype != FLOAT32,
        )
    return Computed(parts.where, (n_out, n_in), FLOAT32, compute, rows=rows)


def _zeros(parts: Parts, module: str, stored: np.ndarray, form: _Form) -> np.ndarray:
    name, middle = f"{module}.qzeros", 1 << (form.bits - 1)
    zeros = stored.astype(np.int16) + form.plus
    if form.symmetric and (zeros != middle).any():
        raise parts.refusal(
            name,
            f"has zero point {zeros[zeros != middle][0]}, expected {middle} because sym is true; "
            f"if the file is in fact {FORMATS[form.plus]!r}, correct checkpoint_format in "
            "config.json",
        )
    if (zeros >> form.bits).any():
        raise parts.refusal(
            name,
            "has a zero point that readers of checkpoint_format 'gptq' take for 0 or for "
            f"{1 << form.bits}; save the model as 'gptq_v2'",
        )
    return zeros


def _groups(
    parts: Parts, name: str, stored: np.ndarray, form: _Form, size: int
) -> np.ndarray | None:
    """Return the group of each input channel, or None for consecutive groups."""
    n_groups = len(stored) // size
    if stored.min() < 0 or stored.max() >= n_groups:
        raise parts.refusal(
            name, f"has groups {stored.min()} to {stored.max()}, expected 0 to {n_groups - 1}"
        )
    if np.array_equal(stored, np.arange(len(stored)) // size):
        return None
    if not form.reordered:
        raise parts.refusal(
            name,
            f"has groups that are not {size} consecutive channels, as desc_act false requires",
        )
    return stored
