"""The devices of a run as a mesh, and how functions of one shard run on all of them.

Everything on the device is written for one shard: its rows, its heads, its columns of the
vocabulary. `shard_map` runs it on each, and what has to travel is said where it is needed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import DATA, MODEL, MeshShape
from jaxscore.device.sharding import check, spec

ROWS = PartitionSpec(DATA)
EVERYWHERE = PartitionSpec()
KEYS_VALUES = PartitionSpec(None, None, MODEL)  # [layers, rows, heads, slots, channels]


class DeviceMesh:
    """Devices in a grid.

    Attributes:
        shape: devices along `data`, which share the rows, and along `model`, which share each
            layer.
        mesh: JAX's own.
    """

    def __init__(self, shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> None:
        """Take the first devices.

        Args:
            devices: to take them from; None are all that JAX has.

        Raises:
            ValueError: there are fewer, or another number over several processes.
        """
        found = jax.devices() if devices is None else devices
        if len(found) < shape.size or (jax.process_count() > 1 and len(found) != shape.size):
            raise ValueError(
                f"mesh {shape} takes {shape.size} devices, and there are {len(found)} "
                f"({jax.process_count()} processes); give a mesh of that many"
            )
        self.shape = shape
        self.mesh = Mesh(
            np.array(list(found[: shape.size])).reshape(shape.data, shape.model), (DATA, MODEL)
        )

    def placement(self, config: DecoderConfig) -> Callable[..., NamedSharding]:
        """Where each parameter of a decoder lies, see `models.params.Placement`.

        Raises:
            ValueError: `model` does not split this decoder.
        """
        check(config, self.shape.model)
        return lambda path, shape: NamedSharding(
            self.mesh, spec(path, shape, config, self.shape.model)
        )

    def put(self, values: Any, where: PartitionSpec) -> Any:
        """Arrays of the host, the same in every process, as those of the mesh."""
        sharding = NamedSharding(self.mesh, where)

        def one(value: Any) -> jax.Array:
            array = np.asarray(value)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        return jax.tree.map(one, values)

    def over(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        """`function` of a shard as one of whole arrays; a tree of specs for each argument."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )


def specs_of(tree: Any) -> Any:
    """How the arrays of a tree lie; whole where they lie on one device."""
    return jax.tree.map(lambda leaf: getattr(leaf.sharding, "spec", EVERYWHERE), tree)
