"""The LM head's sums as one TPU kernel (Pallas, Mosaic), whose logits stay on the chip.

    grid (position blocks, column blocks)    hidden states [positions, D]    weights [columns, D]

Each of a register's 128 lanes has its own sums, over every 128th column, and the lanes merge once
at the end, so no step moves numbers between lanes. The number of position blocks is data.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from jaxscore.device.dots import from_storage
from jaxscore.device.lm_head.sums import LOWEST, Sums, transform
from jaxscore.device.rows import Unembedding

LANES = 128
QUERIES, COLUMNS = 512, 1024  # most in a block
BLOCK_BYTES = 2**22  # most of a block of weights, and half of one of 16-bit hidden states
VMEM_BYTES = 5 * 2**23  # two of each, the logits of a block and what is computed from them
N_SUMS = 8  # rows of the output, of which five are used


def kernel_tpu(
    hidden_QD: Float[Array, "Q D"],
    n_positions: Int[Array, ""] | int,
    head: Unembedding,
    *,
    interpret: bool = False,
) -> Sums:
    """`column_blocks.sum_columns` as a TPU kernel.

    Args:
        n_positions: sums are computed for the first ones; the others are undefined.
        interpret: run the kernel's operations as JAX's own, on any platform.
    """
    weight = from_storage(head.weight)
    (Q, D), V = hidden_QD.shape, weight.shape[0]
    row = D * weight.dtype.itemsize
    # The hardware splits float32 into bfloat16 parts, which need room beside the blocks.
    most = _power(BLOCK_BYTES // (row if weight.dtype != jnp.float32 else 2 * row))
    most_queries = most if weight.dtype == jnp.float32 else 2 * most
    queries = max(LANES, min(QUERIES, _power(Q), most_queries))
    columns = max(LANES, min(COLUMNS, _power(V), most))
    hidden = hidden_QD.astype(weight.dtype)
    if short := -Q % queries:
        hidden = jnp.pad(hidden, ((0, short), (0, 0)))
    n_blocks, n_columns = hidden.shape[0] // queries, pl.cdiv(V, columns)
    inputs = [hidden, weight]
    specs = [
        pl.BlockSpec((queries, D), lambda q, v: (q, 0)),
        pl.BlockSpec((columns, D), lambda q, v: (v, 0)),
    ]
    if head.bias is not None:
        inputs.append(head.bias[None])
        specs.append(pl.BlockSpec((1, columns), lambda q, v: (0, v)))
    kept = pltpu.VMEM((queries, LANES), jnp.float32)
    out = pl.pallas_call(
        functools.partial(
            _kernel, n_real=V, n_columns=n_columns, scale=head.scale, softcap=head.softcap
        ),
        grid=(jnp.minimum(pl.cdiv(n_positions, queries), n_blocks), n_columns),
        in_specs=specs,
        out_specs=pl.BlockSpec((N_SUMS, queries), lambda q, v: (0, q)),
        out_shape=jax.ShapeDtypeStruct(
            (N_SUMS, hidden.shape[0]),
            jnp.float32,
            manual_axis_type=jax.typeof(hidden).manual_axis_type,
        ),
        scratch_shapes=[kept] * 4 + [pltpu.VMEM((queries, LANES), jnp.int32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * Q * V * D,
            transcendentals=Q * V,
            bytes_accessed=n_blocks * V * row + Q * row,
        ),
        interpret=interpret,
        name="vocabulary_sums",
    )(*inputs)
    top, s0, s1, s2, best = (out[k, :Q] for k in range(5))
    return Sums(top, s0, s1, s2, best.astype(jnp.int32))


def _power(n: int) -> int:
    """Largest power of two up to n."""
    return 1 << (max(1, n).bit_length() - 1)


def _kernel(
    hidden_ref: Any,
    weight_ref: Any,
    *refs: Any,
    n_real: int,
    n_columns: int,
    scale: float,
    softcap: float | None,
) -> None:
    """One block of columns for one block of positions."""
    # Over 60 lines: a kernel reads from top to bottom.
    *bias_ref, out_ref, top_ref, s0_ref, s1_ref, s2_ref, best_ref = refs
    columns = weight_ref.shape[0]
    nth = pl.program_id(1)

    @pl.when(nth == 0)
    def start() -> None:
        top_ref[...] = jnp.full_like(top_ref, LOWEST)
        for ref in (s0_ref, s1_ref, s2_ref):
            ref[...] = jnp.zeros_like(ref)
        best_ref[...] = jnp.zeros_like(best_ref)

    def step(ragged: bool) -> None:
        z = lax.dot_general(
            hidden_ref[...],
            weight_ref[...],
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST if weight_ref.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        z = transform(z, bias_ref[0][...] if bias_ref else None, scale, softcap)
        parts = [z[:, k : k + LANES] for k in range(0, columns, LANES)]
        real: list[jax.Array] = []
        if ragged:
            lane = lax.broadcasted_iota(jnp.int32, parts[0].shape, 1)
            real = [nth * columns + k * LANES + lane < n_real for k in range(len(parts))]
            parts = [jnp.where(r, part, -jnp.inf) for r, part in zip(real, parts, strict=True)]
        before = top_ref[...]
        top, best = before, best_ref[...]
        for k, part in enumerate(parts):  # the lowest column that holds the maximum
            best = jnp.where(part > top, nth * columns + k * LANES, best)
            top = jnp.maximum(top, part)
        rise, shrink = before - top, jnp.exp(before - top)
        count = (nth * (columns // LANES)).astype(jnp.float32)
        s0, s1 = shrink * s0_ref[...], shrink * (s1_ref[...] + rise * s0_ref[...])
        s2 = s2_ref[...] + count * rise
        for k, part in enumerate(parts):
            below = part - top
            weight = jnp.exp(below)
            # Of a column of probability 0 the product with minus infinity is 0.
            more = weight * jnp.maximum(below, LOWEST)
            s0, s1 = s0 + weight, s1 + more
            s2 += jnp.where(real[k], below, 0.0) if ragged else below
        top_ref[...], s0_ref[...], s1_ref[...], s2_ref[...] = top, s0, s1, s2
        best_ref[...] = best

    if n_real % columns:
        pl.when(nth < n_columns - 1)(functools.partial(step, False))
        pl.when(nth == n_columns - 1)(functools.partial(step, True))
    else:
        step(False)

    @pl.when(nth == n_columns - 1)
    def finish() -> None:
        of_lane = top_ref[...]
        lane = lax.broadcasted_iota(jnp.int32, of_lane.shape, 1)
        full, rest = divmod(n_real, LANES)
        count = full + (lane < rest).astype(jnp.float32)  # columns of each lane
        top = of_lane.max(axis=1, keepdims=True)
        rise, shrink = of_lane - top, jnp.exp(of_lane - top)
        s0 = shrink * s0_ref[...]
        s1 = shrink * (s1_ref[...] + rise * s0_ref[...])
        s2 = s2_ref[...] + count * rise
        best = jnp.where(of_lane == top, best_ref[...] + lane, n_real)
        numbers = (
            top,
            s0.sum(axis=1, keepdims=True),
            s1.sum(axis=1, keepdims=True),
            s2.sum(axis=1, keepdims=True),
            best.astype(jnp.float32).min(axis=1, keepdims=True),
        )
        for k, column in enumerate(numbers):
            out_ref[k : k + 1] = jnp.transpose(jnp.broadcast_to(column, of_lane.shape))[:1]
