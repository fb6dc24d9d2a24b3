"""Models whose parameters are shapes: what a compiler needs, and what needs no weights."""

from typing import Any, TypeAlias

import jax
from jax.sharding import SingleDeviceSharding

from jaxscore.device.backends import FORMS, Platform, platform_here
from jaxscore.device.decoder import Params
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import storage_dtype
from jaxscore.device.sharding import DeviceMesh
from jaxscore.models import native
from jaxscore.models.choices import Dtype
from jaxscore.models.model import Model
from jaxscore.models.weights.params import keys_of, shapes_of

Where: TypeAlias = DeviceMesh | jax.Device | None  # None is the device that JAX takes


def abstract_model(
    config: DecoderConfig,
    dtype: Dtype,
    model_type: str,
    platform: Platform | None = None,
    where: Where = None,
) -> Model:
    """Our decoder as it lies on the devices once it is loaded, its parameters as shapes.

    Args:
        dtype: of the matrices.
        platform: of devices that are not here; None is where JAX runs.

    Raises:
        ValueError: the mesh does not split this decoder.
    """
    mesh = where if isinstance(where, DeviceMesh) else None
    place = None if mesh is None else mesh.placement(config)
    integers = FORMS[platform or platform_here()].integers

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = on(where) if place is None else place(keys_of(path), leaf.shape)
        kept = storage_dtype(leaf.dtype, integers)
        return jax.ShapeDtypeStruct(leaf.shape, kept, sharding=sharding)

    shapes: Params = shapes_of(config, native.NUMPY_DTYPES[dtype])
    params = jax.tree_util.tree_map_with_path(one, shapes)
    return native.from_params(config, params, dtype, model_type, mesh=mesh, platform=platform)


def on(where: Where) -> SingleDeviceSharding | None:
    """Where an array lies that is on one device."""
    return SingleDeviceSharding(where) if isinstance(where, jax.Device) else None
