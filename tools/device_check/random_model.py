"""Random weights for a decoder: drawn on the device, or on the host to be equal everywhere."""

import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore.device.backends import BACKENDS, current_platform
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import to_storage
from jaxscore.device.layers import SCALE
from jaxscore.device.sharding import DeviceMesh, keys_of
from jaxscore.models import native
from jaxscore.models.model import Model
from jaxscore.models.weights.params import shapes_of

SCALE_OF_WEIGHTS = 0.02  # standard deviation, the usual one


def on_device(config: DecoderConfig, dtype: str) -> Model:
    """Return a model drawn on the first device, since 15 GB take longer to send than to score.

    Raises:
        jax.errors.JaxRuntimeError: the weights do not fit in its memory.
    """
    key = jax.random.key(0)

    def draw(number: int, path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        key_of_leaf = jax.random.fold_in(key, number)
        return _matrices(key_of_leaf, leaf.shape, leaf.dtype, *_distribution(path))

    shapes = shapes_of(config, native.NUMPY_DTYPES[dtype])
    paths, tree = jax.tree_util.tree_flatten_with_path(shapes)
    leaves = [draw(number, path, leaf) for number, (path, leaf) in enumerate(paths)]
    return native.from_params(config, jax.tree_util.tree_unflatten(tree, leaves), dtype, "random")


def from_host(
    config: DecoderConfig,
    dtype: str,
    where: DeviceMesh | None = None,
    scale: float = SCALE_OF_WEIGHTS,
) -> Model:
    """Return a model with the same weights on any machine.

    Args:
        where: a mesh for the weights; None for the first device.
        scale: standard deviation of the weights.
    """
    draw = np.random.default_rng(0)
    integers = BACKENDS[current_platform()].integers
    placement = None if where is None else where.placement(config)

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        centre, is_positive = _distribution(path)
        if leaf.dtype == np.int8:
            return jnp.asarray(draw.integers(-127, 128, leaf.shape).astype(np.int8))
        host = draw.standard_normal(leaf.shape, np.float32) * scale + centre
        if keys_of(path)[-1] == SCALE:
            host = draw.uniform(0.001, 0.004, leaf.shape).astype(np.float32)
        host = np.abs(host) if is_positive else host
        there = to_storage(jnp.asarray(host.astype(leaf.dtype)), integers)
        return (
            there
            if placement is None
            else jax.device_put(there, placement(keys_of(path), leaf.shape))
        )

    shapes = shapes_of(config, native.NUMPY_DTYPES[dtype])
    params = jax.tree_util.tree_map_with_path(one, shapes)
    return native.from_params(config, params, dtype, "random", mesh=where)


def n_bytes(config: DecoderConfig, dtype: str) -> int:
    """Return the bytes of all parameters."""
    leaves = jax.tree.leaves(shapes_of(config, native.NUMPY_DTYPES[dtype]))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def memory_limit() -> int | None:
    """Return the bytes that this process may take of the first device, or None if unknown.

    On a CPU that is half of the free memory.
    """
    reported = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    if reported is None and jax.default_backend() == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return reported


def _distribution(path: Any) -> tuple[float, bool]:
    """Return the centre of an array's values, and True if all are positive.

    States must decay: those that grow would overflow.
    """
    name = keys_of(path)[-1]
    return (1.0 if name == "scale" else 0.0), name == "slope"


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _matrices(
    key: jax.Array, shape: tuple[int, ...], dtype: np.dtype, centre: float, is_positive: bool
) -> jax.Array:
    """Draw one matrix after the other, so that random bits of all layers never exist at once."""

    integers = BACKENDS[current_platform()].integers

    def one(key: jax.Array) -> jax.Array:
        drawn = jax.random.normal(key, shape[-2:], jnp.float32) * SCALE_OF_WEIGHTS + centre
        drawn = jnp.abs(drawn) if is_positive else drawn
        return to_storage(drawn.astype(dtype), integers)

    if len(shape) <= 2:
        return one(key)
    n = int(np.prod(shape[:-2]))
    return jax.lax.map(one, jax.random.split(key, n)).reshape(shape)
