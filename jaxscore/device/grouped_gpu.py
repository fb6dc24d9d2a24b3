"""Products of blocks of rows with matrices of their own, as a GPU kernel (Pallas, Triton)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int, Num

COLUMNS, DEPTH = 64, 32  # most of a matrix in one product; not tuned on a device
LEAST = 16  # of each that Triton's products take
WARPS, STAGES = 4, 3


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

    Matrices are of a kind that `takes` names.
    """
    B, R, D = x_BRD.shape
    F = weights_MFD.shape[1]
    columns, depth = math.gcd(F, COLUMNS), math.gcd(D, DEPTH)
    inputs: list[Any] = [x_BRD, weights_MFD, matrix_B, n_blocks.reshape(1)]
    if scale_MF is not None:
        inputs.append(scale_MF)
    whole = [pl.BlockSpec(x.shape, functools.partial(_zeros, x.ndim)) for x in inputs]
    whole[0] = pl.BlockSpec((None, R, D), lambda b, f: (b, 0, 0))
    return pl.pallas_call(
        functools.partial(_kernel, columns=columns, depth=depth, n_steps=D // depth),
        grid=(B, F // columns),
        in_specs=whole,
        out_specs=pl.BlockSpec((None, R, columns), lambda b, f: (b, 0, f)),
        out_shape=jax.ShapeDtypeStruct((B, R, F), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=STAGES),
        interpret=interpret,
        name="grouped_products",
    )(*inputs)


def takes(weights_shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether `grouped_gpu` computes matrices of this shape, [..., F, D], and type.

    Their widths are multiples of 16. Triton's addresses have 32 bits up to 2**32 bytes, which is
    too few for more than 2**31 numbers of one byte.
    """
    n, itemsize = math.prod(weights_shape), jnp.dtype(dtype).itemsize
    wide = all(size % LEAST == 0 for size in weights_shape[-2:])
    return wide and not (itemsize == 1 and 2**31 <= n <= 2**32)


def _zeros(n, *_):
    return (0,) * n


def _kernel(x_ref, weights_ref, matrix_ref, n_blocks_ref, *refs, columns, depth, n_steps):
    *scale_ref, out_ref = refs
    block, matrix = pl.program_id(0), matrix_ref[pl.program_id(0)]
    own = pl.ds(pl.program_id(1) * columns, columns)

    @pl.when(block < n_blocks_ref[0])
    def compute():
        def step(k, sums):
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
