"""Products of blocks of rows with matrices of their own, as a TPU kernel (Pallas, Mosaic).

grid (blocks of columns, blocks of rows)    the rows of one matrix stand together, so that
                                            each tile of it is copied once
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, Num

LANES = 128
COLUMNS = 512  # most of a matrix's rows in a tile
TILE_BYTES = 2**22  # most of a tile of a matrix
VMEM_BYTES = 2**25


def grouped_tpu(
    x_BRD: Float[Array, "B R D"],
    weights_MFD: Num[Array, "M F D"],
    scale_MF: Float[Array, "M F"] | None,
    matrix_B: Int[Array, " B"],
    n_blocks: Int[Array, ""],
    *,
    interpret: bool = False,
) -> Float[Array, "B R F"]:
    """`x[b] @ weights[matrix[b]].T * scale[matrix[b]]` of the first `n_blocks` blocks.

    Args:
        x_BRD: in the type of the products; others are undefined.
        interpret: run the kernel's operations as JAX's own, on any platform.
    """
    B, R, D = x_BRD.shape
    F, row = weights_MFD.shape[1], D * max(weights_MFD.dtype.itemsize, x_BRD.dtype.itemsize)
    most = min(COLUMNS, 1 << (max(LANES, TILE_BYTES // row).bit_length() - 1))
    columns = F if most >= F else most
    inputs: list[Any] = [x_BRD, weights_MFD]
    specs = [
        pl.BlockSpec((1, R, D), lambda f, b, matrix: (b, 0, 0)),
        pl.BlockSpec((1, columns, D), lambda f, b, matrix: (matrix[b], f, 0)),
    ]
    if scale_MF is not None:
        inputs.append(scale_MF[:, None])
        specs.append(pl.BlockSpec((1, 1, columns), lambda f, b, matrix: (matrix[b], 0, f)))
    return pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(F, columns), n_blocks),
            in_specs=specs,
            out_specs=pl.BlockSpec((1, R, columns), lambda f, b, matrix: (b, 0, f)),
        ),
        out_shape=jax.ShapeDtypeStruct((B, R, F), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * B * R * D * F,
            transcendentals=0,
            bytes_accessed=B * R * (D * x_BRD.dtype.itemsize * pl.cdiv(F, columns) + 4 * F)
            + weights_MFD.shape[0] * F * D * weights_MFD.dtype.itemsize,
        ),
        interpret=interpret,
        name="grouped_products",
    )(matrix_B, *inputs)


def _kernel(matrix_ref, x_ref, weight_ref, *refs):
    *scale_ref, out_ref = refs
    x = x_ref[0]
    sums = lax.dot_general(
        x,
        weight_ref[0].astype(x.dtype),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    out_ref[0] = sums * scale_ref[0][0] if scale_ref else sums
