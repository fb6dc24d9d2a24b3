"""Values of GGUF tensors, and the layouts that conversion to GGUF changes, with their inverses.

The functions of a layout take and return values with the axes of the checkpoint: [out, in] for a
matrix, [E, out, in] for experts.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxscore.device.dots import Form
from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile, StoredTensor
from jaxscore.models.weights.filling import write_rows
from jaxscore.models.weights.gguf_blocks import LAYOUTS, READ_FIELD, block_weights, form_of
from jaxscore.models.weights.tensor_files import StoredRows

PLAIN = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def values_of(file: GgufFile, name: str) -> np.ndarray:
    """Return a tensor's values, in float32 if it is quantized, otherwise in its stored type.

    Raises:
        InputError: the type needs the package `gguf`, which is not installed.
    """
    tensor = file.tensors[name]
    return _decode(tensor, tensor.shape)


def piece_of(file: GgufFile, name: str, index: int) -> np.ndarray:
    """Return `values_of(file, name)[index]` without reading the other values."""
    entry = entry_of(file.tensors[name], index)
    return _decode(entry, entry.shape)


def rows_of(
    tensor: StoredTensor, change: Callable[[np.ndarray], np.ndarray] | None = None
) -> StoredRows | None:
    """Return a matrix's rows as stored, or None if it is not a matrix in blocks.

    Args:
        change: a permutation of rows to apply.
    """
    if len(tensor.shape) != 2 or tensor.type.name in PLAIN:
        return None

    def read(field: str, index: int | None) -> np.ndarray:
        rows = tensor.data.reshape(tensor.shape[0], -1)
        return rows if change is None else change(rows)

    def convert(rows: np.ndarray, field: str, form: Form) -> np.ndarray:
        return READ_FIELD[field](rows, tensor.type.name, form)

    form = form_of(tensor.type.name, tensor.shape[1])
    return StoredRows(form, read, convert, _dequantizer(tensor, ""))


def entry_of(tensor: StoredTensor, index: int) -> StoredTensor:
    """Return one entry along a tensor's first axis."""
    n_bytes = len(tensor.data) // tensor.shape[0]
    data = tensor.data[index * n_bytes : (index + 1) * n_bytes]
    return tensor._replace(shape=tensor.shape[1:], data=data)


def dtype_of(tensor: StoredTensor) -> np.dtype:
    """Return the dtype of a tensor's values."""
    return PLAIN.get(tensor.type.name, np.dtype(np.float32))


def check_decoder(file: GgufFile) -> None:
    """Require the package `gguf` if a tensor's type needs it.

    Raises:
        InputError: it is not installed.
    """
    for name, tensor in file.tensors.items():
        if tensor.type.name not in PLAIN:
            _dequantizer(tensor, name)


def _decode(tensor: StoredTensor, shape: tuple[int, ...]) -> np.ndarray:
    if tensor.type.name in PLAIN:
        return tensor.data.view(PLAIN[tensor.type.name]).reshape(shape)
    rows = tensor.data.reshape(math.prod(shape[:-1]), -1)
    values = np.empty((len(rows), shape[-1]), np.float32)
    write_rows(rows, _dequantizer(tensor, ""), values)
    return values.reshape(shape)


def _dequantizer(tensor: StoredTensor, name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from a tensor's rows of bytes [N, B] to float32 weights [N, columns]."""
    if tensor.type.name in LAYOUTS:
        return functools.partial(block_weights, type_name=tensor.type.name)
    try:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise InputError(
            f"{tensor.where}: tensor {name} is stored as {tensor.type.name}, which needs the "
            "package gguf: pip install gguf"
        ) from None
    try:
        quant_type = GGMLQuantizationType[tensor.type.name]
        dequantize(np.zeros((1, tensor.type.n_bytes), np.uint8), quant_type)
    except (KeyError, NotImplementedError):
        raise InputError(
            f"{tensor.where}: tensor {name} is stored as {tensor.type.name}, which the installed "
            "package gguf does not read: pip install --upgrade gguf"
        ) from None

    def decode(rows: np.ndarray) -> np.ndarray:
        weights: np.ndarray = dequantize(rows, quant_type)
        return weights

    return decode


Shape = tuple[int, ...]


class Recurrent(NamedTuple):
    """Sizes of recurrent layers.

    Attributes:
        groups: the number of key heads.
        key_rows: the rows of all key heads together.
        values: the number of value heads.
    """

    groups: int
    key_rows: int
    values: int


class Heads(NamedTuple):
    """Numbers of query heads and of key-value heads in each attention layer of a file."""

    queries: int
    keys: int
    recurrent: Recurrent | None = None


class Layout(NamedTuple):
    """Conversion of one stored tensor to the checkpoint's layout.

    Attributes:
        change: a function that converts the values.
        shape: a function from the stored shape to the result's.
        is_float32: if True, the result is float32 for every stored type.
        keeps_rows: if True, `change` only permutes rows, so that it also works on rows of bytes.
    """

    change: Callable[[np.ndarray, Heads], np.ndarray]
    shape: Callable[[Shape], Shape] = lambda shape: shape
    is_float32: bool = False
    keeps_rows: bool = False


class Joined(NamedTuple):
    """Conversion of several stored tensors of a layer to one tensor of the checkpoint.

    Attributes:
        parts: the names in the file, without the layer.
        join: a function that joins the values of the parts, which have one dtype.
        shape: a function from the stored shapes to the result's.
        has_pieces: if True, `join` also works on single entries along the first axis.
        n_axes: the number of axes of each part.
    """

    parts: tuple[str, ...]
    join: Callable[[Sequence[np.ndarray], Heads], np.ndarray]
    shape: Callable[[Sequence[Shape]], Shape]
    has_pieces: bool = True
    n_axes: int = 3


def unpermute(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """Reorder rows of queries or keys from [H, half, 2] to Hugging Face's [H, 2, half].

    llama.cpp rotates the pairs (2i, 2i + 1), Hugging Face the pairs (i, i + n/2).
    """
    half = rows.shape[0] // n_heads // 2
    return rows.reshape(n_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _by_groups(rows: np.ndarray, heads: Heads) -> np.ndarray:
    """Reorder [q; k; v] by groups: the query heads of a group, then its key and value head."""
    width = rows.shape[0] // (heads.queries + 2 * heads.keys)
    ends = [heads.queries * width, (heads.queries + heads.keys) * width]
    groups = [
        section.reshape(heads.keys, -1, *rows.shape[1:]) for section in np.split(rows, ends, axis=0)
    ]
    return np.concatenate(groups, axis=1).reshape(rows.shape)


def _alternating(parts: Sequence[np.ndarray], _: Heads) -> np.ndarray:
    """Interleave two vectors [..., n] to [..., 2n]."""
    return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)


def _transposed(values: np.ndarray) -> np.ndarray:
    return values.swapaxes(-1, -2)


def _key_value_up(parts: Sequence[np.ndarray], _: Heads) -> np.ndarray:
    """Join [H, rank, k] and [H, v, rank] to rows of k, then v, of each head: [H (k + v), rank]."""
    keys, values = parts
    return np.concatenate([_transposed(keys), values], axis=1).reshape(-1, keys.shape[1])


def _by_keys(rows: np.ndarray, heads: Heads) -> np.ndarray:
    """Reorder value heads from [values / groups, groups] to [groups, values / groups]."""
    sizes = _recurrent(heads)
    tiled = rows.reshape(sizes.values // sizes.groups, sizes.groups, -1, *rows.shape[1:])
    return tiled.swapaxes(0, 1).reshape(rows.shape)


def _last_by_keys(rows: np.ndarray, heads: Heads) -> np.ndarray:
    """Apply `_by_keys` to the rows after those of queries and keys."""
    start = 2 * _recurrent(heads).key_rows
    return np.concatenate([rows[:start], _by_keys(rows[start:], heads)])


def _log_rates(values: np.ndarray) -> np.ndarray:
    """Return x of values -exp(x), float32."""
    logarithms: np.ndarray = np.log(-values.astype(np.float64)).astype(np.float32)
    return logarithms


def _recurrent(heads: Heads) -> Recurrent:
    assert heads.recurrent is not None, "a layout of recurrent layers"
    return heads.recurrent


def _grouped_projection(parts: Sequence[np.ndarray], heads: Heads) -> np.ndarray:
    """Join [q; k; v] and z to q, k, v and z of each key head."""
    sizes, (qkv, z) = _recurrent(heads), parts
    rows = [*np.split(qkv, [sizes.key_rows, 2 * sizes.key_rows]), z]
    by_head = [section.reshape(sizes.groups, -1, z.shape[1]) for section in rows]
    return np.concatenate(by_head, axis=1).reshape(-1, z.shape[1])


QUERIES = Layout(lambda rows, heads: unpermute(rows, heads.queries), keeps_rows=True)
KEYS = Layout(lambda rows, heads: unpermute(rows, heads.keys), keeps_rows=True)
MINUS_ONE = Layout(lambda scales, _: scales.astype(np.float32) - np.float32(1), is_float32=True)
GROUPS = Layout(_by_groups, keeps_rows=True)
TRANSPOSED = Layout(lambda values, _: _transposed(values), lambda shape: shape[::-1])
ROW = Layout(lambda values, _: values.reshape(1, -1), lambda shape: (1, math.prod(shape)))
FLAT = Layout(lambda values, _: values.reshape(-1), lambda shape: (math.prod(shape),))
TAPS = Layout(lambda rows, _: rows[:, None], lambda shape: (shape[0], 1, *shape[1:]))
# llama.cpp stores -exp(A_log); inverting it gives A_log up to float32 rounding.
LOG_RATES = Layout(lambda values, _: _log_rates(values), is_float32=True)
FLAT_LOG_RATES = Layout(
    lambda values, _: _log_rates(values).reshape(-1), FLAT.shape, is_float32=True
)
# Mamba-1
SELECTIVE_SCAN = {"ssm_a": LOG_RATES, "ssm_conv1d.weight": TAPS}
# Mamba-2
STATE_SPACE = {
    "ssm_a": FLAT_LOG_RATES,
    "ssm_conv1d.weight": TAPS,
    "ssm_d": FLAT,
    "ssm_norm.weight": FLAT,
}
# Qwen3.5, whose value heads are stored in another order
TILED = {
    "attn_qkv.weight": Layout(_last_by_keys, keeps_rows=True),
    "ssm_conv1d.weight": TAPS._replace(
        change=lambda rows, heads: _last_by_keys(rows, heads)[:, None]
    ),
    "ssm_out.weight": Layout(lambda rows, heads: _by_keys(rows.T, heads).T),
    "ssm_a": LOG_RATES._replace(change=lambda values, heads: _by_keys(_log_rates(values), heads)),
    **dict.fromkeys(
        ("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"),
        Layout(_by_keys, keeps_rows=True),
    ),
}

PERMUTED = {
    f"attn_{letter}.{suffix}": QUERIES if letter == "q" else KEYS
    for letter in "qk"
    for suffix in ("weight", "bias")
}


def minus_one(*norms: str) -> dict[str, Layout]:
    """Return layouts of norms to whose scales conversion added 1."""
    return {f"{name}.weight": MINUS_ONE for name in ("output_norm", *norms)}


def _gate_up(suffix: str) -> tuple[str, str]:
    return f"ffn_gate_exps.{suffix}", f"ffn_up_exps.{suffix}"


def _down(suffix: str) -> tuple[str]:
    return (f"ffn_down_exps.{suffix}",)


# Experts [E, out, in], and their biases [E, out]
GATE_THEN_UP = Joined(
    _gate_up("weight"),
    lambda parts, _: np.concatenate(parts, axis=-2),
    lambda shapes: (shapes[0][0], 2 * shapes[0][1], shapes[0][2]),
)
GATE_THEN_UP_TRANSPOSED = Joined(
    _gate_up("weight"),
    lambda parts, _: _transposed(np.concatenate(parts, axis=-2)),
    lambda shapes: (shapes[0][0], shapes[0][2], 2 * shapes[0][1]),
)
GATE_UP_ALTERNATING = Joined(
    _gate_up("weight"),
    lambda parts, heads: _alternating([_transposed(values) for values in parts], heads),
    lambda shapes: (shapes[0][0], shapes[0][2], 2 * shapes[0][1]),
)
GATE_UP_BIAS_ALTERNATING = Joined(
    _gate_up("bias"),
    _alternating,
    lambda shapes: (shapes[0][0], 2 * shapes[0][1]),
    n_axes=2,
)


def gate_then_up(suffix: str = "") -> Joined:
    """Return the conversion that joins gate and up of an MLP, whose names end with `suffix`."""
    return Joined(
        (f"ffn_gate{suffix}.weight", f"ffn_up{suffix}.weight"),
        lambda parts, _: np.concatenate(parts),
        lambda shapes: (2 * shapes[0][0], shapes[0][1]),
        has_pieces=False,
        n_axes=2,
    )


DOWN = Joined(_down("weight"), lambda parts, _: parts[0], lambda shapes: shapes[0])
DOWN_BIAS = Joined(_down("bias"), lambda parts, _: parts[0], lambda shapes: shapes[0], n_axes=2)
DOWN_TRANSPOSED = Joined(
    _down("weight"),
    lambda parts, _: _transposed(parts[0]),
    lambda shapes: (shapes[0][0], shapes[0][2], shapes[0][1]),
)
KEY_VALUE_UP = Joined(
    ("attn_k_b.weight", "attn_v_b.weight"),
    _key_value_up,
    lambda shapes: (shapes[0][0] * (shapes[0][2] + shapes[1][1]), shapes[0][1]),
    has_pieces=False,
)
# Recurrent layers of qwen3next
GROUPED_PROJECTION = Joined(
    ("attn_qkv.weight", "attn_gate.weight"),
    _grouped_projection,
    lambda shapes: (shapes[0][0] + shapes[1][0], shapes[0][1]),
    has_pieces=False,
    n_axes=2,
)
