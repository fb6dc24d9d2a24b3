"""Quantized weights, which are computed from several stored tensors at each look-up.

Integers may be packed into 32-bit words, with a scale and often a zero point per group. The lowest
bit of element k of a row is bit `k * bits` of the row's words, counted from the lowest bit of the
first word: an element of 3 bits may span two words.

    weight[i, o] = (values[i, o] - zeros[g, o]) * scales[g, o]        g = groups[i]

`--quantize stored` keeps rows of such matrices in `device.dots.Blocks`. Every type has a grid of
scales, with one scale for each block of rows and columns.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxscore.device import dots
from jaxscore.device.dots import E2M1, INT4, INT8, PACKED, POWER, Form
from jaxscore.errors import InputError
from jaxscore.models.weights import tensor_files
from jaxscore.models.weights.gguf_blocks import packed
from jaxscore.models.weights.quantization.settings import KEY
from jaxscore.models.weights.tensor_files import DTYPES, LazyMapping, StoredRows, Tensors

INT4_BITS = 4
SMALLEST = 8  # weights per float32 scale; with fewer, blocks are not smaller than bfloat16
ROWS = 256  # input channels whose scales are gathered at a time if groups are not consecutive

# Reads a field of the matrix at an index, or of the only matrix if the index is None
Read = Callable[[int | None], np.ndarray]


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack int32 words [..., ceil(count * bits / 32)] to uint8 [..., count] along the last axis.

    Args:
        bits: 1 to 8.
    """
    octets = _octets(words).reshape(*words.shape[:-1], -1)
    n_bytes, n_elements = _run(bits)
    n_runs = math.ceil(count / n_elements)
    missing = n_runs * n_bytes - octets.shape[-1]
    if missing > 0:
        octets = np.pad(octets, [(0, 0)] * (octets.ndim - 1) + [(0, missing)])
    runs = octets[..., : n_runs * n_bytes].reshape(*words.shape[:-1], n_runs, n_bytes)
    out = np.empty((*words.shape[:-1], n_runs, n_elements), np.uint8)
    _unpack(np.moveaxis(runs, -1, 0), np.moveaxis(out, -1, 0), bits)
    return out.reshape(*words.shape[:-1], n_runs * n_elements)[..., :count]


def unpacked_rows(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack int32 words [n, columns] to uint8 [n * 32 / bits, columns] along the first axis.

    Args:
        bits: 1 to 8; n words must hold a whole number of elements.
    """
    n_words, columns = words.shape
    n_bytes, n_elements = _run(bits)
    # One row per byte, so that the inner loop runs over contiguous memory.
    octets = np.ascontiguousarray(np.moveaxis(_octets(words), -1, 1))
    runs = octets.reshape(n_words * 4 // n_bytes, n_bytes, columns)
    out = np.empty((len(runs), n_elements, columns), np.uint8)
    _unpack(np.moveaxis(runs, 1, 0), np.moveaxis(out, 1, 0), bits)
    return out.reshape(-1, columns)


def _octets(words: np.ndarray) -> np.ndarray:
    """Return the bytes of each word [..., 4], lowest first."""
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    return little.view(np.uint8).reshape(*words.shape, 4)


def _run(bits: int) -> tuple[int, int]:
    """Return the smallest number of bytes that hold whole elements, and how many they hold."""
    shared = math.gcd(bits, 8)
    return bits // shared, 8 // shared


def _unpack(runs: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Unpack runs [bytes, ...] into elements [elements, ...]."""
    mask = np.uint8((1 << bits) - 1)
    for k in range(len(out)):
        byte, low = divmod(k * bits, 8)
        value = runs[byte] >> np.uint8(low)
        if low + bits > 8:
            value |= runs[byte + 1] << np.uint8(8 - low)
        np.bitwise_and(value, mask, out=out[k])


def scaled(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Return the weights, float32 [in, out], in the memory order of the values.

    Args:
        values: integers or float32 [in, out]; G divides `in` if `groups` is None.
        scales: float32 [G, out], or [1, 1] for one scale.
        zeros: integers in the shape of `scales`; None for 0.
        groups: [in], the group of each input channel; None for consecutive groups of equal size.
    """
    out = values.astype(np.float32)
    zeros = None if zeros is None else zeros.astype(np.float32)
    if groups is None:
        n_in, n_out = out.shape
        view = out.reshape(len(scales), n_in // len(scales), n_out)  # splits an axis, so no copy
        if zeros is not None:
            view -= zeros[:, None]
        view *= scales[:, None]
        return out
    for start in range(0, len(out), ROWS):
        rows, group = out[start : start + ROWS], groups[start : start + ROWS]
        if zeros is not None:
            rows -= zeros[group]
        rows *= scales[group]
    return out


FLOAT32 = np.dtype(np.float32)
ADVICE = "the checkpoint is damaged or of another format; fetch it again"


@dataclasses.dataclass(frozen=True)
class Computed:
    """A weight that is computed from stored tensors.

    Attributes:
        where: the file, for error messages.
        shape: the weight's shape, known without computing it.
        dtype: the dtype of the values. It represents every value of the format exactly, except for
            one rounding of a product in float32.
        compute: a function that returns the values, [*shape].
        piece: a function that returns only `compute()[index]`; None if that is not cheaper.
        rows: see `Tensors.rows`; None if rows cannot stay in blocks.
    """

    where: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    compute: Callable[[], np.ndarray]
    piece: Callable[[int], np.ndarray] | None = None
    rows: StoredRows | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    """Quantized tensors of a checkpoint.

    Attributes:
        computed: the weights by the names that they have in an unquantized checkpoint.
        used: names of stored tensors that the weights replace, and of those that nothing reads.
        idle: see `Tensors.idle`.
    """

    computed: Mapping[str, Computed]
    used: frozenset[str]
    idle: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A checked `quantization_config`.

    Attributes:
        method: the `quant_method`.
        numbers: the stored number format, for messages.
        left_out: a note on quantization that jaxscore does not apply, such as of activations.
        find: a function that finds the quantized tensors, or raises InputError.
        expected_form: see `params.stored_forms`; None if the settings do not determine it.
    """

    method: str
    numbers: str
    left_out: str
    find: Callable[[Tensors], Found]
    expected_form: Callable[[str, bool, int], Form | None] | None = None

    narrowest = "bfloat16"  # `--dtype auto` on accelerators

    def open_tensors(self, folder: Path) -> Tensors:
        """Return the tensors of a checkpoint by their unquantized names.

        Raises:
            InputError: no tensor is quantized, or one does not match the scheme.
        """
        tensors = tensor_files.open_tensors(folder)
        quantized = self.find(tensors)
        if not quantized.computed:
            raise InputError(
                f"{folder}: {KEY} says {self.method}, but no tensor is stored that way; the config "
                "and the weights do not belong together"
            )
        return view(tensors, quantized)

    def describe(self) -> str:
        """Return one line on how the weights were read, for messages."""
        left_out = f"; {self.left_out}" if self.left_out else ""
        return f"{self.method}, {self.numbers}, read as the numbers they stand for{left_out}"


def view(tensors: Tensors, quantized: Found) -> Tensors:
    """Return the tensors by unquantized names; computed ones have an outline in `stored`.

    Raises:
        InputError: a tensor is stored both plain and quantized.
    """
    unquantized = {
        name: array for name, array in tensors.stored.items() if name not in quantized.used
    }
    computed = quantized.computed
    if duplicates := sorted(set(unquantized) & set(computed)):
        raise InputError(
            f"{tensors.where[duplicates[0]]}: tensor {duplicates[0]} is stored both plain and "
            f"quantized; {ADVICE}"
        )
    where = {name: tensors.where[name] for name in unquantized}
    where |= {name: weight.where for name, weight in computed.items()}
    outlines = {
        name: tensor_files.outline(weight.shape, weight.dtype) for name, weight in computed.items()
    }
    pieces = {name: weight.piece for name, weight in computed.items() if weight.piece is not None}
    arrays = LazyMapping(
        unquantized | outlines,
        lambda name: computed[name].compute() if name in computed else unquantized[name],
    )
    rows = {name: weight.rows for name, weight in computed.items() if weight.rows is not None}
    return Tensors(
        arrays, where, unquantized | outlines, frozenset(computed), quantized.idle, pieces, rows
    )


def find_modules(
    tensors: Tensors, suffix: str, plain: str, compute: Callable[["Parts", str], Computed]
) -> Found:
    """Find quantized tensors by a suffix of their names.

    Args:
        suffix: the suffix of a quantized tensor, after the module's name.
        plain: the suffix of the unquantized name.
        compute: a function from the stored tensors and the module's name to the weight.
    """
    computed: dict[str, Computed] = {}
    used: set[str] = set()
    for name in tensors.stored:
        if name.endswith(suffix):
            parts, module = Parts(tensors, name), name.removesuffix(suffix)
            computed[module + plain] = compute(parts, module)
            used |= parts.used
    return Found(computed, frozenset(used))


class Parts:
    """The stored tensors of one quantized weight, with the names of those taken in `used`."""

    def __init__(self, tensors: Tensors, first: str) -> None:
        """Take the name of the tensor by which the weight was found."""
        self._tensors, self._first = tensors, first
        self.where = tensors.where[first]
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        """Return True if a tensor of this name is stored."""
        return name in self._tensors.stored

    def take(self, name: str, types: tuple[str, ...], n_axes: int | None = None) -> np.ndarray:
        """Return a stored tensor and record its name.

        Args:
            types: allowed safetensors types.

        Raises:
            InputError: it is missing, or has another type or number of axes.
        """
        if name not in self._tensors.stored:
            raise InputError(
                f"{self.where}: tensor {self._first} is stored without {name}; {ADVICE}"
            )
        self.used.add(name)
        array = self._tensors.stored[name]
        if array.dtype not in [DTYPES[type_name] for type_name in types]:
            [stored_type] = [
                type_name for type_name, dtype in DTYPES.items() if dtype == array.dtype
            ]
            raise self.refusal(name, f"is stored as {stored_type}, expected {' or '.join(types)}")
        if n_axes is not None and array.ndim != n_axes:
            raise self.refusal(name, f"has shape {list(array.shape)}, expected {n_axes} axes")
        return array

    def shaped(self, name: str, types: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        """Return a stored tensor of a required shape.

        Raises:
            InputError: see `take`; or the tensor has another shape.
        """
        array = self.take(name, types)
        if array.shape != shape:
            raise self.refusal(name, f"has shape {list(array.shape)}, expected {list(shape)}")
        return array

    def refusal(self, name: str, problem: str) -> InputError:
        """Return the error for a stored tensor that cannot be used.

        Args:
            problem: the predicate of the message, such as "has shape [2]".
        """
        return InputError(
            f"{self._tensors.where.get(name, self.where)}: tensor {name} {problem}; {ADVICE}"
        )


def good_scales(parts: Parts, name: str, scales: np.ndarray, *, signed: bool = False) -> np.ndarray:
    """Check scales and return them as float32.

    Args:
        signed: True if the format allows negative scales.

    Raises:
        InputError: a scale is not finite, 0, or negative without `signed`.
    """
    wide = scales.astype(np.float32)
    if not (np.isfinite(wide).all() and (wide != 0 if signed else wide > 0).all()):
        expected = "other than 0" if signed else "above 0"
        raise parts.refusal(name, f"has scales that are not finite numbers {expected}")
    return wide


def times_blocks(values: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Multiply float32 values [..., R, C] in place by the scale of their block.

    Args:
        scales: float32 [..., ceil(R / rows), ceil(C / columns)]; the last blocks end with the
            matrix.
        block: (rows, columns) of a block.
    """
    rows, columns = block
    n_rows, n_columns = values.shape[-2:]
    for k in range(scales.shape[-2]):
        wide = np.repeat(scales[..., k, :], min(columns, n_columns), axis=-1)[..., :n_columns]
        values[..., k * rows : min((k + 1) * rows, n_rows), :] *= wide[..., None, :]
    return values


def n_blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of the scales of a tensor [..., R, C]."""
    *leading, n_rows, n_columns = shape
    return (*leading, -(-n_rows // block[0]), -(-n_columns // block[1]))  # rounded up


def block_form(
    value_type: str, columns: int, block_columns: int, *, has_minimum: bool
) -> Form | None:
    """Return the form of weights with a scale per `block_columns`, or None if blocks save nothing.

    The last block of a row may be incomplete. Groups are then parts of a block.
    """
    size = math.gcd(block_columns, columns)
    if size < min(SMALLEST, columns):
        return None
    return Form(
        value_type, size, has_minimum, POWER if value_type == E2M1 else dots.FLOAT32, columns
    )


def block_rows(
    value_type: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    values: Read,
    scales: Read,
    minima: Read | None = None,
    *,
    is_transposed: bool = False,
) -> StoredRows:
    """Return the rows of matrices in blocks.

    Args:
        value_type: see `Form.quant_type`.
        shape: the shape of a matrix, [out, in].
        block: (rows, columns) that share a scale.
        values: reader of the values [out, in]: one per byte (also INT4), or two E2M1 per byte, low
            nibble first.
        scales, minima: readers of one number per block: float32, or the exponents of E2M1.
        is_transposed: see `StoredRows.is_transposed`.
    """
    n_rows, columns = shape
    form = block_form(value_type, columns, block[1], has_minimum=minima is not None)

    def read(field: str, index: int | None) -> np.ndarray:
        if field == "values":
            return values(index)
        grid = scales(index) if field == "scale" or minima is None else minima(index)
        assert form is not None
        return spread(grid, (n_rows, columns // form.size), (block[0], block[1] // form.size))

    def convert(rows: np.ndarray, field: str, target: Form) -> np.ndarray:
        if field != "values":
            assert form is not None
            return np.repeat(rows, form.size // target.size, axis=1)
        if target.quant_type == E2M1:
            rows = np.stack([rows & 15, rows >> 4], axis=-1)
        if target.is_packed:
            return packed(rows.view(np.uint8) & np.uint8(15), len(rows))
        return rows.view(np.int8 if target.quant_type == INT8 else np.uint8)

    return StoredRows(form, read, convert, is_transposed=is_transposed)


def integer_rows(
    bits: int,
    shape: tuple[int, int],
    block: tuple[int, int],
    values: Callable[[], np.ndarray],
    zeros: Callable[[], np.ndarray] | None,
    scales: Callable[[], np.ndarray],
    *,
    exact: bool,
) -> StoredRows | None:
    """Return the rows of a matrix of integers with weights `(value - zero) * scale`.

    Args:
        bits: bits per value, at most 8.
        shape, block: see `block_rows`.
        values: reader of int8 [out, in], from -(2 ** (bits - 1)).
        zeros: reader of the zero point of each block, in the same range; None for 0.
        scales: reader of the float32 scale of each block.
        exact: True if float32 holds `zero * scale` exactly, because scales have 16 bits.

    Returns:
        None if no form holds the weights exactly.
    """
    value_type = INT4 if bits <= INT4_BITS and shape[1] % PACKED == 0 else INT8
    if zeros is None:
        return block_rows(value_type, shape, block, lambda _: values(), lambda _: scales())
    if exact:
        # INT4 with minima counts from 0
        shift = 8 if value_type == INT4 else 0

        def minima(_: int | None) -> np.ndarray:
            shifted: np.ndarray = -(zeros().astype(np.float32) + shift) * scales()
            return shifted

        return block_rows(
            value_type,
            shape,
            block,
            lambda _: values() + np.int8(shift),
            lambda _: scales(),
            minima,
        )
    if bits > INT4_BITS:
        return None  # differences take 9 bits

    def differences(_: int | None) -> np.ndarray:
        return (values() - spread(zeros(), shape, block)).astype(np.int8)

    return block_rows(INT8, shape, block, differences, lambda _: scales())


def spread(grid: np.ndarray, shape: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    """Repeat the entries of a grid, one per block, to a matrix of this shape."""
    rows, columns = (np.arange(n) // size for n, size in zip(shape, block, strict=True))
    return grid[rows[:, None], columns]
