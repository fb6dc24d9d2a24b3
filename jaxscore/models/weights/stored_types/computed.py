"""Tensors that are computed from several stored ones whenever they are looked up."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxscore.errors import InputError
from jaxscore.models.weights.checkpoint import DTYPES, Tensors

FLOAT32 = np.dtype(np.float32)
ADVICE = "the checkpoint is damaged or of another format; fetch it again"


@dataclasses.dataclass(frozen=True)
class Computed:
    """What stands for stored tensors under a plain name.

    Attributes:
        where: the file, named in errors.
        shape: known without computing anything.
        dtype: of what is computed; it holds every value of the format exactly, but for one
            rounding of a product in float32.
        compute: gives the values, [*shape].
        piece: gives `compute()[index]` alone; None where no part is cheaper than the whole.
    """

    where: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    compute: Callable[[], np.ndarray]
    piece: Callable[[int], np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class Found:
    """What a format makes of a checkpoint's tensors.

    Attributes:
        computed: by plain name.
        used: names of the stored tensors that these stand for, and of those that nothing reads.
        idle: see `Tensors`.
    """

    computed: Mapping[str, Computed]
    used: frozenset[str]
    idle: frozenset[str] = frozenset()


def view(tensors: Tensors, found: Found) -> Tensors:
    """The tensors by plain names; a computed one has an outline in `stored`.

    Raises:
        InputError: a name that is stored beside what it is computed from.
    """
    kept = {name: array for name, array in tensors.stored.items() if name not in found.used}
    if both := sorted(set(kept) & set(found.computed)):
        raise InputError(
            f"{tensors.where[both[0]]}: tensor {both[0]} is there plain and quantized; {ADVICE}"
        )
    where = {name: tensors.where[name] for name in kept}
    where |= {name: one.where for name, one in found.computed.items()}
    outlines = {
        name: np.broadcast_to(np.zeros((), one.dtype), one.shape)
        for name, one in found.computed.items()
    }
    arrays = Arrays(kept, found.computed)
    pieces = {name: one.piece for name, one in found.computed.items() if one.piece is not None}
    return Tensors(arrays, where, kept | outlines, frozenset(found.computed), found.idle, pieces)


class Arrays(Mapping[str, np.ndarray]):
    """Stored arrays, and computed ones of which none is held."""

    def __init__(self, stored: Mapping[str, np.ndarray], computed: Mapping[str, Computed]) -> None:
        self._stored, self._computed = stored, computed

    def __getitem__(self, name: str) -> np.ndarray:
        one = self._computed.get(name)
        return self._stored[name] if one is None else one.compute()

    def __iter__(self) -> Iterator[str]:
        yield from self._stored
        yield from self._computed

    def __len__(self) -> int:
        return len(self._stored) + len(self._computed)


class Parts:
    """The stored tensors of one quantized tensor, checked as they are taken, and their names."""

    def __init__(self, tensors: Tensors, first: str) -> None:
        """`first`: the tensor that tells of the others."""
        self._tensors, self._first = tensors, first
        self.where = tensors.where[first]
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is one of this name."""
        return name in self._tensors.stored

    def take(self, name: str, kinds: tuple[str, ...], n_axes: int | None = None) -> np.ndarray:
        """A stored tensor.

        Args:
            kinds: types of safetensors that it may have.

        Raises:
            InputError: there is none, or it has another type or other axes.
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
        """For a stored tensor that cannot be used."""
        return InputError(
            f"{self._tensors.where.get(name, self.where)}: tensor {name} {found}; {ADVICE}"
        )


def good_scales(parts: Parts, name: str, scales: np.ndarray, *, signed: bool = False) -> np.ndarray:
    """The scales as float32.

    Args:
        signed: whether writers of the format have scales below zero.

    Raises:
        InputError: a scale that is not finite, zero, or below zero where none may be.
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
