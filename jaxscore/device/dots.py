"""Matrix products and the 16-bit storage rule, the same everywhere in `device/`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


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


def as_integers(tree):
    """bfloat16 leaves as uint16: on the CPU whatever is sliced inside a loop is kept so.

    XLA:CPU turns a bfloat16 dynamic slice into a float32 one and hoists a float32 copy of the
    whole array out of the loop (1256 MB for a 152k x 2048 head). An integer it leaves alone.
    Parameters are stored so for good: a bitcast inside the program would copy them each call.
    """
    return jax.tree.map(
        lambda x: lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x, tree
    )


def to_storage(tree, integers: bool):
    """The leaves as a platform keeps them, see `backends.Backend.integers`."""
    return as_integers(tree) if integers else tree


def from_storage(tree):
    """Undo `as_integers` on a slice; other leaves stay."""
    return jax.tree.map(
        lambda x: lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x, tree
    )


def storage_dtype(dtype, integers: bool) -> np.dtype:
    """What `to_storage` keeps an array of this dtype as."""
    dtype = np.dtype(dtype)
    return np.dtype(np.uint16) if integers and dtype == jnp.bfloat16 else dtype


def compute_dtype(stored) -> np.dtype:
    """The dtype that a stored array stands for."""
    return np.dtype(jnp.bfloat16) if stored.dtype == jnp.uint16 else stored.dtype
