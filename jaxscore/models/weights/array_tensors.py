"""Parameters from arrays in memory: Hugging Face tensors of a JAX program, and parameter trees.

NumPy tensors        read like those of a checkpoint, see `params`
jax.Array tensors    one program stacks, transposes and rounds them; its results are sharded

Device arrays are never moved through the host. Results share no memory with the arguments, since a
training step donates its arrays.
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
    """Return the tensors of a state dict.

    Args:
        values: NumPy or JAX arrays of floats by name.

    Raises:
        InputError: not a mapping of names to arrays, or an array is deleted or not of floats.
    """
    if not isinstance(values, Mapping) or not values:
        description = "empty" if isinstance(values, Mapping) else type(values).__name__
        raise InputError(
            f"{MEMORY}: tensors is {description}, expected arrays by their Hugging Face "
            "name, such as model.embed_tokens.weight"
        )
    for name, array in values.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray | jax.Array):
            raise InputError(
                f"{MEMORY}: tensor {name} is {type(array).__name__}, expected a NumPy or JAX "
                "array; convert PyTorch tensors with tensor.numpy()"
            )
        _check_not_deleted(f"{MEMORY}: tensor {name}", array)
        if array.dtype not in FLOATS:
            raise InputError(
                f"{MEMORY}: tensor {name} has dtype {array.dtype}, expected float32, bfloat16, "
                "float16 or float64; dequantize it"
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
    """Return a function from tensors to parameters; for device arrays it compiles one program.

    The arguments are those of `load_params`. The parameters equal those of a checkpoint with these
    tensors bit for bit.

    Raises:
        InputError: raised by the function, see `load_params`; or int8 weights are requested of
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
                f"{MEMORY}: int8 weights are computed from host arrays; give NumPy tensors, or "
                "leave quantize out"
            )
        target = jax.tree.leaves(shardings)[0]
        arrays = {name: _on_devices_of(array, target) for name, array in arrays.items()}
        if config.head.tied:
            stored = Reader.of(MEMORY, tensors, family).stored
            token = stored.get(family.sources(config)["embed", "token"].name)
            head = stored.get(family.head)
            if token and head:
                check_tied(MEMORY, arrays[token], arrays[head])
        params: decoder.Params = program(arrays)
        return params

    return load


def _stacked(leaf: Leaf) -> jax.Array:
    """Stack the device arrays of a leaf to its parameter.

    Each is written into the result in its storage dtype: XLA:CPU takes five times as long to stack
    bfloat16.
    """
    arrays: list[Any] = [read() for read in leaf.reads]
    stored = [to_storage(array.astype(leaf.dtype), leaf.kept != leaf.dtype) for array in arrays]
    # A single array is copied, too: an unchanged argument as a result would share its memory.
    values = jnp.zeros((len(stored), *stored[0].shape), stored[0].dtype)
    for i, array in enumerate(stored):
        values = lax.dynamic_update_index_in_dim(values, array, i, axis=0)
    return values.reshape(leaf.shape)


def _devices(sharding: Sharding) -> tuple[jax.Device, ...] | None:
    """Return the devices of a sharding in order, or None if the order is not known."""
    if isinstance(sharding, NamedSharding):
        return tuple(sharding.mesh.devices.flat)
    devices = tuple(sharding.device_set)
    return devices if len(devices) == 1 else None


def _replicated(sharding: Sharding) -> Sharding:
    """Return the sharding with a copy of the whole array on each device."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding


def with_auto_axes(array: Any) -> Any:
    """Return the array with a sharding that the compiler may change.

    With explicit axes, the default of `jax.make_mesh`, operations with ambiguous shardings fail.
    """
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return array
    mesh = Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return (
        array
        if mesh == sharding.mesh
        else jax.device_put(array, NamedSharding(mesh, sharding.spec))
    )


def _on_devices_of(array: Any, target: Sharding) -> Any:
    """Return an array on the devices of a sharding, in order, so that one program takes both.

    An array on these devices is returned unchanged. Others are gathered on their devices and then
    copied from device to device.
    """
    array = with_auto_axes(array)
    sharding = getattr(array, "sharding", None)
    if sharding is None or (
        _devices(sharding) is not None and _devices(sharding) == _devices(target)
    ):
        return array
    if not array.is_fully_replicated and isinstance(sharding, NamedSharding):
        array = jax.jit(lambda x: x, out_shardings=_replicated(sharding))(array)
    return jax.device_put(array, _replicated(target))


def copied_to(array: Any, target: Sharding) -> jax.Array:
    """Copy an array to this sharding."""
    moved = _on_devices_of(array, target)
    copied: jax.Array = jax.device_put(moved, target, may_alias=False)
    return copied


def abstract_array(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Return the shape, dtype and sharding of an array."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def copied_tree(values: Any, current: Any, label: str = "parameters") -> Any:
    """Copy new values of a parameter tree to the shardings of the current ones.

    Args:
        values: NumPy or JAX arrays in the structure of `current`.
        current: arrays, or the `abstract_array` of each.
        label: the name of the tree for error messages.

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
            raise InputError(f"{label}: {name} is missing; give all values, in the same structure")
        value = names.pop(name)
        if not isinstance(value, np.ndarray | jax.Array):
            raise InputError(f"{label}: {name} is {type(value).__name__}, expected an array")
        _check_not_deleted(f"{label}: {name}", value)
        dtype = value.dtype
        if isinstance(value, np.ndarray):  # a device holds float64 as float32
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        if value.shape != leaf.shape or dtype != leaf.dtype:
            raise InputError(
                f"{label}: {name} is {value.dtype} {list(value.shape)}, expected {leaf.dtype} "
                f"{list(leaf.shape)}"
            )
    if names or structure != other:
        extra = f": {next(iter(names))} is left over" if names else " has another structure"
        raise InputError(f"{label}{extra}; give the same tree with new values")
    copies = [
        copied_to(value, leaf.sharding) for (_, value), (_, leaf) in zip(new, old, strict=True)
    ]
    return jax.tree.unflatten(structure, copies)
