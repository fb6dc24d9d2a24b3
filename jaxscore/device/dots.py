"""Matrix products, and how arrays are stored: 16-bit floats as integers, weights in blocks.

A quantized file's weights stay in blocks of small integers. A weight of group g of a row is
`values * scale[g] + minimum[g]`. In nested blocks scale and minimum are integers themselves, times
one number for the scales and one for the minima of 256 weights. The products of all types of GGUF
are exact in float32, so that the weights are bit for bit those that a reader of the file computes
in float32.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxscore.device.mesh_shape import DATA

PACKED = 32  # 4-bit weights that share 16 bytes: byte k has weight k in its low half, 16 + k above
OUTER = 256  # weights of an outer scale


class Form(NamedTuple):
    """Storage of a weight in blocks.

    Attributes:
        bits: 8, or 4 for two weights per byte. Those of 4 bits are 0 to 15 if there are minima,
            otherwise -8 to 7.
        size: weights of a group.
        has_minimum: whether groups have a minimum.
        is_nested: whether scales and minima are int8 with outer numbers in float16; otherwise they
            are float16.
        columns: weights per row.
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
        dtype: of the weights and the products.
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


@dataclasses.dataclass(frozen=True)
class Shard:
    """One device's part of an array that is split over DATA; a node of the parameter tree.

    Attributes:
        part: the array.
        axis: along which it is split, from the end, since a layer's part has no axis of layers.
    """

    part: Any
    axis: int


jax.tree_util.register_dataclass(Shard, data_fields=["part"], meta_fields=["axis"])


def gathered(tree: Any) -> Any:
    """A tree with whole arrays in place of `Shard`, as stored."""

    def whole(leaf: Any) -> Any:
        if not _is_shard(leaf):
            return leaf
        return lax.all_gather(leaf.part, DATA, axis=leaf.part.ndim + leaf.axis, tiled=True)

    return jax.tree.map(whole, tree, is_leaf=_is_shard)


def has_shards(tree: Any) -> bool:
    """Whether arrays of a tree are split over DATA."""
    return any(map(_is_shard, jax.tree.leaves(tree, is_leaf=_is_shard)))


def _is_shard(tree: Any) -> bool:
    return isinstance(tree, Shard)


def is_blocks(tree: Any) -> bool:
    """Whether a node of a tree is a weight in blocks; for `is_leaf`."""
    return isinstance(tree, Blocks)


def abstract_blocks(form: Form, shape: tuple[int, ...], dtype: np.dtype) -> Blocks:
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
    """Numbers that stored leaves stand for: inverse of `as_integers`; shards are gathered, then
    blocks are dequantized."""

    def numbers(stored: Any) -> Any:
        if is_blocks(stored):
            return stored.dequantized()
        if stored.dtype == jnp.uint16:
            return lax.bitcast_convert_type(stored, jnp.bfloat16)
        return stored

    return jax.tree.map(numbers, gathered(tree), is_leaf=is_blocks)


def storage_dtype(dtype: Any, integers: bool) -> np.dtype:
    """Dtype as which `to_storage` stores an array of this dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.uint16) if integers and dtype == jnp.bfloat16 else dtype


def compute_dtype(stored: Any) -> np.dtype:
    """Dtype that a stored array represents."""
    return np.dtype(jnp.bfloat16) if stored.dtype == jnp.uint16 else stored.dtype
