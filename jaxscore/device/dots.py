"""Matrix products and the 16-bit storage rule, the same everywhere in `device/`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxscore.device.blocks import is_blocks


def dot_last(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x[..., D] @ weight[M, D].T` in the weight's dtype, summed and returned in float32.

    Activations stay float32 between products: on the CPU a bfloat16 tanh costs five times a
    float32 one, and the sum over layers loses nothing. float32 products ask for the highest
    precision, since a GPU would otherwise take TF32 and a TPU bfloat16.
    """
    return lax.dot_general(
        x.astype(weight.dtype),
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def as_integers(tree: Any) -> Any:
    """bfloat16 leaves as uint16, the storage of arrays that a loop slices on the CPU.

    XLA:CPU turns a bfloat16 dynamic slice into a float32 one and hoists a float32 copy of the
    whole array out of the loop (1256 MB for a 152k x 2048 head), but not an integer one.
    Parameters stay so: a bitcast inside the program would copy them in each call.
    """
    return jax.tree.map(
        lambda x: lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x, tree
    )


def to_storage(tree: Any, integers: bool) -> Any:
    """The leaves as a platform stores them, see `backends.Backend.integers`."""
    return as_integers(tree) if integers else tree


def from_storage(tree: Any) -> Any:
    """Numbers that stored leaves stand for: inverse of `as_integers`; blocks are dequantized."""

    def numbers(stored: Any) -> Any:
        if is_blocks(stored):
            return stored.dequantized()
        if stored.dtype == jnp.uint16:
            return lax.bitcast_convert_type(stored, jnp.bfloat16)
        return stored

    return jax.tree.map(numbers, tree, is_leaf=is_blocks)


def storage_dtype(dtype: Any, integers: bool) -> np.dtype:
    """Dtype as which `to_storage` stores an array of this dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.uint16) if integers and dtype == jnp.bfloat16 else dtype


def compute_dtype(stored: Any) -> np.dtype:
    """Dtype that a stored array represents."""
    return np.dtype(jnp.bfloat16) if stored.dtype == jnp.uint16 else stored.dtype
