"""Weights that are computed from several stored tensors whenever they are looked up.

Integers may be packed into 32-bit words, with a scale and often a zero point per group. The lowest
bit of element k of a row is bit `k * bits` of the row's words, counted from the lowest bit of the
first word: an element of 3 bits may span two words.

    weight[i, o] = (values[i, o] - zeros[g, o]) * scales[g, o]        g = groups[i]

`--quantize stored` keeps rows of such matrices in `device.dots.Blocks`, where every kind has a grid
of scales: a scale for so many rows and columns of the matrix.
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
SMALLEST = 8  # weights of a float32 scale: with fewer a weight takes as much as in bfloat16
ROWS = 256  # input channels whose scales are gathered at a time, if groups are mixed

Read = Callable[[int | None], np.ndarray]  # of the matrix at an index, or of the only one


def unpacked(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """uint8 [..., count] of int32 words [..., ceil(count * bits / 32)], along the last axis.

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
    """uint8 [n * 32 / bits, columns] of int32 words [n, columns], along the first axis.

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
    """Bytes of each word [..., 4], the lowest first."""
    little = np.ascontiguousarray(words).astype("<i4", copy=False)
    return little.view(np.uint8).reshape(*words.shape, 4)


def _run(bits: int) -> tuple[int, int]:
    """Smallest number of bytes with a whole number of elements, and that number of elements."""
    shared = math.gcd(bits, 8)
    return bits // shared, 8 // shared


def _unpack(runs: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Unpack runs [bytes, ...] into elements [elements, ...]."""
    mask = np.uint8((1 << bits) - 1)
    for k in range(len(out)):
        at, low = divmod(k * bits, 8)
        value = runs[at] >> np.uint8(low)
        if low + bits > 8:
            value |= runs[at + 1] << np.uint8(8 - low)
        np.bitwise_and(value, mask, out=out[k])


def scaled(
    values: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Weights, float32 [in, out], in the memory order of the values.

    Args:
        values: integers or float32 [in, out]; G divides `in` if `groups` is None.
        scales: float32 [G, out], or [1, 1] for all.
        zeros: integers of the same shape; None is zero.
        groups: [in], the group of each input channel; None for consecutive groups of equal size.
    """
    out = values.astype(np.float32)
    zeros = None if zeros is None else zeros.astype(np.float32)
    if groups is None:
        n_in, n_out = out.shape
        view = out.reshape(len(scales), n_in // len(scales), n_out)  # no copy: an axis is split
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
    """A weight that stands for several stored tensors.

    Attributes:
        where: its file, named in errors.
        shape: known before anything is computed.
        dtype: of the values. It represents every value of the format exactly, except for one
            rounding of a product in float32.
        compute: returns the values, [*shape].
        piece: returns `compute()[index]` alone; None if a part costs as much as the whole.
        rows: see `Tensors`; None if it is not stored so.
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
        computed: the weights by plain name.
        used: names of the stored tensors that they stand for, and of those that nothing reads.
        idle: see `Tensors`.
    """

    computed: Mapping[str, Computed]
    used: frozenset[str]
    idle: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A checked `quantization_config`.

    Attributes:
        method: its `quant_method`.
        numbers: what the weights are stored as, for messages.
        left_out: what other runs of the checkpoint may also round and scores here do not.
        find: finds the quantized tensors; raises InputError naming what is wrong.
        expected_form: see `params.stored_forms`; None if the settings do not say it.
    """

    method: str
    numbers: str
    left_out: str
    find: Callable[[Tensors], Found]
    expected_form: Callable[[str, bool, int], Form | None] | None = None

    narrowest = "bfloat16"  # `--dtype auto` on accelerators

    def open_tensors(self, folder: Path) -> Tensors:
        """The tensors of a checkpoint by plain names.

        Raises:
            InputError: no tensor is quantized by the method, or one that does not fit.
        """
        tensors = tensor_files.open_tensors(folder)
        found = self.find(tensors)
        if not found.computed:
            raise InputError(
                f"{folder}: {KEY} says {self.method}, and no tensor is stored so; the config and "
                "the weights do not belong together"
            )
        return view(tensors, found)

    def describe(self) -> str:
        """One line about how the weights were read."""
        left_out = f"; {self.left_out}" if self.left_out else ""
        return f"{self.method}, {self.numbers}, read as the numbers they stand for{left_out}"


def view(tensors: Tensors, found: Found) -> Tensors:
    """The tensors by plain names; a computed one has an outline in `stored`.

    Raises:
        InputError: a name that is stored beside what it is computed from.
    """
    kept = {name: array for name, array in tensors.stored.items() if name not in found.used}
    computed = found.computed
    if both := sorted(set(kept) & set(computed)):
        raise InputError(
            f"{tensors.where[both[0]]}: tensor {both[0]} is there plain and quantized; {ADVICE}"
        )
    where = {name: tensors.where[name] for name in kept}
    where |= {name: weight.where for name, weight in computed.items()}
    outlines = {
        name: tensor_files.outline(weight.shape, weight.dtype) for name, weight in computed.items()
    }
    pieces = {name: weight.piece for name, weight in computed.items() if weight.piece is not None}
    arrays = LazyMapping(
        kept | outlines,
        lambda name: computed[name].compute() if name in computed else kept[name],
    )
    rows = {name: weight.rows for name, weight in computed.items() if weight.rows is not None}
    return Tensors(arrays, where, kept | outlines, frozenset(computed), found.idle, pieces, rows)


def find_modules(
    tensors: Tensors, suffix: str, plain: str, compute: Callable[["Parts", str], Computed]
) -> Found:
    """Quantized tensors of a format that is recognised by a suffix of tensor names.

    Args:
        suffix: of the name of the first tensor, after the module's name.
        plain: suffix of the plain name.
        compute: returns the weight, given the stored tensors and the module's name.
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
    """Checks the stored tensors of one quantized weight and records their names in `used`."""

    def __init__(self, tensors: Tensors, first: str) -> None:
        """`first`: the tensor by whose name the weight was found."""
        self._tensors, self._first = tensors, first
        self.where = tensors.where[first]
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether a tensor of this name is stored."""
        return name in self._tensors.stored

    def take(self, name: str, kinds: tuple[str, ...], n_axes: int | None = None) -> np.ndarray:
        """A stored tensor.

        Args:
            kinds: safetensors types that it may have.

        Raises:
            InputError: it is missing, or has another type or number of axes.
        """
        if name not in self._tensors.stored:
            raise InputError(
                f"{self.where}: tensor {self._first} has no {name} beside it; {ADVICE}"
            )
        self.used.add(name)
        array = self._tensors.stored[name]
        if array.dtype not in [DTYPES[kind] for kind in kinds]:
            [found] = [kind for kind, dtype in DTYPES.items() if dtype == array.dtype]
            raise self.refusal(name, f"is stored as {found}, expected {' or '.join(kinds)}")
        if n_axes is not None and array.ndim != n_axes:
            raise self.refusal(name, f"has shape {list(array.shape)}, expected {n_axes} axes")
        return array

    def shaped(self, name: str, kinds: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        """A stored tensor of one shape.

        Raises:
            InputError: as `take`, or it has another shape.
        """
        array = self.take(name, kinds)
        if array.shape != shape:
            raise self.refusal(name, f"has shape {list(array.shape)}, expected {list(shape)}")
        return array

    def refusal(self, name: str, found: str) -> InputError:
        """Error for a stored tensor that cannot be used."""
        return InputError(
            f"{self._tensors.where.get(name, self.where)}: tensor {name} {found}; {ADVICE}"
        )


def good_scales(parts: Parts, name: str, scales: np.ndarray, *, signed: bool = False) -> np.ndarray:
    """The scales as float32.

    Args:
        signed: whether writers of the format store negative scales.

    Raises:
        InputError: a scale that is not finite, zero, or negative without `signed`.
    """
    wide = scales.astype(np.float32)
    if not (np.isfinite(wide).all() and (wide != 0 if signed else wide > 0).all()):
        kind = "other than 0" if signed else "above 0"
        raise parts.refusal(name, f"has scales that are no finite numbers {kind}")
    return wide


def times_blocks(values: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Multiply float32 values [..., R, C] in place by the scale of their block.

    Args:
        scales: float32 [..., ceil(R / rows), ceil(C / columns)]; the last blocks are cut off at
            the matrix's end.
        block: (rows, columns) of a block.
    """
    rows, columns = block
    n_rows, n_columns = values.shape[-2:]
    for k in range(scales.shape[-2]):
        wide = np.repeat(scales[..., k, :], min(columns, n_columns), axis=-1)[..., :n_columns]
        values[..., k * rows : min((k + 1) * rows, n_rows), :] *= wide[..., None, :]
    return values


def n_blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """The shape of the scales of a tensor [..., R, C]."""
    *leading, n_rows, n_columns = shape
    return (*leading, -(-n_rows // block[0]), -(-n_columns // block[1]))  # rounded up


def block_form(kind: str, columns: int, block_columns: int, *, has_minimum: bool) -> Form | None:
    """The form of weights of which `block_columns` in a row share a scale; None if it is too large.

    A row's last block may be cut off: its groups are then parts of a block.
    """
    size = math.gcd(block_columns, columns)
    if size < min(SMALLEST, columns):
        return None
    return Form(kind, size, has_minimum, POWER if kind == E2M1 else dots.FLOAT32, columns)


def block_rows(
    kind: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    values: Read,
    scales: Read,
    minima: Read | None = None,
    *,
    is_turned: bool = False,
) -> StoredRows:
    """Rows of matrices in blocks.

    Args:
        kind: see `Form`.
        shape: of a matrix, [out, in].
        block: (rows, columns) that share a scale.
        values: [out, in]: 8 bits each, INT4 too; two of E2M1 a byte, the low half first.
        scales, minima: of each block; float32, or the exponents of E2M1.
        is_turned: see `StoredRows`.
    """
    n_rows, columns = shape
    form = block_form(kind, columns, block[1], has_minimum=minima is not None)

    def read(field: str, index: int | None) -> np.ndarray:
        if field == "values":
            return values(index)
        of_blocks = scales(index) if field == "scale" or minima is None else minima(index)
        assert form is not None
        return spread(of_blocks, (n_rows, columns // form.size), (block[0], block[1] // form.size))

    def convert(rows: np.ndarray, field: str, into: Form) -> np.ndarray:
        if field != "values":
            assert form is not None
            return np.repeat(rows, form.size // into.size, axis=1)
        if into.kind == E2M1:
            rows = np.stack([rows & 15, rows >> 4], axis=-1)
        if into.is_packed:
            return packed(rows.view(np.uint8) & np.uint8(15), len(rows))
        return rows.view(np.int8 if into.kind == INT8 else np.uint8)

    return StoredRows(form, read, convert, is_turned=is_turned)


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
    """Rows of a matrix of integers, whose weights are `(value - zero) * scale`; None if none fit.

    Args:
        bits: of a value, at most 8.
        shape, block: see `block_rows`.
        values: int8 [out, in], from -(2 ** (bits - 1)).
        zeros: of each block on the same scale; None are zero.
        scales: float32, of each block.
        exact: whether float32 holds products with scales, since these are of 16 bits.
    """
    kind = INT4 if bits <= INT4_BITS and shape[1] % PACKED == 0 else INT8
    if zeros is None:
        return block_rows(kind, shape, block, lambda _: values(), lambda _: scales())
    if exact:
        # What is added to the values, since INT4 with minima counts from 0
        shift = 8 if kind == INT4 else 0

        def minima(_: int | None) -> np.ndarray:
            found: np.ndarray = -(zeros().astype(np.float32) + shift) * scales()
            return found

        return block_rows(
            kind, shape, block, lambda _: values() + np.int8(shift), lambda _: scales(), minima
        )
    if bits > INT4_BITS:
        return None  # differences take 9 bits

    def differences(_: int | None) -> np.ndarray:
        return (values() - spread(zeros(), shape, block)).astype(np.int8)

    return block_rows(INT8, shape, block, differences, lambda _: scales())


def spread(grid: np.ndarray, shape: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    """An entry of the grid for each place of a matrix of this shape, cut off at its end."""
    rows, columns = (np.arange(n) // size for n, size in zip(shape, block, strict=True))
    return grid[rows[:, None], columns]
