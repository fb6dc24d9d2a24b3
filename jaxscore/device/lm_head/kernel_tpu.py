"""The LM head's sums as one TPU kernel (Pallas, Mosaic) that keeps the logits on the chip.

    grid (position blocks, column blocks)    hidden states [positions, D]    weights [columns, D]

Each of the 128 lanes of a register has separate sums over every 128th column. The lanes are merged
once at the end, so no step moves numbers between lanes. The number of position blocks is data.
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
QUERIES, COLUMNS = 512, 1024  # maximum sizes of a block
BLOCK_BYTES = 2**22  # maximum size of a weight block, and half that of a 16-bit hidden block
VMEM_BYTES = 5 * 2**23  # two blocks of each, a block of logits and intermediate results
N_SUMS = 8  # rows of the output; five are used


def kernel_tpu(
    hidden_QD: Float[Array, "Q D"],
    n_positions: Int[Array, ""] | int,
    head: Unembedding,
    *,
    interpret: bool = False,
) -> Sums:
    """`column_blocks.sum_columns` as a TPU kernel.

    Args:
        hidden_QD: final hidden states.
        n_positions: number of positions to compute; the sums of the others are undefined.
        head: the LM head.
        interpret: if True, run the kernel as ordinary JAX operations, on any platform.
    """
    weight = from_storage(head.weight)
    (Q, D), V = hidden_QD.shape, weight.shape[0]
    row_bytes = D * weight.dtype.itemsize
    # The hardware splits float32 into bfloat16 terms, which need memory in addition to the blocks.
    max_rows = _floor_power_of_two(
        BLOCK_BYTES // (row_bytes if weight.dtype != jnp.float32 else 2 * row_bytes)
    )
    max_queries = max_rows if weight.dtype == jnp.float32 else 2 * max_rows
    queries = max(LANES, min(QUERIES, _floor_power_of_two(Q), max_queries))
    columns = max(LANES, min(COLUMNS, _floor_power_of_two(V), max_rows))
    hidden = hidden_QD.astype(weight.dtype)
    if padding := -Q % queries:
        hidden = jnp.pad(hidden, ((0, padding), (0, 0)))
    n_blocks, n_columns = hidden.shape[0] // queries, pl.cdiv(V, columns)
    inputs = [hidden, weight]
    specs = [
        pl.BlockSpec((queries, D), lambda q, v: (q, 0)),
        pl.BlockSpec((columns, D), lambda q, v: (v, 0)),
    ]
    if head.bias is not None:
        inputs.append(head.bias[None])
        specs.append(pl.BlockSpec((1, columns), lambda q, v: (0, v)))
    lane_sums = pltpu.VMEM((queries, LANES), jnp.float32)
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
        scratch_shapes=[lane_sums] * 4 + [pltpu.VMEM((queries, LANES), jnp.int32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * Q * V * D,
            transcendentals=Q * V,
            bytes_accessed=n_blocks * V * row_bytes + Q * row_bytes,
        ),
        interpret=interpret,
        name="vocabulary_sums",
    )(*inputs)
    top, s0, s1, s2, best = (out[k, :Q] for k in range(5))
    return Sums(top, s0, s1, s2, best.astype(jnp.int32))


def _floor_power_of_two(n: int) -> int:
    """Return the largest power of two that is at most n."""
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
    """Add one block of columns to the sums of one block of positions."""
    # Over 60 lines: a kernel reads from top to bottom.
    *bias_ref, out_ref, top_ref, s0_ref, s1_ref, s2_ref, best_ref = refs
    columns = weight_ref.shape[0]
    index = pl.program_id(1)

    @pl.when(index == 0)
    def start() -> None:
        top_ref[...] = jnp.full_like(top_ref, LOWEST)
        for ref in (s0_ref, s1_ref, s2_ref):
            ref[...] = jnp.zeros_like(ref)
        best_ref[...] = jnp.zeros_like(best_ref)

    def step(is_last: bool) -> None:
        z = lax.dot_general(
            hidden_ref[...],
            weight_ref[...],
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST if weight_ref.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        z = transform(z, bias_ref[0][...] if bias_ref else None, scale, softcap)
        tiles = [z[:, k : k + LANES] for k in range(0, columns, LANES)]
        real: list[jax.Array] = []
        if is_last:
            lane = lax.broadcasted_iota(jnp.int32, tiles[0].shape, 1)
            real = [index * columns + k * LANES + lane < n_real for k in range(len(tiles))]
            tiles = [jnp.where(r, tile, -jnp.inf) for r, tile in zip(real, tiles, strict=True)]
        old_top = top_ref[...]
        top, best = old_top, best_ref[...]
        for k, tile in enumerate(tiles):  # keep the lowest column with the maximum
            best = jnp.where(tile > top, index * columns + k * LANES, best)
            top = jnp.maximum(top, tile)
        rise, alpha = old_top - top, jnp.exp(old_top - top)
        count = (index * (columns // LANES)).astype(jnp.float32)
        s0, s1 = alpha * s0_ref[...], alpha * (s1_ref[...] + rise * s0_ref[...])
        s2 = s2_ref[...] + count * rise
        for k, tile in enumerate(tiles):
            below = tile - top
            weight = jnp.exp(below)
            # A column of probability 0 adds 0, even if its logit is minus infinity.
            s1_term = weight * jnp.maximum(below, LOWEST)
            s0, s1 = s0 + weight, s1 + s1_term
            s2 += jnp.where(real[k], below, 0.0) if is_last else below
        top_ref[...], s0_ref[...], s1_ref[...], s2_ref[...] = top, s0, s1, s2
        best_ref[...] = best

    if n_real % columns:
        pl.when(index < n_columns - 1)(functools.partial(step, False))
        pl.when(index == n_columns - 1)(functools.partial(step, True))
    else:
        step(False)

    @pl.when(index == n_columns - 1)
    def finish() -> None:
        lane_top = top_ref[...]
        lane = lax.broadcasted_iota(jnp.int32, lane_top.shape, 1)
        full, remainder = divmod(n_real, LANES)
        count = full + (lane < remainder).astype(jnp.float32)  # number of columns per lane
        top = lane_top.max(axis=1, keepdims=True)
        rise, alpha = lane_top - top, jnp.exp(lane_top - top)
        s0 = alpha * s0_ref[...]
        s1 = alpha * (s1_ref[...] + rise * s0_ref[...])
        s2 = s2_ref[...] + count * rise
        best = jnp.where(lane_top == top, best_ref[...] + lane, n_real)
        results = (
            top,
            s0.sum(axis=1, keepdims=True),
            s1.sum(axis=1, keepdims=True),
            s2.sum(axis=1, keepdims=True),
            best.astype(jnp.float32).min(axis=1, keepdims=True),
        )
        for k, column in enumerate(results):
            out_ref[k : k + 1] = jnp.transpose(jnp.broadcast_to(column, lane_top.shape))[:1]
