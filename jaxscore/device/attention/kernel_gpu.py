"""Attention under the interval mask as one GPU kernel (Pallas, Triton).

The same computation as `kernel_tpu`: the online softmax of flash attention (arXiv 2205.14135) over
the pairs of blocks in which anything is seen. Each program takes one block of queries of some heads
that share a key head, and walks a list of the key blocks that it sees: first those that are seen
whole, which need no mask.

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
from jaxscore.device.attention.score_rule import ScoreRule, block_pairs, flat_ends, padded

LOG2_E = math.log2(math.e)
LOWEST = -1e29  # of the running maximum: exp2(MASKED - LOWEST) is 0, so a masked row adds 0
BLOCKS = 16, 64  # fewest and most queries, and keys, in a block; not tuned on a device
BLOCK_BYTES = 2**15  # of a block of keys: several such lie in shared memory, 166 kB on an A100
HEADS = 2  # most query heads in a product
NARROWEST = 16  # heads are padded to a power of two from here on
STAGES = 2
# Warps of a program whose heads have up to WIDEST channels, and of others. The registers of 4 are
# too few for wide heads: with 256 channels 34 kB were spilled on an A100 (compiled, not run).
WARPS, WIDEST, WIDE_WARPS = 4, 64, 8


class Sizes(NamedTuple):
    """Static sizes of a kernel: `group` query heads of a key head are rows of one product."""

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
        interpret: run the kernel's operations as JAX's own, on any platform.
    """
    N, H = q_RLNH.shape[2:]
    per_key = N // k_RLKH.shape[2]
    group = math.gcd(per_key, HEADS)
    width = max(NARROWEST, 1 << (H - 1).bit_length())
    block = block_size(width, dtype)
    sizes = Sizes(group, per_key // group, block, width)
    arrays = q_RLNH, k_RLKH, v_RLKH, position_RL, subtree_end_RL, window
    inputs = by_head(*arrays, dtype=dtype, queries=block, keys=block, width=width)
    out, lse = _run(inputs, window is not None, sizes, rule, interpret)
    return by_row(out, lse, q_RLNH.shape)


class ByHead(NamedTuple):
    """Rows as one row of T tokens, see `score_rule`; T is padded to whole blocks.

    Attributes:
        q, k, v: [heads, T, width].
        end, position: [T].
        window: [1]; 0 if there is none.
        order: for each block of queries all blocks of keys: those that it sees whole, those that
            need a mask, and those that it does not visit.
        visits: the first number of these, and the first two together.
    """

    q: Array
    k: Array
    v: Array
    end: Array
    position: Array
    window: Array
    order: Array
    visits: Array


def by_head(
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
) -> ByHead:
    """Inputs of a kernel for blocks of `queries` and `keys`, which divides `queries`."""
    H = q_RLNH.shape[-1]

    def heads(x_RLXH: jax.Array) -> jax.Array:
        x = x_RLXH.astype(dtype).reshape(-1, x_RLXH.shape[2], H).transpose(1, 0, 2)
        return padded(padded(x, queries, 1), width, 2)

    end = padded(flat_ends(subtree_end_RL), queries, 0)
    position = padded(position_RL.reshape(-1).astype(jnp.int32), queries, 0)
    some, every = block_pairs(end, position, window, queries, keys)
    order = jnp.argsort(jnp.where(every, 0, jnp.where(some, 1, 2)), axis=1, stable=True)
    visits = jnp.stack([every.sum(axis=1), some.sum(axis=1)], axis=1)
    at = jnp.zeros(1, jnp.int32) if window is None else window.reshape(1)
    lists = order.astype(jnp.int32), visits.astype(jnp.int32)
    return ByHead(heads(q_RLNH), heads(k_RLKH), heads(v_RLKH), end, position, at, *lists)


def by_row(
    out: Array, lse: Array, shape: tuple[int, ...]
) -> tuple[Float[Array, "R L N H"], Float[Array, "R L N"]]:
    """A kernel's mixed values [..., T, width] and log-sum-exp [..., T] of N heads, by rows."""
    R, L, N, H = shape
    out = out.reshape(N, -1, out.shape[-1])[:, : R * L, :H].swapaxes(0, 1)
    return out.reshape(R, L, N, H), lse.reshape(N, -1)[:, : R * L].T.reshape(R, L, N)


def lower_small(kernel: Callable[..., Any] = kernel_gpu) -> None:
    """Lower a kernel of one block for JAX's device; what Pallas raises passes through."""
    x = jax.ShapeDtypeStruct((1, BLOCKS[0], 1, NARROWEST), jnp.bfloat16)
    at = jax.ShapeDtypeStruct(x.shape[:2], jnp.int32)
    run = functools.partial(kernel, window=None, rule=ScoreRule(1.0), dtype=x.dtype)
    jax.jit(run).lower(x, x, x, at, at)


def block_size(width: int, dtype: Any) -> int:
    """Queries, and keys, in a block for heads of a width: blocks of wide heads are smaller."""
    least, most = BLOCKS
    return max(least, min(most, BLOCK_BYTES // (width * jnp.dtype(dtype).itemsize)))


def _warps(width: int) -> int:
    """Warps of a program for heads of a padded width."""
    return WARPS if width <= WIDEST else WIDE_WARPS


def _run(
    inputs: ByHead, windowed: bool, sizes: Sizes, rule: ScoreRule, interpret: bool
) -> tuple[Array, Array]:
    """The kernel call: mixed values [groups, group, T, H] and log-sum-exp [groups, group, T]."""
    from jax.experimental.pallas import triton  # deferred: `kernel_mosaic` does without it

    q, k, v, *given = inputs
    group, per, block, width = sizes
    T, n_groups = q.shape[1], q.shape[0] // group
    bias = rule.kernel_bias(inputs.position)
    slopes, penalties = bias or (None, None)
    for one in (slopes, penalties):
        if one is not None:
            given.append(one.reshape(n_groups, group, *one.shape[1:]))

    def whole(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec(x.shape, lambda h, i: (0,) * x.ndim)

    of_q = pl.BlockSpec((None, group, block, width), lambda h, i: (h, 0, i, 0))
    of_k = pl.BlockSpec((None, T, width), lambda h, i: (h // per, 0, 0))
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
        in_specs=[of_q, of_k, of_k, *map(whole, given)],
        out_specs=[of_q, pl.BlockSpec((None, group, block), lambda h, i: (h, 0, i))],
        out_shape=[
            jax.ShapeDtypeStruct((n_groups, group, T, width), jnp.float32),
            jax.ShapeDtypeStruct((n_groups, group, T), jnp.float32),
        ],
        compiler_params=triton.CompilerParams(num_warps=_warps(width), num_stages=STAGES),
        interpret=interpret,
        name="interval_attention",
    )(q.reshape(n_groups, group, T, width), k, v, *given)


def _kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    end_ref: Any,
    at_ref: Any,
    window_ref: Any,
    order_ref: Any,
    visits_ref: Any,
    *refs: Any,
    **what: Any,
) -> None:
    """One block of queries of one group of heads."""
    # Over 60 lines: a kernel reads from top to bottom.
    *bias_ref, out_ref, lse_ref = refs
    group, _, block, width = what["sizes"]
    scale, softcap, alibi = what["scale"], what["softcap"], what["alibi"]
    head, of_queries = pl.program_id(0), pl.program_id(1)
    rows, shape = group * block, (group, block, block)
    first = of_queries * block
    i = first + lax.broadcasted_iota(jnp.int32, shape[1:], 0)
    at_i = at_ref[pl.ds(first, block)]
    q = q_ref[...].reshape(rows, width)
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None

    def product(a: Array, b: Array, axis: int) -> Array:
        return lax.dot_general(
            a,
            b,
            (((1,), (axis,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    def step(masked: bool, nth: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        mixed, top, total = carry
        start = order_ref[of_queries, nth] * block
        keys = pl.ds(start, block)
        scores = product(q, k_ref[keys, :], 1)
        if softcap is None:
            scores = scores * (scale * LOG2_E)
        else:
            scores = (softcap * LOG2_E) * jnp.tanh(scores * (scale / softcap))
        distance = at_i[:, None] - at_ref[keys][None, :]
        if alibi == "fine":
            penalty = distance.astype(jnp.float32)[None] * bias_ref[0][head][:, None, None]
            scores -= penalty.reshape(rows, block)
        elif alibi == "coarse":
            of_i, of_j = bias_ref[0][head, :, pl.ds(first, block)], bias_ref[0][head, :, keys]
            scores += (of_j[:, None, :] - of_i[:, :, None]).reshape(rows, block)
        if masked:
            j = start + lax.broadcasted_iota(jnp.int32, shape[1:], 1)
            seen = (j <= i) & (i < end_ref[keys][None, :])
            if what["windowed"]:
                seen &= (window_ref[0] == 0) | (distance < window_ref[0])
            seen = jnp.broadcast_to(seen[None], shape).reshape(rows, block)
            scores = jnp.where(seen, scores, MASKED)
        higher = jnp.maximum(top, scores.max(axis=1))
        weights = jnp.exp2(scores - higher[:, None])
        shrink = jnp.exp2(top - higher)
        v = v_ref[keys, :]
        mixed = mixed * shrink[:, None] + product(weights.astype(v.dtype), v, 0)
        return mixed, higher, total * shrink + weights.sum(axis=1)

    carry = (
        jnp.zeros((rows, width), jnp.float32),
        jnp.full((rows,), LOWEST, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
    )
    whole, some = visits_ref[of_queries, 0], visits_ref[of_queries, 1]
    carry = lax.fori_loop(0, whole, functools.partial(step, False), carry)
    mixed, top, total = lax.fori_loop(whole, some, functools.partial(step, True), carry)
    total = jnp.where(total == 0.0, 1.0, total)
    out_ref[...] = (mixed / total[:, None]).reshape(group, block, width)
    lse_ref[...] = ((top + jnp.log2(total)) * (1 / LOG2_E)).reshape(group, block)
