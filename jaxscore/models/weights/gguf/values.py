"""Values of stored tensors."""

import functools
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile, StoredTensor
from jaxscore.models.weights.filling import write_rows
from jaxscore.models.weights.gguf.blocks import LAYOUTS, block_weights
from jaxscore.models.weights.tensor_files import StoredRows

PLAIN = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def values_of(file: GgufFile, name: str) -> np.ndarray:
    """A tensor's values: in its own type if it is a plain one, otherwise float32.

    Raises:
        InputError: the type needs the package `gguf`, which is not installed.
    """
    tensor = file.tensors[name]
    return _decode(tensor, tensor.shape)


def piece_of(file: GgufFile, name: str, index: int) -> np.ndarray:
    """`values_of(file, name)[index]`, without reading the other values."""
    entry = entry_of(file.tensors[name], index)
    return _decode(entry, entry.shape)


def rows_of(
    tensor: StoredTensor, change: Callable[[np.ndarray], np.ndarray] | None = None
) -> StoredRows | None:
    """A matrix's rows as stored; None if it is no matrix in blocks.

    Args:
        change: a permutation of rows.
    """
    if len(tensor.shape) != 2 or tensor.type.name in PLAIN:
        return None

    def read() -> np.ndarray:
        rows = tensor.data.reshape(tensor.shape[0], -1)
        return rows if change is None else change(rows)

    return StoredRows(tensor.type.name, tensor.shape, read, _dequantizer(tensor, ""))


def entry_of(tensor: StoredTensor, index: int) -> StoredTensor:
    """One entry along a tensor's first axis."""
    n_bytes = len(tensor.data) // tensor.shape[0]
    data = tensor.data[index * n_bytes : (index + 1) * n_bytes]
    return tensor._replace(shape=tensor.shape[1:], data=data)


def dtype_of(tensor: StoredTensor) -> np.dtype:
    """Type of the values of a tensor."""
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
    """The decoder of a type: of rows of bytes [N, B] the weights, float32 [N, columns]."""
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
        kind = GGMLQuantizationType[tensor.type.name]
        dequantize(np.zeros((1, tensor.type.n_bytes), np.uint8), kind)
    except (KeyError, NotImplementedError):
        raise InputError(
            f"{tensor.where}: tensor {name} is stored as {tensor.type.name}, which the installed "
            "package gguf does not read: pip install --upgrade gguf"
        ) from None

    def decode(rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = dequantize(rows, kind)
        return found

    return decode
