"""Matrix products, and storage of arrays: 16-bit floats as integers, block-quantized weights.

The weights of a quantized checkpoint stay quantized on the device. A weight in group g of a row is
`values * scale[g] + minimum[g]`. In nested blocks, scales and minima are integers, multiplied by
one outer scale and one outer minimum per 256 weights. Only products with a float32 scale are
rounded, and only once, so dequantized weights equal bit for bit what a reader of the file computes
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

PACKED = (
    32  # 4-bit weights in 16 bytes: byte k has weight k in its low half, 16 + k in its high half
)
OUTER = 256  # weights per outer scale
INT8, INT4, E2M1, E4M3, E5M2 = "int8", "int4", "float4_e2m1fn", "float8_e4m3fn", "float8_e5m2"
NESTED, FLOAT16, FLOAT32, POWER = "nested", "float16", "float32", "float8_e8m0fnu"
# Storage dtypes of scales. 16-bit floats are stored as bits, since XLA:CPU widens slices of floats.
SCALES = {NESTED: np.int8, FLOAT16: np.uint16, FLOAT32: np.float32, POWER: np.uint8}


class Form(NamedTuple):
    """Storage format of a block-quantized weight.

    Attributes:
        quant_type: the type of the values. INT4 is 0 to 15 with minima, otherwise -8 to 7.
        size: weights per group.
        has_minimum: True if groups have a minimum.
        scale: the type of scales and minima; NESTED is int8 with outer scales in float16.
        columns: weights per row.
    """

    quant_type: str
    size: int
    has_minimum: bool
    scale: str
    columns: int

    @property
    def is_packed(self) -> bool:
        """True if a byte stores two weights."""
        return self.quant_type in (INT4, E2M1)

    @property
    def smallest_part(self) -> int:
        """Smallest number of neighbouring weights of a row that sharding must keep together."""
        if self.scale == NESTED:
            return OUTER
        group = 1 if self.size == self.columns else self.size  # a row's only scale is replicated
        return math.lcm(group, PACKED if self.is_packed else 1)


def common_form(forms: Collection[Form | None]) -> Form | None:
    """Return the smallest form that represents weights of all these forms exactly, or None."""
    present = {form for form in forms if form is not None}
    if None in forms or len({(form.scale, form.columns) for form in present}) != 1:
        return None
    common, quant_types = next(iter(present)), {form.quant_type for form in present}
    if len(quant_types) > 1 and quant_types != {INT4, INT8}:
        return None
    minima = {form.has_minimum for form in present}
    # If other forms have minima, INT4 without minima is shifted, and float32 may round the shift.
    if common.scale == FLOAT32 and len(minima) > 1:
        return None
    size = math.gcd(*(form.size for form in present))
    return common._replace(
        quant_type=INT8 if INT8 in quant_types else common.quant_type,
        size=size,
        has_minimum=any(minima),
    )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A weight [..., out, in] quantized in blocks along its rows; a node of the parameter tree.

    Attributes:
        values: int8 [..., out, in]; uint8 for 8-bit floats; uint8 [..., out, in / 2] for 4 bits.
        scale, minimum: one per group, [..., out, in / size], see `SCALES`; minimum may be None.
        outer_scale, outer_minimum: float16 bits [..., out, in / 256] of nested blocks, or None.
        quant_type: see `Form`.
        dtype: the dtype of dequantized weights and of products.
    """

    values: Any
    scale: Any
    minimum: Any
    outer_scale: Any
    outer_minimum: Any
    quant_type: str
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dequantized weight."""
        columns = self.values.shape[-1] * (2 if self.quant_type in (INT4, E2M1) else 1)
        return *self.values.shape[:-1], int(columns)

    @property
    def size(self) -> int:
        """The number of weights."""
        return int(np.prod(self.shape))

    def dequantized(self) -> Array:
        """Return the weights in `dtype`, computed in float32; values below 2^-126 may become 0."""
        groups = self._values_in_float32().reshape(*self.scale.shape, -1)
        groups *= _scales(self.scale, self.outer_scale)[..., None]
        if self.minimum is not None:
            groups += _scales(self.minimum, self.outer_minimum)[..., None]
        return groups.reshape(self.shape).astype(self.dtype)

    def _values_in_float32(self) -> Array:
        """Return the quantized values in float32."""
        values = self.values
        if self.quant_type in (E4M3, E5M2):
            return lax.bitcast_convert_type(values, jnp.dtype(self.quant_type)).astype(jnp.float32)
        if self.quant_type in (INT4, E2M1):
            halves = values.reshape(*values.shape[:-1], -1, PACKED // 2)
            values = jnp.concatenate([halves & 15, halves >> 4], axis=-1)
        if self.quant_type == E2M1:
            return _e2m1(values)
        if self.quant_type == INT4 and self.minimum is None:
            values = (values.astype(jnp.int8) ^ 8) - 8
        return values.astype(jnp.float32)


FIELDS = ("values", "scale", "minimum", "outer_scale", "outer_minimum")
jax.tree_util.register_dataclass(Blocks, data_fields=[*FIELDS], meta_fields=["quant_type", "dtype"])


def _e2m1(bits: Array) -> Array:
    """Convert E2M1 bits (sign, 2 exponent, 1 mantissa; OCP MX 1.0, table 5) to float32."""
    exponent, mantissa = (bits >> 1) & 3, bits & 1
    twice = jnp.where(exponent == 0, mantissa, (2 | mantissa) << (jnp.maximum(exponent, 1) - 1))
    size = twice.astype(jnp.float32) * 0.5
    return jnp.where(bits & 8 != 0, -size, size)


def _scales(stored: Array, outer: Array | None) -> Array:
    """Return the scales or minima of groups in float32."""
    if outer is not None:
        within = stored.reshape(*outer.shape, -1).astype(jnp.float32)
        return (within * _float16_from_bits(outer)[..., None]).reshape(stored.shape)
    if stored.dtype == jnp.uint8:  # E8M0 has the exponent of float32
        return lax.bitcast_convert_type(stored.astype(jnp.int32) << 23, jnp.float32)
    return _float16_from_bits(stored) if stored.dtype == jnp.uint16 else stored


def _float16_from_bits(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float16).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Shard:
    """One device's slice of an array that is split over DATA; a node of the parameter tree.

    Attributes:
        values: the slice.
        axis: the negative index of the split axis, which is the same with and without a leading
            axis of layers.
    """

    values: Any
    axis: int


jax.tree_util.register_dataclass(Shard, data_fields=["values"], meta_fields=["axis"])


def gathered(tree: Any) -> Any:
    """Replace each `Shard` of a tree with the gathered array, as stored."""

    def gather(leaf: Any) -> Any:
        if not _is_shard(leaf):
            return leaf
        return lax.all_gather(leaf.values, DATA, axis=leaf.values.ndim + leaf.axis, tiled=True)

    return jax.tree.map(gather, tree, is_leaf=_is_shard)


def has_shards(tree: Any) -> bool:
    """Return True if arrays of a tree are split over DATA."""
    return any(map(_is_shard, jax.tree.leaves(tree, is_leaf=_is_shard)))


def _is_shard(tree: Any) -> bool:
    return isinstance(tree, Shard)


def is_blocks(tree: Any) -> bool:
    """Return True if a node of a tree is a block-quantized weight; for `is_leaf`."""
    return isinstance(tree, Blocks)


def abstract_blocks(form: Form, shape: tuple[int, ...], dtype: np.dtype) -> Blocks:
    """Return a weight [..., out, in] of this form, with `jax.ShapeDtypeStruct` for arrays."""
    rows, columns = shape[:-1], shape[-1]

    def abstract(size: int, dtype: type) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*rows, columns // size), dtype)

    values = np.int8 if form.quant_type == INT8 else np.uint8
    outer_scale = abstract(OUTER, np.uint16) if form.scale == NESTED else None
    return Blocks(
        abstract(2 if form.is_packed else 1, values),
        abstract(form.size, SCALES[form.scale]),
        abstract(form.size, SCALES[form.scale]) if form.has_minimum else None,
        outer_scale,
        outer_scale if form.has_minimum else None,
        form.quant_type,
        dtype,
    )


def dot_last(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `x[..., D] @ weight[M, D].T` in the weight's dtype, accumulated in float32.

    Activations stay float32 between products: on the CPU a bfloat16 tanh takes five times as long
    as a float32 one, and the residual stream is not rounded. float32 products use the highest
    precision; otherwise a GPU would use TF32 and a TPU bfloat16.
    """
    return lax.dot_general(
        x.astype(weight.dtype),
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def as_integers(tree: Any) -> Any:
    """Bitcast bfloat16 leaves to uint16, the storage of arrays that a loop slices on the CPU.

    XLA:CPU turns a dynamic slice of bfloat16 into one of float32 and hoists a float32 copy of the
    entire array out of the loop (1256 MB for a 152k x 2048 head); it does not do so for integers.
    Parameters are stored as uint16, since a bitcast inside the program would copy them per call.
    """
    return jax.tree.map(
        lambda x: lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x, tree
    )


def to_storage(tree: Any, integers: bool) -> Any:
    """Convert leaves to the storage of a platform, see `backends.Backend.integers`."""
    return as_integers(tree) if integers else tree


def from_storage(tree: Any) -> Any:
    """Gather shards, dequantize blocks, and bitcast uint16 leaves back to bfloat16."""

    def decode(stored: Any) -> Any:
        if is_blocks(stored):
            return stored.dequantized()
        if stored.dtype == jnp.uint16:
            return lax.bitcast_convert_type(stored, jnp.bfloat16)
        return stored

    return jax.tree.map(decode, gathered(tree), is_leaf=is_blocks)


def storage_dtype(dtype: Any, integers: bool) -> np.dtype:
    """Return the dtype in which `to_storage` stores an array of this dtype."""
    dtype = np.dtype(dtype)
    return np.dtype(np.uint16) if integers and dtype == jnp.bfloat16 else dtype


def compute_dtype(stored: Any) -> np.dtype:
    """Return the dtype that a stored array represents."""
    return np.dtype(jnp.bfloat16) if stored.dtype == jnp.uint16 else stored.dtype
