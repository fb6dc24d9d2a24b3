"""Grouped matrix products: each block of rows is multiplied with one of several matrices.

There are Pallas kernels for TPU (Mosaic) and GPU (Triton). The TPU grid is (blocks of columns,
blocks of rows): row blocks of the same matrix are consecutive, so that each tile of the matrix is
copied once. A third kernel, for TPU, computes weighted sums of the rows of each token.
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
TPU_COLUMNS = 512  # maximum rows of a matrix per tile
TPU_TILE_BYTES = 2**22  # maximum size of a tile of a matrix
TPU_VMEM_BYTES = 2**25


def grouped_tpu(
    x_BRD: Float[Array, "B R D"],
    weights_LMFD: Num[Array, "*L M F D"],
    scale_LMF: Float[Array, "*L M F"] | None,
    matrix_B: Int[Array, " B"],
    n_blocks: Int[Array, ""],
    *,
    interpret: bool = False,
) -> Float[Array, "B R F"]:
    """Compute `x[b] @ weights[matrix[b]].T * scale[matrix[b]]` for the first `n_blocks` blocks.

    The other blocks of the result are undefined.

    Args:
        x_BRD: B blocks of R rows, in the dtype of the products.
        weights_LMFD, scale_LMF: M matrices [F, D] of each layer and, if they are int8, a scale per
            output. The cost estimate assumes that the last block of each matrix is half full.
        matrix_B: index of each block's matrix among the matrices of all layers.
        interpret: run in interpret mode, on any platform.
    """
    B, R, D = x_BRD.shape
    count, F = weights_LMFD.shape[-3:-1]
    expected = B - count // 2 if count < B else B
    weights_MFD = weights_LMFD.reshape(-1, F, D)
    row = D * max(weights_MFD.dtype.itemsize, x_BRD.dtype.itemsize)
    max_columns = min(TPU_COLUMNS, 1 << (max(TPU_LANES, TPU_TILE_BYTES // row).bit_length() - 1))
    columns = F if max_columns >= F else max_columns
    inputs: list[Any] = [x_BRD, weights_MFD]
    specs = [
        pl.BlockSpec((1, R, D), lambda f, b, matrix: (b, 0, 0)),
        pl.BlockSpec((1, columns, D), lambda f, b, matrix: (matrix[b], f, 0)),
    ]
    if scale_LMF is not None:
        inputs.append(scale_LMF.reshape(-1, 1, F))
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
            flops=2 * expected * R * D * F,
            transcendentals=0,
            bytes_accessed=expected * R * (D * x_BRD.dtype.itemsize * pl.cdiv(F, columns) + 4 * F)
            + min(B, count) * F * D * weights_MFD.dtype.itemsize,
        ),
        interpret=interpret,
        name="grouped_products",
    )(matrix_B, *inputs)


def _kernel_tpu(matrix_ref: Any, x_ref: Any, weight_ref: Any, *refs: Any) -> None:
    *scale_ref, out_ref = refs
    x = x_ref[0]
    acc = lax.dot_general(
        x,
        weight_ref[0].astype(x.dtype),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
    out_ref[0] = acc * scale_ref[0][0] if scale_ref else acc


SUM_TOKENS = 512  # maximum tokens per block of sums
SUM_BYTES = 2**21  # maximum bytes per block of sums
SUM_COPIES = 16  # rows copied concurrently


def weighted_sums_tpu(
    y_RD: Float[Array, "R D"],
    row_Tk: Int[Array, "T k"],
    share_Tk: Float[Array, "T k"],
    before_TD: Float[Array, "T D"],
    is_first: Array,
    *,
    interpret: bool = False,
) -> Float[Array, "T D"]:
    """Compute `before[t] + sum_k share[t, k] * y[row[t, k]]`, summed in the order of k.

    A block of sums stays in VMEM while its rows are copied one by one; XLA's scatter would first
    sort and copy all rows.

    Args:
        y_RD: the rows, float32; rows without a pair are not read.
        row_Tk: the row of each pair; pairs with negative rows are skipped.
        share_Tk: the weight of each pair.
        before_TD: sums of earlier chunks, ignored if `is_first`; the result reuses its memory.
        is_first: True for the first chunk.
        interpret: see `grouped_tpu`.
    """
    (T, D), k = before_TD.shape, row_Tk.shape[1]
    max_tokens = 1 << (max(8, SUM_BYTES // (4 * D)).bit_length() - 1)
    tokens = min(T, SUM_TOKENS, max_tokens)
    n, pairs = pl.cdiv(T, tokens), tokens * k
    padding = (0, n * tokens - T), (0, 0)
    row = jnp.pad(row_Tk, padding, constant_values=-1).reshape(n, pairs)
    share = jnp.pad(share_Tk, padding).reshape(n, pairs)
    # Move pairs without a row to the end, and keep the order of the others.
    slot = jnp.where(row >= 0, jnp.arange(pairs), pairs)
    pair_lists = [x[:, None] for x in lax.sort((slot, row, share), num_keys=1)]

    def block_index(t: Any, *_: Any) -> tuple[Any, ...]:
        return t, 0

    def before_index(t: Any, count: Any, first: Any) -> tuple[Any, ...]:
        return jnp.where(first[0] != 0, 0, t), 0

    list_spec = pl.BlockSpec((None, 1, pairs), lambda t, *_: (t, 0, 0), memory_space=pltpu.SMEM)
    return pl.pallas_call(
        functools.partial(_kernel_sums, per_token=k),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(n,),
            in_specs=[
                *[list_spec] * 3,
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec((tokens, D), before_index),
            ],
            out_specs=pl.BlockSpec((tokens, D), block_index),
            scratch_shapes=[
                pltpu.VMEM((SUM_COPIES, D), jnp.float32),
                pltpu.SemaphoreType.DMA((SUM_COPIES,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((T, D), jnp.float32),
        input_output_aliases={6: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=TPU_VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * y_RD.size, transcendentals=0, bytes_accessed=4 * (y_RD.size + T * D)
        ),
        interpret=interpret,
        name="weighted_sums",
    )(
        (row >= 0).sum(axis=1, dtype=jnp.int32),
        jnp.asarray(is_first, jnp.int32).reshape(1),
        *pair_lists,
        y_RD,
        before_TD,
    )


def _kernel_sums(
    count_ref: Any,
    first_ref: Any,
    slot_ref: Any,
    row_ref: Any,
    share_ref: Any,
    y_ref: Any,
    before_ref: Any,
    out_ref: Any,
    rows_ref: Any,
    done_ref: Any,
    *,
    per_token: int,
) -> None:
    count, is_first = count_ref[pl.program_id(0)], first_ref[0] != 0

    def copy(n: Array) -> Any:
        buffer = n % SUM_COPIES
        source, destination = y_ref.at[pl.ds(row_ref[0, n], 1)], rows_ref.at[pl.ds(buffer, 1)]
        return pltpu.make_async_copy(source, destination, done_ref.at[buffer])

    def begin(n: Array, _: None) -> None:
        copy(n).start()

    def add(n: Array, _: None) -> None:
        copy(n).wait()
        token = pl.ds(slot_ref[0, n] // per_token, 1)
        out_ref[token] += share_ref[0, n] * rows_ref[pl.ds(n % SUM_COPIES, 1)]

        @pl.when(n + SUM_COPIES < count)
        def begin_next() -> None:
            copy(n + SUM_COPIES).start()

    lax.fori_loop(0, jnp.minimum(count, SUM_COPIES), begin, None)

    @pl.when(is_first)
    def clear() -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

    @pl.when(~is_first)
    def copy_before() -> None:
        out_ref[...] = before_ref[...]

    lax.fori_loop(0, count, add, None)


GPU_COLUMNS, GPU_DEPTH = 64, 32  # maximum tile of a matrix; not tuned on a device
GPU_WARPS, GPU_STAGES = 4, 3


def grouped_gpu(
    x_BRD: Float[Array, "B R D"],
    weights_LMFD: Num[Array, "*L M F D"],
    scale_LMF: Float[Array, "*L M F"] | None,
    matrix_B: Int[Array, " B"],
    n_blocks: Int[Array, ""],
    *,
    interpret: bool = False,
) -> Float[Array, "B R F"]:
    """Compute the products of `grouped_tpu`; blocks from `n_blocks` on are undefined.

    `experts.fits_grouped_gpu` must accept the matrices.
    """
    from jax.experimental.pallas import triton  # deferred: not needed on TPU

    B, R, D = x_BRD.shape
    F = weights_LMFD.shape[-2]
    columns, depth = math.gcd(F, GPU_COLUMNS), math.gcd(D, GPU_DEPTH)
    weights_MFD = weights_LMFD.reshape(-1, F, D)
    inputs: list[Any] = [x_BRD, weights_MFD, matrix_B, n_blocks.reshape(1)]
    if scale_LMF is not None:
        inputs.append(scale_LMF.reshape(-1, F))
    specs = [pl.BlockSpec(x.shape, functools.partial(_zeros, x.ndim)) for x in inputs]
    specs[0] = pl.BlockSpec((None, R, D), lambda b, f: (b, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel_gpu, columns=columns, depth=depth, n_steps=D // depth),
        grid=(B, F // columns),
        in_specs=specs,
        out_specs=pl.BlockSpec((None, R, columns), lambda b, f: (b, 0, f)),
        out_shape=jax.ShapeDtypeStruct((B, R, F), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=GPU_WARPS, num_stages=GPU_STAGES),
        interpret=interpret,
        name="grouped_products",
    )(*inputs)


def lower_small_gpu() -> None:
    """Lower `grouped_gpu` for the default device; errors of Pallas propagate."""
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
    columns_slice = pl.ds(pl.program_id(1) * columns, columns)

    @pl.when(block < n_blocks_ref[0])
    def compute() -> None:
        def step(k: Array, acc: Array) -> Array:
            depth_slice = pl.ds(k * depth, depth)
            x = x_ref[:, depth_slice]
            return acc + lax.dot_general(
                x,
                weights_ref[matrix, columns_slice, depth_slice].astype(x.dtype),
                (((1,), (1,)), ((), ())),
                precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
                preferred_element_type=jnp.float32,
            )

        acc = lax.fori_loop(0, n_steps, step, jnp.zeros(out_ref.shape, jnp.float32))
        out_ref[...] = acc * scale_ref[0][matrix, columns_slice][None] if scale_ref else acc
