"""Matrix products, and how arrays are stored: 16-bit floats as integers, weights in blocks.

A quantized checkpoint's weights stay in blocks of small numbers. A weight of group g of a row is
`values * scale[g] + minimum[g]`. In nested blocks scale and minimum are integers themselves, times
one number for the scales and one for the minima of 256 weights. Only a product with a float32 scale
is rounded, and once, so that the weights are bit for bit those that a reader of the file computes
in float32.
"""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxscore.device.mesh_shape import DATA

PACKED = 32  # 4-bit weights that share 16 bytes: byte k has weight k in its low half, 16 + k above
OUTER = 256  # weights of an outer scale
INT8, INT4, E2M1, E4M3, E5M2 = "int8", "int4", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"
NESTED, FLOAT16, FLOAT32, POWER = "nested", "float16", "float32", "float8_e8m0fnu"
# Arrays of scales; 16-bit floats are their bits, since XLA:CPU widens slices of them
SCALES = {NESTED: np.int8, FLOAT16: np.uint16, FLOAT32: np.float32, POWER: np.uint8}


class Form(NamedTuple):
    """Storage of a weight in blocks.

    Attributes:
        kind: type of the values. INT4 is 0 to 15 if there are minima, otherwise -8 to 7.
        size: weights of a group.
        has_minimum: whether groups have a minimum.
        scale: type of scales and minima: int8 with outer numbers in float16 if NESTED.
        columns: weights per row.
    """

    kind: str
    size: int
    has_minimum: bool
    scale: str
    columns: int

    @property
    def is_packed(self) -> bool:
        """Whether a byte has two weights."""
        return self.kind in (INT4, E2M1)

    @property
    def smallest_part(self) -> int:
        """Weights of a row that stay together if the row is split."""
        if self.scale == NESTED:
            return OUTER
        group = 1 if self.size == self.columns else self.size  # a single scale is on every shard
        return math.lcm(group, PACKED if self.is_packed else 1)


def common_form(forms: Collection[Form | None]) -> Form | None:
    """The smallest form that holds weights of all of these exactly, or None if there is none."""
    known = {form for form in forms if form is not None}
    if None in forms or len({(form.scale, form.columns) for form in known}) != 1:
        return None
    first, kinds = next(iter(known)), {form.kind for form in known}
    if len(kinds) > 1 and kinds != {INT4, INT8}:
        return None
    minima = {form.has_minimum for form in known}
    # Beside others with minima, INT4 without is shifted, by products that float32 may round.
    if first.scale == FLOAT32 and len(minima) > 1:
        return None
    size = math.gcd(*(form.size for form in known))
    return first._replace(
        kind=INT8 if INT8 in kinds else first.kind, size=size, has_minimum=any(minima)
    )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A weight [..., out, in] in blocks along its rows; a node of the parameter tree.

    Attributes:
        values: int8 [..., out, in]; uint8 if they are floats, or [..., out, in / 2] of 4 bits.
        scale, minimum: of each group [..., out, in / size], see `SCALES`. No minima are None.
        outer_scale, outer_minimum: of nested blocks, bits of float16 [..., out, in / 256].
        kind: see `Form`.
        dtype: of the weights and the products.
    """

    values: Any
    scale: Any
    minimum: Any
    outer_scale: Any
    outer_minimum: Any
    kind: str
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        columns = self.values.shape[-1] * (2 if self.kind in (INT4, E2M1) else 1)
        return *self.values.shape[:-1], int(columns)

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(np.prod(self.shape))

    def dequantized(self) -> Array:
        """The weights in `dtype`, computed in float32; products below 2^-126 may become 0."""
        groups = self._numbers().reshape(*self.scale.shape, -1)
        groups *= _scales(self.scale, self.outer_scale)[..., None]
        if self.minimum is not None:
            groups += _scales(self.minimum, self.outer_minimum)[..., None]
        return groups.reshape(self.shape).astype(self.dtype)

    def _numbers(self) -> Array:
        """The values in float32."""
        values = self.values
        if self.kind in (E4M3, E5M2):
            return lax.bitcast_convert_type(values, jnp.dtype(self.kind)).astype(jnp.float32)
        if self.kind in (INT4, E2M1):
            halves = values.reshape(*values.shape[:-1], -1, PACKED // 2)
            values = jnp.concatenate([halves & 15, halves >> 4], axis=-1)
        if self.kind == E2M1:
            return _e2m1(values)
        if self.kind == INT4 and self.minimum is None:
            values = (values.astype(jnp.int8) ^ 8) - 8
        return values.astype(jnp.float32)


FIELDS = ("values", "scale", "minimum", "outer_scale", "outer_minimum")
jax.tree_util.register_dataclass(Blocks, data_fields=[*FIELDS], meta_fields=["kind", "dtype"])


def _e2m1(bits: Array) -> Array:
    """float32 of 4 bits: sign, two of exponent, one of mantissa (OCP MX 1.0, table 5)."""
    exponent, mantissa = (bits >> 1) & 3, bits & 1
    twice = jnp.where(exponent == 0, mantissa, (2 | mantissa) << (jnp.maximum(exponent, 1) - 1))
    size = twice.astype(jnp.float32) * 0.5
    return jnp.where(bits & 8 != 0, -size, size)


def _scales(stored: Array, outer: Array | None) -> Array:
    """float32 scales or minima of the groups."""
    if outer is not None:
        within = stored.reshape(*outer.shape, -1).astype(jnp.float32)
        return (within * _from_bits(outer)[..., None]).reshape(stored.shape)
    if stored.dtype == jnp.uint8:  # an exponent is that of float32
        return lax.bitcast_convert_type(stored.astype(jnp.int32) << 23, jnp.float32)
    return _from_bits(stored) if stored.dtype == jnp.uint16 else stored


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

    values = np.int8 if form.kind == INT8 else np.uint8
    outer = per(OUTER, np.uint16) if form.scale == NESTED else None
    return Blocks(
        per(2 if form.is_packed else 1, values),
        per(form.size, SCALES[form.scale]),
        per(form.size, SCALES[form.scale]) if form.has_minimum else None,
        outer,
        outer if form.has_minimum else None,
        form.kind,
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
