"""The arrangement of devices that `--mesh` asks for."""

from typing import Any

import jax

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.sharding import MeshShape
from jaxscore.engine.mesh import Arrangement
from jaxscore.engine.mesh_choice import auto_mesh, parse_mesh

WORKING = 0.2  # of a device's memory, for batches, keys and values


def arrange(
    mesh: str | None, config: DecoderConfig | None = None, shapes: Any = None
) -> Arrangement | None:
    """All devices for "auto", those of "data=N,model=M", or None for the first one alone.

    Args:
        mesh: as `--mesh` has it; None is one device.
        config, shapes: of our decoder, its parameters as `jax.ShapeDtypeStruct`; without them
            "auto" has every device hold the whole model.

    Raises:
        InputError: no such mesh, too few devices, or a model that it does not split.
    """
    if mesh is None:
        return None
    shape = parse_mesh(mesh)
    if shape is None:
        shape = _auto(config, shapes)
    alone = shape.size == 1 and jax.process_count() == 1
    return None if alone else Arrangement(shape)


def _auto(config: DecoderConfig | None, shapes: Any) -> MeshShape:
    """The smallest `model` whose parameters fit; one where memory is not told, as on a CPU."""
    n_devices = jax.device_count()
    told = jax.local_devices()[0].memory_stats() or {}
    memory = told.get("bytes_limit")
    if memory is None or config is None or n_devices == 1:
        return MeshShape(data=n_devices)
    return auto_mesh(shapes, config, n_devices, memory, int(WORKING * memory))
