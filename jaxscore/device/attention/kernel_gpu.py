"""Attention under the interval mask as one GPU kernel (Pallas, Triton).

The same computation as `kernel_tpu`: the online softmax of flash attention (arXiv 2205.14135) over
the block pairs with a visible key. Each program computes one block of queries, of one or more heads
that share a key head. It loops over a list of the key blocks visible to it, those that need no mask
first.

    grid (groups of heads, query blocks)      q, out [N, T, H]      k, v [K, T, H]
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import (
    ScoreRule,
    block_pairs,
    flatten_ends,
    pad_to_multiple,
)

LOG2_E = math.log2(math.e)
LOWEST = -1e29  # initial running maximum: exp2(MASKED - LOWEST) is 0, so a masked row adds 0
BLOCKS = 16, 64  # minimum and maximum queries, and keys, in a block; not tuned on a device
BLOCK_BYTES = 2**15  # limit for a block of keys; shared memory (166 kB on an A100) holds several
HEADS = 2  # maximum query heads in a product
MIN_WIDTH = 16  # heads are padded to a power of two of at least this width
STAGES = 2
# Programs with heads of up to NARROW_WIDTH channels have WARPS warps, others WIDE_WARPS. The
# registers of 4 warps are too few for wide heads: with 256 channels the compiler spills 34 kB on an
# A100 (compiled, not run).
WARPS, NARROW_WIDTH, WIDE_WARPS = 4, 64, 8


class Sizes(NamedTuple):
    """Static sizes of the kernel.

    Attributes:
        group: number of query heads of a key head that are the rows of one product.
        groups_of_key: number of such groups per key head.
        block: number of queries, and of keys, in a block.
        width: padded head width.
    """

    group: int
    groups_of_key: int
    block: int
    width: int


def kernel_gpu(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    rule: ScoreRule,
    dtype: Any,
    interpret: bool = False,
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """`interval.blocked` as a GPU kernel.

    Args:
        window, rule, dtype: see `interval.attention`.
        interpret: if True, run the kernel as ordinary JAX operations, on any platform.
    """
    N, H = q_RLNH.shape[2:]
    per_key = N // k_RLKH.shape[2]
    group = math.gcd(per_key, HEADS)
    width = max(MIN_WIDTH, 1 << (H - 1).bit_length())
    block = block_size(width, dtype)
    sizes = Sizes(group, per_key // group, block, width)
    arrays = q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window
    inputs = make_kernel_inputs(*arrays, dtype=dtype, queries=block, keys=block, width=width)
    out, lse = _run(inputs, window is not None, sizes, rule, interpret)
    return restore_rows(out, lse, q_RLNH.shape)


class KernelInputs(NamedTuple):
    """Inputs of a kernel: the rows as one row of T tokens, see `score_rule`.

    T is padded to a multiple of the block sizes.

    Attributes:
        q, k, v: queries, keys and values [heads, T, width].
        end, position: subtree ends and positions [T].
        window: the window [1], 0 for no limit.
        order: indices of all key blocks, for each query block [query blocks, key blocks]: first
            blocks that need no mask, then blocks that need one, then blocks without a visible key.
        visits: for each query block the number of key blocks without a mask, and of all visible
            ones [query blocks, 2].
    """

    q: Array
    k: Array
    v: Array
    end: Array
    position: Array
    window: Array
    order: Array
    visits: Array


def make_kernel_inputs(
    q_RLNH: Float[Array, "R L N H"],
    k_RLKH: Float[Array, "R L K H"],
    v_RLKH: Float[Array, "R L K H"],
    position_RL: Int[Array, "R L"],
    subtree_end_RL: Int[Array, "R L"],
    window: Int[Array, ""] | None,
    *,
    dtype: Any,
    queries: int,
    keys: int,
    width: int,
) -> KernelInputs:
    """Prepare the inputs of a kernel.

    Args:
        window, dtype: see `interval.attention`.
        queries: number of queries in a block, a multiple of `keys`.
        keys: number of keys in a block.
        width: padded head width.
    """
    H = q_RLNH.shape[-1]

    def split_heads(x_RLXH: jax.Array) -> jax.Array:
        x = x_RLXH.astype(dtype).reshape(-1, x_RLXH.shape[2], H).transpose(1, 0, 2)
        return pad_to_multiple(pad_to_multiple(x, queries, 1), width, 2)

    end = pad_to_multiple(flatten_ends(subtree_end_RL), queries, 0)
    position = pad_to_multiple(position_RL.reshape(-1).astype(jnp.int32), queries, 0)
    any_visible, all_visible = block_pairs(end, position, window, queries, keys)
    order = jnp.argsort(
        jnp.where(all_visible, 0, jnp.where(any_visible, 1, 2)), axis=1, stable=True
    )
    visits = jnp.stack([all_visible.sum(axis=1), any_visible.sum(axis=1)], axis=1)
    limit = jnp.zeros(1, jnp.int32) if window is None else window.reshape(1)
    lists = order.astype(jnp.int32), visits.astype(jnp.int32)
    return KernelInputs(
        split_heads(q_RLNH), split_heads(k_RLKH), split_heads(v_RLKH), end, position, limit, *lists
    )


def restore_rows(
    out: Array, lse: Array, shape: tuple[int, ...]
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """Split a kernel's output [..., T, width] and log-sum-exp [..., T] of N heads into rows.

    Args:
        shape: R, L, N and H of the result.
    """
    R, L, N, H = shape
    out = out.reshape(N, -1, out.shape[-1])[:, : R * L, :H].swapaxes(0, 1)
    return out.reshape(R, L, N, H), lse.reshape(N, -1)[:, : R * L].T.reshape(R, L, N)


def lower_small(kernel: Callable[..., Any] = kernel_gpu) -> None:
    """Lower a kernel of one block for JAX's device; exceptions of Pallas propagate."""
    x = jax.ShapeDtypeStruct((1, BLOCKS[0], 1, MIN_WIDTH), jnp.bfloat16)
    position = jax.ShapeDtypeStruct(x.shape[:2], jnp.int32)
    run = functools.partial(kernel, window=None, rule=ScoreRule(1.0), dtype=x.dtype)
    jax.jit(run).lower(x, x, x, position, position)


def block_size(width: int, dtype: Any) -> int:
    """Return the number of queries, and of keys, in a block: fewer for wide heads."""
    minimum, maximum = BLOCKS
    return max(minimum, min(maximum, BLOCK_BYTES // (width * jnp.dtype(dtype).itemsize)))


def _run(
    inputs: KernelInputs, windowed: bool, sizes: Sizes, rule: ScoreRule, interpret: bool
) -> tuple[Array, Array]:
    """Call the kernel.

    Returns:
        Attention output [groups, group, T, width] and log-sum-exp [groups, group, T].
    """
    # Deferred, since `kernel_mosaic` must work in a JAX without Pallas Triton.
    from jax.experimental.pallas import triton

    q, k, v, *others = inputs
    group, groups_of_key, block, width = sizes
    T, n_groups = q.shape[1], q.shape[0] // group
    bias = rule.kernel_bias(inputs.position)
    slopes, penalties = bias or (None, None)
    for bias_array in (slopes, penalties):
        if bias_array is not None:
            others.append(bias_array.reshape(n_groups, group, *bias_array.shape[1:]))

    def whole_spec(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec(x.shape, lambda h, i: (0,) * x.ndim)

    q_spec = pl.BlockSpec((None, group, block, width), lambda h, i: (h, 0, i, 0))
    k_spec = pl.BlockSpec((None, T, width), lambda h, i: (h // groups_of_key, 0, 0))
    return pl.pallas_call(
        functools.partial(
            _kernel,
            sizes=sizes,
            scale=rule.scale,
            softcap=rule.softcap,
            windowed=windowed,
            alibi=None if bias is None else "fine" if slopes is not None else "coarse",
        ),
        grid=(n_groups, T // block),
        in_specs=[q_spec, k_spec, k_spec, *map(whole_spec, others)],
        out_specs=[q_spec, pl.BlockSpec((None, group, block), lambda h, i: (h, 0, i))],
        out_shape=[
            jax.ShapeDtypeStruct((n_groups, group, T, width), jnp.float32),
            jax.ShapeDtypeStruct((n_groups, group, T), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(
            num_warps=WARPS if width <= NARROW_WIDTH else WIDE_WARPS, num_stages=STAGES
        ),
        interpret=interpret,
        name="interval_attention",
    )(q.reshape(n_groups, group, T, width), k, v, *others)


def _kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    end_ref: Any,
    position_ref: Any,
    window_ref: Any,
    order_ref: Any,
    visits_ref: Any,
    *refs: Any,
    **options: Any,
) -> None:
    """Compute one block of queries of one group of heads."""
    # Over 60 lines: a kernel reads from top to bottom.
    *bias_ref, out_ref, lse_ref = refs
    group, _, block, width = options["sizes"]
    scale, softcap, alibi = options["scale"], options["softcap"], options["alibi"]
    head, q_index = pl.program_id(0), pl.program_id(1)
    rows, shape = group * block, (group, block, block)
    first = q_index * block
    i = first + lax.broadcasted_iota(jnp.int32, shape[1:], 0)
    position_i = position_ref[pl.ds(first, block)]
    q = q_ref[...].reshape(rows, width)
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None

    def dot(a: Array, b: Array, axis: int) -> Array:
        return lax.dot_general(
            a,
            b,
            (((1,), (axis,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def step(is_masked: bool, visit: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        acc, m_i, l_i = carry
        start = order_ref[q_index, visit] * block
        keys = pl.ds(start, block)
        scores = dot(q, k_ref[keys, :], 1)
        if softcap is None:
            scores = scores * (scale * LOG2_E)
        else:
            scores = (softcap * LOG2_E) * jnp.tanh(scores * (scale / softcap))
        distance = position_i[:, None] - position_ref[keys][None, :]
        if alibi == "fine":
            penalty = distance.astype(jnp.float32)[None] * bias_ref[0][head][:, None, None]
            scores -= penalty.reshape(rows, block)
        elif alibi == "coarse":
            bias_i, bias_j = bias_ref[0][head, :, pl.ds(first, block)], bias_ref[0][head, :, keys]
            scores += (bias_j[:, None, :] - bias_i[:, :, None]).reshape(rows, block)
        if is_masked:
            j = start + lax.broadcasted_iota(jnp.int32, shape[1:], 1)
            mask = (j <= i) & (i < end_ref[keys][None, :])
            if options["windowed"]:
                mask &= (window_ref[0] == 0) | (distance < window_ref[0])
            mask = jnp.broadcast_to(mask[None], shape).reshape(rows, block)
            scores = jnp.where(mask, scores, MASKED)
        m_new = jnp.maximum(m_i, scores.max(axis=1))
        p = jnp.exp2(scores - m_new[:, None])
        alpha = jnp.exp2(m_i - m_new)
        v = v_ref[keys, :]
        acc = acc * alpha[:, None] + dot(p.astype(v.dtype), v, 0)
        return acc, m_new, l_i * alpha + p.sum(axis=1)

    carry = (
        jnp.zeros((rows, width), jnp.float32),
        jnp.full((rows,), LOWEST, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
    )
    n_unmasked, n_visible = visits_ref[q_index, 0], visits_ref[q_index, 1]
    carry = lax.fori_loop(0, n_unmasked, functools.partial(step, False), carry)
    acc, m_i, l_i = lax.fori_loop(n_unmasked, n_visible, functools.partial(step, True), carry)
    l_i = jnp.where(l_i == 0.0, 1.0, l_i)
    out_ref[...] = (acc / l_i[:, None]).reshape(group, block, width)
    lse_ref[...] = ((m_i + jnp.log2(l_i)) * (1 / LOG2_E)).reshape(group, block)
