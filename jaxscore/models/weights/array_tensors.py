"""Parameters of arrays in memory: Hugging Face tensors of a JAX program, and trees of parameters.

tensors of NumPy     read as those of a checkpoint, see `params`
jax.Array tensors    one program stacks, transposes and rounds them, its results already split

Neither way nor `copied_to` moves a device array through the host. Nothing here shares memory with
what was passed in, since a training step donates its arrays.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jaxscore.device import decoder
from jaxscore.device.dots import to_storage
from jaxscore.device.sharding import keys_of
from jaxscore.errors import InputError
from jaxscore.models.families import Family
from jaxscore.models.weights.filling import Leaf
from jaxscore.models.weights.params import Placement, Reader, load_params, read_leaves, shapes_of
from jaxscore.models.weights.tensor_files import FLOATS, Tensors, check_tied, outline

MEMORY = Path("<memory>")  # the folder in error messages

Load = Callable[[Tensors], decoder.Params]


def array_tensors(values: Mapping[str, Any]) -> Tensors:
    """Tensors of a state dict.

    Args:
        values: NumPy or JAX arrays of floats by name.

    Raises:
        InputError: no mapping of names to arrays, or an array that is deleted or not of floats.
    """
    if not isinstance(values, Mapping) or not values:
        found = "empty" if isinstance(values, Mapping) else type(values).__name__
        raise InputError(
            f"{MEMORY}: tensors is {found}, expected arrays by their Hugging Face "
            "name, such as model.embed_tokens.weight"
        )
    for name, array in values.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray | jax.Array):
            raise InputError(
                f"{MEMORY}: tensor {name} is {type(array).__name__}, expected a NumPy or JAX "
                "array; of PyTorch give tensor.numpy()"
            )
        _check_not_deleted(f"{MEMORY}: tensor {name}", array)
        if array.dtype not in FLOATS:
            raise InputError(
                f"{MEMORY}: tensor {name} is of {array.dtype}, expected float32, bfloat16, float16 "
                "or float64; dequantize it"
            )
    outlines = {
        name: array if isinstance(array, np.ndarray) else outline(array.shape, array.dtype)
        for name, array in values.items()
    }
    on_devices = frozenset(name for name, array in values.items() if isinstance(array, jax.Array))
    return Tensors(dict(values), dict.fromkeys(values, MEMORY), outlines, changed=on_devices)


def _check_not_deleted(name: str, array: Any) -> None:
    if isinstance(array, jax.Array) and array.is_deleted():
        raise InputError(f"{name} was deleted, as a donated array is; give it before it is donated")


def tensor_loader(
    family: Family,
    config: decoder.DecoderConfig,
    dtype: np.dtype,
    placement: Placement,
    *,
    integers: bool,
) -> Load:
    """A function that makes parameters of tensors; for device arrays its program is compiled once.

    Arguments are those of `load_params`. Parameters are bit for bit those of a checkpoint with
    these tensors.

    Raises:
        InputError: (the function) as `load_params`; or weights that are stored quantized, of
            device arrays.
    """
    shapes = shapes_of(config, dtype)
    shardings = jax.tree_util.tree_map_with_path(
        lambda path, leaf: placement(keys_of(path), leaf.shape), shapes
    )

    def assemble(arrays: Any) -> decoder.Params:
        outlines = {name: outline(array.shape, array.dtype) for name, array in arrays.items()}
        where = dict.fromkeys(arrays, MEMORY)
        tensors = Tensors(arrays, where, outlines, changed=frozenset(arrays))
        reader = Reader.of(MEMORY, tensors, family)
        leaves, tree = read_leaves(reader, family, config, shapes, integers)
        return jax.tree.unflatten(tree, [_stacked(leaf) for leaf in leaves.values()])

    program = jax.jit(assemble, out_shardings=shardings)

    def load(tensors: Tensors) -> decoder.Params:
        arrays = dict(tensors.arrays)
        if not any(isinstance(array, jax.Array) for array in arrays.values()):
            options: Any = {"integers": integers, "shapes": shapes}
            return load_params(MEMORY, family, config, tensors, dtype, placement, **options)
        if config.quantized:
            raise InputError(
                f"{MEMORY}: int8 weights are made of host arrays; give NumPy tensors, or leave "
                "quantize out"
            )
        target = jax.tree.leaves(shardings)[0]
        arrays = {name: _beside(array, target) for name, array in arrays.items()}
        if config.head.tied:
            stored = Reader.of(MEMORY, tensors, family).stored
            token = stored.get(family.sources(config)["embed", "token"].name)
            head = stored.get(family.head)
            if token and head:
                check_tied(MEMORY, arrays[token], arrays[head])
        made: decoder.Params = program(arrays)
        return made

    return load


def _stacked(leaf: Leaf) -> jax.Array:
    """The parameter of a leaf whose tensors are device arrays.

    Each is written to its place, as stored: XLA:CPU takes five times as long to stack bfloat16.
    """
    parts: list[Any] = [read() for read in leaf.reads]
    stored = [to_storage(part.astype(leaf.dtype), leaf.kept != leaf.dtype) for part in parts]
    # Also a single one is copied: a result that is an argument as it was would share its memory.
    values = jnp.zeros((len(stored), *stored[0].shape), stored[0].dtype)
    for i, part in enumerate(stored):
        values = lax.dynamic_update_index_in_dim(values, part, i, axis=0)
    return values.reshape(leaf.shape)


def _devices(sharding: Sharding) -> tuple[jax.Device, ...] | None:
    """Devices of a sharding in order, or None if the order is not known."""
    if isinstance(sharding, NamedSharding):
        return tuple(sharding.mesh.devices.flat)
    found = tuple(sharding.device_set)
    return found if len(found) == 1 else None


def _whole(sharding: Sharding) -> Sharding:
    """A copy of the whole array on each device of a sharding."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def with_auto_axes(array: Any) -> Any:
    """The array with a sharding that the compiler may change.

    With explicit axes, the default of `jax.make_mesh`, an operation with an ambiguous result fails.
    """
    own = getattr(array, "sharding", None)
    if not isinstance(own, NamedSharding):
        return array
    mesh = Mesh(own.mesh.devices, own.mesh.axis_names)
    return array if mesh == own.mesh else jax.device_put(array, NamedSharding(mesh, own.spec))


def _beside(array: Any, target: Sharding) -> Any:
    """An array on the devices of a sharding, in the same order, so that one program takes both.

    An array of these devices stays where it is. Others are gathered where they are and then copied
    from device to device.
    """
    array = with_auto_axes(array)
    own = getattr(array, "sharding", None)
    if own is None or (_devices(own) is not None and _devices(own) == _devices(target)):
        return array
    if not array.is_fully_replicated and isinstance(own, NamedSharding):
        array = jax.jit(lambda x: x, out_shardings=_whole(own))(array)
    return jax.device_put(array, _whole(target))


def copied_to(array: Any, target: Sharding) -> jax.Array:
    """A copy of an array with this sharding."""
    near = _beside(array, target)
    copied: jax.Array = jax.device_put(near, target, may_alias=False)
    return copied


def abstract_array(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Shape, dtype and placement of an array."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def copied_tree(values: Any, current: Any, what: str = "parameters") -> Any:
    """Copies of new values of a tree of parameters, placed as the current ones.

    Args:
        values: NumPy or JAX arrays in the structure of `current`.
        current: arrays or each one's `abstract_array`.
        what: what the tree is, for errors.

    Raises:
        InputError: naming the first value that is missing, left over, or of another shape or
            dtype.
    """
    structure: Any
    old, structure = jax.tree_util.tree_flatten_with_path(current)
    new, other = jax.tree_util.tree_flatten_with_path(values)
    names = {jax.tree_util.keystr(path): leaf for path, leaf in new}
    for path, leaf in old:
        name = jax.tree_util.keystr(path)
        if name not in names:
            raise InputError(f"{what}: {name} is missing; give all values, in the same structure")
        found = names.pop(name)
        if not isinstance(found, np.ndarray | jax.Array):
            raise InputError(f"{what}: {name} is {type(found).__name__}, expected an array")
        _check_not_deleted(f"{what}: {name}", found)
        dtype = found.dtype
        if isinstance(found, np.ndarray):  # a device holds float64 as float32
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        if found.shape != leaf.shape or dtype != leaf.dtype:
            raise InputError(
                f"{what}: {name} is {found.dtype} {list(found.shape)}, expected {leaf.dtype} "
                f"{list(leaf.shape)}"
            )
    if names or structure != other:
        extra = f": {next(iter(names))} is left over" if names else " has another structure"
        raise InputError(f"{what}{extra}; give the same tree with new values")
    copies = [
        copied_to(found, leaf.sharding) for (_, found), (_, leaf) in zip(new, old, strict=True)
    ]
    return jax.tree.unflatten(structure, copies)
