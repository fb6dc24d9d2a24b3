"""A tensor of a checkpoint, seen as our parameter tree has it."""

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from jaxscore.errors import InputError
from jaxscore.models.families import Source
from jaxscore.models.weights.checkpoint import check_float


def stacked_axes(source: Source) -> int:
    """Leading axes of the parameter along which tensors of the checkpoint are stacked."""
    return sum(f"{{{letter}}}" in source.name for letter in "ij")


def names(source: Source, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Each tensor of a parameter of this shape, with its place along the stacked axes."""
    letters = [letter for letter in "ij" if f"{{{letter}}}" in source.name]
    for place in itertools.product(*map(range, shape[: len(letters)])):
        at = dict(zip(letters, place, strict=True))
        if source.layers is not None:
            at["i"] = source.layers[at["i"]]
        yield place, source.name.format(**at)


def split_name(name: str) -> tuple[str, int | None]:
    """The stored tensor that a name of `names` leads to, and which piece of it along its first
    axis: `experts.down[3]` is `experts.down` and 3, other names are whole tensors."""
    stored, bracket, index = name.partition("[")
    return stored, int(index[:-1]) if bracket else None


def found(folder: Path, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The array, or the piece of one, that a name of `names` means.

    Args:
        folder: named in errors.
        arrays: the checkpoint's tensors, or their outlines.

    Raises:
        InputError: a tensor that is missing or has not so many pieces.
    """
    stored, index = split_name(name)
    if stored not in arrays:
        near = [one for one in sorted(arrays) if one.split(".")[-1] == stored.split(".")[-1]]
        raise InputError(
            f"{folder}: tensor {stored} is missing; there are {len(arrays)} others, "
            f"such as {', '.join(near[:3])}"
        )
    array = arrays[stored]
    if index is None:
        return array
    if array.ndim < 2 or index >= len(array):
        raise InputError(
            f"{folder}: tensor {stored} gives shape {list(array.shape)}, the config wants at "
            f"least {index + 1} along its first axis"
        )
    return array[index]


def oriented(
    folder: Path, name: str, view: np.ndarray, source: Source, shape: tuple[int, ...]
) -> np.ndarray:
    """One tensor as our tree has it, `shape`; a view wherever one can be had.

    Args:
        folder, name: named in errors.
        view: what `found` gives.

    Raises:
        InputError: a tensor that is no float or of another shape.
    """
    check_float(folder, name, view)
    view = view.T if source.transposed else view
    if len(shape) == 1 and view.size == max((*view.shape, 1)):
        view = view.reshape(-1)  # a vector may lie as a matrix of one row, a number as no vector
    part = source.part
    rows = math.prod(shape) if view.ndim == 1 else shape[0]  # per-head norms may lie flat
    whole = rows + source.skip
    if part is not None:
        whole = rows * part.size // (part.stop - part.start) + source.skip
    expected = (whole,) if view.ndim == 1 else (whole, *shape[1:])
    if view.shape != expected:
        raise InputError(
            f"{folder}: tensor {name} gives shape {list(view.shape)}, "
            f"the config wants {list(expected)}"
        )
    view = view[source.skip :]
    if part is not None:
        pieces = view.reshape(part.groups, part.size, -1, *view.shape[1:])
        view = pieces[:, part.start : part.stop]
    view = view.reshape(shape)
    return view.astype(np.float32) + np.float32(source.plus) if source.plus else view
