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
        yield place, source.name.format(**dict(zip(letters, place, strict=True)))


def oriented(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    name: str,
    source: Source,
    shape: tuple[int, ...],
) -> np.ndarray:
    """One tensor as our tree has it, `shape`; a view wherever one can be had.

    Args:
        folder: named in errors.
        arrays: the checkpoint's tensors.
        name: of the tensor, with the placeholders of `source.name` filled in.

    Raises:
        InputError: a tensor that is missing, no float or of another shape.
    """
    if name not in arrays:
        near = [other for other in sorted(arrays) if other.split(".")[-1] == name.split(".")[-1]]
        raise InputError(
            f"{folder}: tensor {name} is missing; there are {len(arrays)} others, "
            f"such as {', '.join(near[:3])}"
        )
    view = arrays[name]
    check_float(folder, name, view)
    view = view.T if source.transposed else view
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
