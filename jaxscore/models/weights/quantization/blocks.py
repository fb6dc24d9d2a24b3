"""Rows of quantized matrices for `device.dots.Blocks`, in which `--quantize stored` keeps them.

Every kind has a grid of scales: a scale for so many rows and columns of the matrix.
"""

import math
from collections.abc import Callable

import numpy as np

from jaxscore.device.dots import E2M1, FLOAT32, INT4, INT8, PACKED, POWER, Form
from jaxscore.models.weights.gguf_blocks import packed
from jaxscore.models.weights.tensor_files import StoredRows

INT4_BITS = 4
SMALLEST = 8  # weights of a float32 scale: with fewer a weight takes as much as in bfloat16

Read = Callable[[int | None], np.ndarray]  # of the matrix at an index, or of the only one


def block_form(kind: str, columns: int, block_columns: int, *, has_minimum: bool) -> Form | None:
    """The form of weights of which `block_columns` in a row share a scale; None if it is too large.

    A row's last block may be cut off: its groups are then parts of a block.
    """
    size = math.gcd(block_columns, columns)
    if size < min(SMALLEST, columns):
        return None
    return Form(kind, size, has_minimum, POWER if kind == E2M1 else FLOAT32, columns)


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
