"""Weights that stay in blocks of small integers, as quantized files store them.

A weight of group g of a row is `values * scale[g] + minimum[g]`. In nested blocks scale and minimum
are integers themselves, times one number for the scales and one for the minima of 256 weights.
The products of all types of GGUF are exact in float32, so that the weights are bit for bit those
that a reader of the file computes in float32.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

PACKED = 32  # 4-bit weights that share 16 bytes: byte k has weight k in its low half, 16 + k above
OUTER = 256  # weights of an outer scale


class Form(NamedTuple):
    """How a weight is held.

    Attributes:
        bits: 8, or 4 for two weights per byte. Those of 4 bits are 0 to 15 if there are minima,
            otherwise -8 to 7.
        size: weights of a group.
        has_minimum: whether groups have a minimum.
        is_nested: whether scales and minima are int8 with outer numbers in float16; otherwise they
            are float16.
        columns: weights of a row.
    """

    bits: int
    size: int
    has_minimum: bool
    is_nested: bool
    columns: int

    @property
    def smallest_part(self) -> int:
        """Weights of a row that stay together if the row is split."""
        return OUTER if self.is_nested else PACKED


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A weight [..., out, in] in blocks along its rows; a node of the parameter tree.

    Attributes:
        values: int8 [..., out, in], or uint8 [..., out, in / 2] for 4 bits.
        scale, minimum: of each group [..., out, in / size]: int8, or the bits of float16 as uint16,
            since XLA:CPU widens slices of 16-bit floats. No minima are None.
        outer_scale, outer_minimum: of nested blocks, bits of float16 [..., out, in / 256].
        dtype: of the weights, which is that of the products.
    """

    values: Any
    scale: Any
    minimum: Any
    outer_scale: Any
    outer_minimum: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return *self.values.shape[:-1], self._columns

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(np.prod(self.shape))

    @property
    def _columns(self) -> int:
        return int(self.values.shape[-1]) * (2 if self.values.dtype == jnp.uint8 else 1)

    def dequantized(self) -> Array:
        """The weights in `dtype`, computed in float32."""
        values = self.values
        if values.dtype == jnp.uint8:
            halves = values.reshape(*values.shape[:-1], -1, PACKED // 2)
            values = jnp.concatenate([halves & 15, halves >> 4], axis=-1).astype(jnp.int8)
            values = values if self.minimum is not None else (values ^ 8) - 8
        groups = values.reshape(*self.scale.shape, -1).astype(jnp.float32)
        groups *= _numbers(self.scale, self.outer_scale)[..., None]
        if self.minimum is not None:
            groups += _numbers(self.minimum, self.outer_minimum)[..., None]
        return groups.reshape(self.shape).astype(self.dtype)


FIELDS = ("values", "scale", "minimum", "outer_scale", "outer_minimum")
jax.tree_util.register_dataclass(Blocks, data_fields=[*FIELDS], meta_fields=["dtype"])


def _numbers(stored: Array, outer: Array | None) -> Array:
    """float32 scales or minima of the groups."""
    if outer is None:
        return _from_bits(stored)
    within = stored.reshape(*outer.shape, -1).astype(jnp.float32)
    return (within * _from_bits(outer)[..., None]).reshape(stored.shape)


def _from_bits(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float16).astype(jnp.float32)


def is_blocks(tree: Any) -> bool:
    """Whether a node of a tree is a weight in blocks; for `is_leaf`."""
    return isinstance(tree, Blocks)


def outline(form: Form, shape: tuple[int, ...], dtype: np.dtype) -> Blocks:
    """A weight [..., out, in] of this form, its arrays as `jax.ShapeDtypeStruct`."""
    rows, columns = shape[:-1], shape[-1]

    def per(size: int, kind: type) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*rows, columns // size), kind)

    kind = np.int8 if form.is_nested else np.uint16
    outer = per(OUTER, np.uint16) if form.is_nested else None
    return Blocks(
        per(1, np.int8) if form.bits == 8 else per(2, np.uint8),
        per(form.size, kind),
        per(form.size, kind) if form.has_minimum else None,
        outer,
        outer if form.has_minimum else None,
        dtype,
    )
