"""The parameter tree from a checkpoint: what each parameter is read from, checked beforehand."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from jaxscore.device import decoder
from jaxscore.device.dots import storage_dtype
from jaxscore.device.layers import SCALE
from jaxscore.errors import InputError
from jaxscore.models.families import Family, Source
from jaxscore.models.weights import int8
from jaxscore.models.weights.checkpoint import Tensors, check_float, check_tied
from jaxscore.models.weights.filling import Leaf, device_arrays
from jaxscore.models.weights.source_view import names, oriented, stacked_axes

VECTORS = ("scale", "bias", SCALE)  # last part of the path of what stays float32

# (path in the tree, shape) -> where the parameter lies
Placement = Callable[[tuple[str, ...], tuple[int, ...]], Sharding]


def on_one_device(path: tuple[str, ...], shape: tuple[int, ...]) -> Sharding:
    """The placement that puts everything on the first device."""
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def shapes_of(config: decoder.DecoderConfig, dtype: np.dtype) -> decoder.Params:
    """The parameter tree as `jax.ShapeDtypeStruct`.

    Matrices are of `dtype`, or int8 where they have scales; vectors are float32.
    """
    shapes = jax.eval_shape(functools.partial(decoder.init_params, config=config), _key())
    paths = {keys_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}

    def rounded(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        keys = keys_of(path)
        kind = dtype
        if keys[-1] in VECTORS:
            kind = np.dtype(np.float32)
        elif (*keys[:-1], SCALE) in paths:
            kind = np.dtype(np.int8)
        return jax.ShapeDtypeStruct(leaf.shape, kind)

    return jax.tree_util.tree_map_with_path(rounded, shapes)


def keys_of(path: Any) -> tuple[str, ...]:
    """A path of `jax.tree_util` in our tree of dictionaries as their keys."""
    return tuple(entry.key for entry in path)


def load_params(
    folder: Path,
    family: Family,
    config: decoder.DecoderConfig,
    tensors: Tensors,
    dtype: np.dtype,
    placement: Placement = on_one_device,
    *,
    integers: bool,
) -> decoder.Params:
    """The parameter tree, matrices in `dtype`, vectors (norms and biases) in float32.

    Every tensor is checked before the first is read.

    Args:
        placement: decides where each parameter lies; a process reads the shards of its devices.
        integers: see `Forms`.

    Raises:
        InputError: tensors that are missing, left over, no floats or of another shape.
    """
    table = family.sources(config)
    checkpoint = _Named.of(folder, tensors, family)
    paths, tree = jax.tree_util.tree_flatten_with_path(shapes_of(config, dtype))
    shapes = {keys_of(path): expected for path, expected in paths}
    leaves = []
    used: set[str] = set()
    for keys, expected in shapes.items():
        # A channel's scale is read from the weights that it scales.
        origin = (*keys[:-1], "weight") if keys[-1] == SCALE else keys
        used.update(name for _, name in names(table[origin], expected.shape))
        dtype = np.dtype(expected.dtype)
        leaf = _leaf(checkpoint, table[origin], shapes[origin].shape, dtype, integers)
        if keys[-1] == SCALE:
            leaf = _made(folder, keys, leaf, expected.shape, int8.channel_scale)
        elif leaf.dtype == np.int8:
            leaf = _made(folder, keys, leaf, expected.shape, int8.values)
        leaves.append((leaf, placement(keys, leaf.shape)))
    unused = [
        name
        for name in sorted(set(checkpoint.stored) - used)
        if not any(re.fullmatch(pattern, name) for pattern in family.buffers)
        and not (config.tied and name == family.head)
    ]
    if config.tied and family.head in checkpoint.stored:
        token = checkpoint.tensor(table["embed", "token"].name)
        check_tied(folder, token, checkpoint.tensor(family.head))
    if unused:
        raise InputError(
            f"{folder}: {len(unused)} tensors that the model does not use: "
            f"{', '.join(unused[:8])}; the config and the weights do not belong together"
        )
    return jax.tree_util.tree_unflatten(tree, list(device_arrays(leaves)))


class _Named(NamedTuple):
    """Tensors by the family's names, which come with and without its prefix.

    Attributes:
        folder: named in errors.
        tensors: of the checkpoint.
        stored: the family's name -> the checkpoint's.
        outlines: the family's name -> an array of that type and shape without its bytes, so that
            to check what `oriented` makes of it costs no copy.
    """

    folder: Path
    tensors: Tensors
    stored: dict[str, str]
    outlines: dict[str, np.ndarray]

    @classmethod
    def of(cls, folder: Path, tensors: Tensors, family: Family) -> "_Named":
        stored: dict[str, str] = {}
        for name in tensors.stored:
            bare = name.removeprefix(family.prefix)
            if bare in stored:
                raise InputError(
                    f"{folder}: tensor {bare} is there with and without {family.prefix!r}"
                )
            stored[bare] = name
        outlines = {}
        for bare, name in stored.items():
            array = tensors.stored[name]
            outlines[bare] = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        return cls(folder, tensors, stored, outlines)

    def tensor(self, name: str) -> np.ndarray:
        """Its values, which may be computed."""
        return self.tensors.arrays[self.stored[name]]


def _leaf(
    checkpoint: _Named, source: Source, shape: tuple[int, ...], dtype: np.dtype, integers: bool
) -> Leaf:
    """How a parameter is read; the types and shapes of its tensors are checked."""
    folder, tensors, stored = checkpoint.folder, checkpoint.tensors, checkpoint.stored
    n_stacked = stacked_axes(source)
    one = shape[n_stacked:]
    used = [name for _, name in names(source, shape)]
    for name in used:
        if name in stored:
            check_float(tensors.where[stored[name]], name, checkpoint.outlines[name])
        oriented(folder, checkpoint.outlines, name, source, one)

    def read(name: str) -> np.ndarray:
        return oriented(folder, {name: checkpoint.tensor(name)}, name, source, one)

    merged = any(stored[name] in tensors.changed for name in used)
    as_stored = tensors.stored[stored[used[0]]]
    computed = merged or not np.may_share_memory(read(used[0]), as_stored)
    reads = [functools.partial(read, name) for name in used]
    return Leaf(shape, dtype, storage_dtype(dtype, integers), n_stacked, reads, computed)


def _made(
    folder: Path,
    keys: tuple[str, ...],
    leaf: Leaf,
    shape: tuple[int, ...],
    make: Callable[[np.ndarray], np.ndarray],
) -> Leaf:
    """The leaf of what `make` makes of each tensor."""

    def made(read: Callable[[], np.ndarray]) -> np.ndarray:
        try:
            return make(read())
        except ValueError as problem:
            raise InputError(f"{folder}: {'.'.join(keys)}: {problem}") from None

    reads = [functools.partial(made, read) for read in leaf.reads]
    return dataclasses.replace(leaf, shape=shape, reads=reads, computed=True)


def _key() -> jax.Array:
    return jax.random.key(0)
