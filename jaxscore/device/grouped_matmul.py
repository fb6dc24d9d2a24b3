"""Grouped matrix products: each block of rows is multiplied with a matrix of its own.

Two Pallas kernels, for TPU (Mosaic) and GPU (Triton). The TPU's grid is (blocks of columns, blocks
of rows): the blocks of one matrix are neighbours, so that each of its tiles is copied once.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, Num

TPU_LANES = 128
TPU_COLUMNS = 512  # most of a matrix's rows in a tile
TPU_TILE_BYTES = 2**22  # most of a tile of a matrix
TPU_VMEM_BYTES = 2**25


def grouped_tpu(
    x_BRD: Float[Array, "B R D"],
    weights_MFD: Num[Array, "M F D"],
    scale_MF: Float[Array, "M F"] | None,
    matrix_B: Int[Array, " B"],
    n_blocks: Int[Array, ""],
    *,
    interpret: bool = False,
) -> Float[Array, "B R F"]:
    """`x[b] @ weights[matrix[b]].T * scale[matrix[b]]` for the first `n_blocks` blocks.

    The other blocks of the result are undefined.

    Args:
        x_BRD: B blocks of R rows, in the dtype of the products.
        weights_MFD, scale_MF: M matrices [F, D] and, if they are int8, a scale per output.
        matrix_B: index of each block's matrix.
        interpret: run the kernel's operations as JAX's own, on any platform.
    """
    B, R, D = x_BRD.shape
    F, row = weights_MFD.shape[1], D * max(weights_MFD.dtype.itemsize, x_BRD.dtype.itemsize)
    most = min(TPU_COLUMNS, 1 << (max(TPU_LANES, TPU_TILE_BYTES // row).bit_length() - 1))
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
        _kernel_tpu,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(F, columns), n_blocks),
            in_specs=specs,
            out_specs=pl.BlockSpec((1, R, columns), lambda f, b, matrix: (b, 0, f)),
        ),
        out_shape=jax.ShapeDtypeStruct((B, R, F), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=TPU_VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * B * R * D * F,
            transcendentals=0,
            bytes_accessed=B * R * (D * x_BRD.dtype.itemsize * pl.cdiv(F, columns) + 4 * F)
            + min(B, weights_MFD.shape[0]) * F * D * weights_MFD.dtype.itemsize,
        ),
        interpret=interpret,
        name="grouped_products",
    )(matrix_B, *inputs)


def _kernel_tpu(matrix_ref: Any, x_ref: Any, weight_ref: Any, *refs: Any) -> None:
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


GPU_COLUMNS, GPU_DEPTH = 64, 32  # most of a matrix in one product; not tuned on a device
GPU_WARPS, GPU_STAGES = 4, 3


def grouped_gpu(
    x_BRD: Float[Array, "B R D"],
    weights_MFD: Num[Array, "M F D"],
    scale_MF: Float[Array, "M F"] | None,
    matrix_B: Int[Array, " B"],
    n_blocks: Int[Array, ""],
    *,
    interpret: bool = False,
) -> Float[Array, "B R F"]:
    """What `grouped_tpu` computes; blocks beyond `n_blocks` are undefined.

    Matrices are of a kind that `experts.fits_grouped_gpu` names.
    """
    from jax.experimental.pallas import triton  # deferred: a TPU does without it

    B, R, D = x_BRD.shape
    F = weights_MFD.shape[1]
    columns, depth = math.gcd(F, GPU_COLUMNS), math.gcd(D, GPU_DEPTH)
    inputs: list[Any] = [x_BRD, weights_MFD, matrix_B, n_blocks.reshape(1)]
    if scale_MF is not None:
        inputs.append(scale_MF)
    whole = [pl.BlockSpec(x.shape, functools.partial(_zeros, x.ndim)) for x in inputs]
    whole[0] = pl.BlockSpec((None, R, D), lambda b, f: (b, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel_gpu, columns=columns, depth=depth, n_steps=D // depth),
        grid=(B, F // columns),
        in_specs=whole,
        out_specs=pl.BlockSpec((None, R, columns), lambda b, f: (b, 0, f)),
        out_shape=jax.ShapeDtypeStruct((B, R, F), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=GPU_WARPS, num_stages=GPU_STAGES),
        interpret=interpret,
        name="grouped_products",
    )(*inputs)


def lower_small_gpu() -> None:
    """Lower `grouped_gpu` for JAX's device; what Pallas raises passes through."""
    x, matrix, count = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((1, 16, 16), jnp.bfloat16), ((1,), jnp.int32), ((), jnp.int32))
    )
    jax.jit(lambda x, matrix, n: grouped_gpu(x, x, None, matrix, n)).lower(x, matrix, count)


def _zeros(n: int, *_: Any) -> tuple[int, ...]:
    return (0,) * n


def _kernel_gpu(
    x_ref: Any,
    weights_ref: Any,
    matrix_ref: Any,
    n_blocks_ref: Any,
    *refs: Any,
    columns: int,
    depth: int,
    n_steps: int,
) -> None:
    *scale_ref, out_ref = refs
    block, matrix = pl.program_id(0), matrix_ref[pl.program_id(0)]
    own = pl.ds(pl.program_id(1) * columns, columns)

    @pl.when(block < n_blocks_ref[0])
    def compute() -> None:
        def step(k: Array, sums: Array) -> Array:
            part = pl.ds(k * depth, depth)
            x = x_ref[:, part]
            return sums + lax.dot_general(
                x,
                weights_ref[matrix, own, part].astype(x.dtype),
                (((1,), (1,)), ((), ())),
                precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
                preferred_element_type=jnp.float32,
            )

        sums = lax.fori_loop(0, n_steps, step, jnp.zeros(out_ref.shape, jnp.float32))
        out_ref[...] = sums * scale_ref[0][matrix, own][None] if scale_ref else sums
