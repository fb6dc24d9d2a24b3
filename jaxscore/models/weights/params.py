"""The parameter tree from a checkpoint: what each parameter is read from, checked beforehand."""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from jaxscore.device import decoder
from jaxscore.device.dots import storage_dtype
from jaxscore.device.init_params import init_params
from jaxscore.device.layers import SCALE
from jaxscore.errors import InputError
from jaxscore.models.families import Family, Source
from jaxscore.models.weights import int8
from jaxscore.models.weights.checkpoint import Tensors, check_float, check_tied
from jaxscore.models.weights.filling import Leaf, device_arrays
from jaxscore.models.weights.source_view import (
    found,
    names,
    oriented,
    split_name,
    stacked_axes,
)

MATRICES = ("token", "position", "weight")  # last part of the path; all others stay float32

# (path in the tree, shape) -> where the parameter lies
Placement = Callable[[tuple[str, ...], tuple[int, ...]], Sharding]


def on_one_device(path: tuple[str, ...], shape: tuple[int, ...]) -> Sharding:
    """The placement that puts everything on the first device."""
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def shapes_of(config: decoder.DecoderConfig, dtype: np.dtype) -> decoder.Params:
    """The parameter tree as `jax.ShapeDtypeStruct`.

    Matrices are of `dtype`, or int8 where they have scales; vectors are float32.
    """
    shapes = jax.eval_shape(functools.partial(init_params, config=config), _key())
    paths = {keys_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}

    def rounded(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        keys = keys_of(path)
        kind = dtype
        if keys[-1] not in MATRICES:
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
        integers: see `device.backends.Backend`.

    Raises:
        InputError: tensors that are missing, left over, no floats or of another shape.
    """
    checkpoint = _Named.of(folder, tensors, family)
    leaves, tree = _leaves(checkpoint, family, config, dtype, integers)
    if config.tied and family.head in checkpoint.stored:
        token = checkpoint.tensor(family.sources(config)["embed", "token"].name)
        check_tied(folder, token, checkpoint.tensor(family.head))
    placed = [(leaf, placement(keys, leaf.shape)) for keys, leaf in leaves.items()]
    return jax.tree_util.tree_unflatten(tree, list(device_arrays(placed)))


def check_params(
    folder: Path, family: Family, config: decoder.DecoderConfig, tensors: Tensors
) -> None:
    """Check the names, types and shapes of all tensors; no value is read.

    Raises:
        InputError: as `load_params`, but for what only values say.
    """
    checkpoint = _Named.of(folder, tensors, family)
    _leaves(checkpoint, family, config, np.dtype(np.float32), integers=False)


def _leaves(
    checkpoint: "_Named",
    family: Family,
    config: decoder.DecoderConfig,
    dtype: np.dtype,
    integers: bool,
) -> tuple[dict[tuple[str, ...], Leaf], Any]:
    """How each parameter is read, by its path, and the structure of their tree.

    Raises:
        InputError: as `check_params`.
    """
    folder, tensors, table = checkpoint.folder, checkpoint.tensors, family.sources(config)
    paths, tree = jax.tree_util.tree_flatten_with_path(shapes_of(config, dtype))
    shapes = {keys_of(path): expected for path, expected in paths}
    leaves: dict[tuple[str, ...], Leaf] = {}
    used: set[str] = set()
    for keys, expected in shapes.items():
        # A channel's scale is read from the weights that it scales.
        origin = (*keys[:-1], "weight") if keys[-1] == SCALE else keys
        used.update(split_name(name)[0] for _, name in names(table[origin], expected.shape))
        kind = np.dtype(expected.dtype)
        leaf = _leaf(checkpoint, table[origin], shapes[origin].shape, kind, integers)
        if keys[-1] == SCALE:
            leaf = _made(folder, keys, leaf, expected.shape, int8.channel_scale)
        elif leaf.dtype == np.int8:
            leaf = _made(folder, keys, leaf, expected.shape, int8.values)
        leaves[keys] = leaf
    passed_over = (*family.buffers, *family.unread(config))
    unused = [
        name
        for name in sorted(set(checkpoint.stored) - used)
        if not any(re.fullmatch(pattern, name) for pattern in passed_over)
        and not (config.tied and name == family.head)
        and not (family.next_tokens and _predicts_more(name, checkpoint.stored, config.n_layers))
        and checkpoint.stored[name] not in tensors.idle
    ]
    if unused:
        raise InputError(
            f"{folder}: {len(unused)} tensors that the model does not use: "
            f"{', '.join(unused[:8])}; the config and the weights do not belong together"
        )
    return leaves, tree


def _predicts_more(name: str, stored: Mapping[str, str], n_layers: int) -> bool:
    """Whether a tensor is of a layer that predicts more tokens than the next, which is known by its
    product of an embedding and a hidden state: a layer behind the last one, or ERNIE's `mtp_`."""
    if found := re.match(r"layers\.(\d+)\.", name):
        return int(found[1]) >= n_layers and f"{found[0]}eh_proj.weight" in stored
    found = re.match(r"mtp_(?:block|emb_norm|hidden_norm|linear_proj)\.(\d+)\.", name)
    return found is not None and f"mtp_linear_proj.{found[1]}.weight" in stored


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
        """The values of a tensor or of a piece of one, which may be computed."""
        bare, index = split_name(name)
        stored = self.stored[bare]
        return self.tensors.arrays[stored] if index is None else self.tensors.piece(stored, index)


def _leaf(
    checkpoint: _Named, source: Source, shape: tuple[int, ...], dtype: np.dtype, integers: bool
) -> Leaf:
    """How a parameter is read; the types and shapes of its tensors are checked."""
    folder, tensors, stored = checkpoint.folder, checkpoint.tensors, checkpoint.stored
    n_stacked = stacked_axes(source)
    one = shape[n_stacked:]
    used = [name for _, name in names(source, shape)]
    for name in used:
        outline = found(folder, checkpoint.outlines, name)
        check_float(tensors.where[stored[split_name(name)[0]]], name, outline)
        oriented(folder, name, outline, source, one)

    def read(name: str) -> np.ndarray:
        return oriented(folder, name, checkpoint.tensor(name), source, one)

    merged = any(stored[split_name(name)[0]] in tensors.changed for name in used)
    as_stored = tensors.stored[stored[split_name(used[0])[0]]]
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
