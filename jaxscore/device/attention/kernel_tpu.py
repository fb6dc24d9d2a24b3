"""Attention under the interval mask as one TPU kernel (Pallas, Mosaic).

The online softmax of flash attention (arXiv 2205.14135) over the pairs of blocks in which
anything is seen (`block_pairs`). The list of these pairs is computed on the device and prefetched
as scalars, and its length is the bound of the grid, so that a pair that is not listed costs
neither a step nor a copy. The query heads of one key head are rows of one product. Scalar memory
is small, so the queries of long rows are computed in parts, each with a list of its own.

    grid (groups of heads, pairs)
    q, out [T, N, H] where whole registers hold a head (H a multiple of 128), else [N, T, H]

Running maximum and sum are kept in all 128 lanes of a register: a column would take as much
room. Scores are in units of ln 2, since the hardware has exp2.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from jaxscore.device.attention.kv_cache import MASKED
from jaxscore.device.attention.score_rule import (
    BatchTooLong,
    ScoreRule,
    block_pairs,
    flat_ends,
    padded,
    pair_counts,
)

LANES = 128
LOG2_E = math.log2(math.e)
LOWEST = -1e29  # of the running maximum: exp2(MASKED - LOWEST) is 0, so a masked row adds 0
# Tokens in a block of queries, and most in a block of keys. The smaller query block is for numbers
# of heads that the larger one does not divide well, such as seven.
QUERIES, KEYS = (256, 128), 512
# Rows of a product: query heads times queries; fewer if heads are wider than 256, whose blocks
# would not fit in a core's memory.
MOST_ROWS = 1024

FIRST, LAST, PARTIAL = 1, 2, 4  # a pair's flags: of its query block, and whether it has a mask
BITS = 14  # of a block's number in a packed pair
# Pairs of a list: 768 kB of the 1 MB of scalar memory that v5e, v5p and v6e have
MOST_PAIRS = 3 << 16


class Sizes(NamedTuple):
    """Static sizes of a kernel: `group` query heads of a key head are rows of one product."""

    group: int
    groups_of_key: int
    queries: int
    keys: int
    width: int
    by_token: bool


class Parts(NamedTuple):
    """Static ranges of query blocks: their number, the blocks in each, most pairs of one."""

    n: int
    blocks: int
    pairs: int


def kernel_tpu(
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
    """`interval.blocked` as a TPU kernel.

    Args:
        interpret: run the kernel's operations as JAX's own, on any platform.

    Raises:
        BatchTooLong: 8 million tokens, or fewer if rows are shorter than 512.
    """
    R, L, N, H = q_RLNH.shape
    K, T = k_RLKH.shape[2], R * L
    sizes = block_sizes(L, N // K, H)
    end = padded(flat_ends(subtree_end_RL), sizes.keys, 0)
    position = padded(position_RL.reshape(-1).astype(jnp.int32), sizes.keys, 0)
    parts = query_parts(R * L, L, sizes)
    pairs, n_pairs = _visible_pairs(end, position, window, sizes, parts)
    q, k, v = (_laid_out(x.astype(dtype), sizes) for x in (q_RLNH, k_RLKH, v_RLKH))
    bias = rule.kernel_bias(position)

    def run(of_part: tuple[int | Array, Array, Array]) -> tuple[Array, Array]:
        part, *listed = of_part
        return _run(
            (q, k, v),
            (end, position, window),
            bias,
            listed,
            part * parts.blocks,
            sizes,
            rule,
            n_blocks=parts.blocks,
            useful_pairs=R * L * (L + 1) // 2,
            interpret=interpret,
        )

    if parts.n == 1:
        out, lse = run((0, pairs[0], n_pairs[0]))
    else:
        out, lse = lax.map(run, (jnp.arange(parts.n, dtype=jnp.int32), pairs, n_pairs))
        axis = 0 if sizes.by_token else 2  # of the tokens
        out, lse = _joined(out, axis), _joined(lse, 2)
    if not sizes.by_token:
        out = out.reshape(N, -1, H).swapaxes(0, 1)
    return out.reshape(-1, N, H)[:T].reshape(R, L, N, H), lse.reshape(N, -1)[:, :T].T.reshape(
        R, L, N
    )


def _laid_out(x_RLXH: Array, sizes: Sizes) -> Array:
    """Tokens of all rows one after another, padded to whole blocks of keys."""
    x = x_RLXH.reshape(-1, *x_RLXH.shape[2:])
    if sizes.by_token:
        return padded(x, sizes.keys, 0).reshape(-1, x.shape[1] * x.shape[2])
    return padded(x.transpose(1, 0, 2), sizes.keys, 1)


def _joined(parts: Array, axis: int) -> Array:
    """Arrays [parts, ...] one after the other along an axis."""
    whole = jnp.moveaxis(parts, 0, axis)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2 :])


def block_sizes(length: int, heads: int, width: int) -> Sizes:
    """Sizes with the most rows in a product; among equals those with the larger query block.

    Args:
        length: of a row.
        heads: query heads of each key head.
        width: of a head.
    """
    keys = max(LANES, min(KEYS, 1 << (length - 1).bit_length()))
    most = MOST_ROWS * 256 // max(width, 256)
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    rows, queries = max(
        (n * queries, queries)
        for queries in QUERIES
        for n in divisors
        if queries <= keys and n * queries <= max(queries, most)
    )
    group = rows // queries
    return Sizes(group, heads // group, queries, keys, width, width % LANES == 0)


def query_parts(n_tokens: int, length: int, sizes: Sizes) -> Parts:
    """As few parts as their lists of at most `MOST_PAIRS` allow.

    Raises:
        BatchTooLong: see `kernel_tpu`.
    """
    T = -(-n_tokens // sizes.keys) * sizes.keys
    if T // sizes.keys >= 1 << BITS:
        raise BatchTooLong(
            f"a batch of {T} tokens, padding included, is too long for attention on a TPU, which "
            f"takes fewer than {sizes.keys << BITS}"
        )
    counts = pair_counts(T, length, sizes.queries, sizes.keys)
    for n in range(1, len(counts) + 1):
        blocks = -(-len(counts) // n)
        most = max(sum(counts[k : k + blocks]) for k in range(0, len(counts), blocks))
        if most <= MOST_PAIRS and blocks < 1 << BITS:
            break
    return Parts(-(-len(counts) // blocks), blocks, most)


def _visible_pairs(
    end_T: Array, position_T: Array, window: Array | None, sizes: Sizes, parts: Parts
) -> tuple[Array, Array]:
    """Block pairs that a kernel computes, in the order of their query blocks, and their number.

    A pair is one number: flags, then the numbers of both blocks, as scalar memory is small. Query
    blocks are counted from the start of their part.

    Returns:
        [parts, most pairs] and [parts].
    """
    i_block, keys = sizes.queries, sizes.keys
    T = end_T.shape[0]
    some, every = block_pairs(end_T, position_T, window, i_block, keys)
    i = jnp.arange(T // i_block, dtype=jnp.int32)[:, None]
    j = jnp.arange(T // keys, dtype=jnp.int32)[None, :]
    some |= j == i * i_block // keys  # the diagonal always, so that every query block is written
    nth = jnp.cumsum(some, axis=1)
    flags = (nth == 1) * FIRST + (nth == nth[:, -1:]) * LAST + (~every) * PARTIAL
    packed = (flags << (2 * BITS)) + (i % parts.blocks << BITS) + j
    some, packed = (
        padded(x, parts.n * parts.blocks, 0).reshape(parts.n, -1) for x in (some, packed)
    )
    # A stable sort; `nonzero` is a scatter, of which the TPU compiler has no estimate.
    at = jnp.argsort(~some, axis=1, stable=True)[:, : parts.pairs]
    listed = jnp.take_along_axis(packed, at, axis=1).astype(jnp.int32)
    return listed, some.sum(axis=1, dtype=jnp.int32)


def _run(
    qkv: tuple[Array, Array, Array],
    mask: tuple[Array, Array, Array | None],
    bias: tuple[Array | None, Array | None] | None,
    pairs: Sequence[Array],
    first: int | Array,
    sizes: Sizes,
    rule: ScoreRule,
    *,
    n_blocks: int,
    useful_pairs: int,
    interpret: bool,
) -> tuple[Array, Array]:
    """The kernel call for `n_blocks` query blocks from `first` on; q and out as `Sizes.by_token`
    says, log-sum-exp [groups, group, tokens of the blocks]."""
    # Over 60 lines: block specifications of one call, which share the index functions.
    q, k, v = qkv
    end_T, position_T, window = mask
    slopes, penalties = bias or (None, None)
    packed, n_pairs = pairs
    group, per, i_block, j_block, H, by_token = sizes
    T = end_T.shape[0]
    n_groups = (q.shape[1] // H if by_token else q.shape[0]) // group
    if not by_token:
        q = q.reshape(n_groups, group, T, H)

    def query(pair: Array) -> Array:
        return (pair >> BITS) & ((1 << BITS) - 1)

    def key(pair: Array) -> Array:
        return pair & ((1 << BITS) - 1)

    def of_queries(shape: tuple[int, ...], where: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        """Blocks of an array of all queries, and of an array of these queries."""
        return (
            pl.BlockSpec(shape, lambda h, s, p, c: where(h, query(p[s]) + c[1])),
            pl.BlockSpec(shape, lambda h, s, p, _: where(h, query(p[s]))),
        )

    n_tokens = n_blocks * i_block
    if by_token:
        of_q, of_out = of_queries((i_block, group * H), lambda h, i: (i, h))
        of_k = pl.BlockSpec((j_block, H), lambda h, s, p, _: (key(p[s]), h // per))
        out_shape: tuple[int, ...] = n_tokens, q.shape[1]
    else:
        of_q, of_out = of_queries((1, group, i_block, H), lambda h, i: (h, 0, i, 0))
        of_k = pl.BlockSpec((1, j_block, H), lambda h, s, p, _: (h // per, key(p[s]), 0))
        out_shape = n_groups, group, n_tokens, H
    of_head, of_lse = of_queries((1, group, i_block), lambda h, i: (h, 0, i))
    of_keys = pl.BlockSpec((1, j_block), lambda h, s, p, _: (0, key(p[s])))
    inputs, specs = [q, k, v, end_T[None]], [of_q, of_k, of_k, of_keys]
    if window is not None or slopes is not None:
        inputs += [position_T[None], position_T[None]]
        specs += [of_queries((1, i_block), lambda h, i: (0, i))[0], of_keys]
    if penalties is not None:
        inputs += [penalties.reshape(n_groups, group, T)] * 2
        specs += [of_head, pl.BlockSpec((1, group, j_block), lambda h, s, p, _: (h, 0, key(p[s])))]
    if slopes is not None:
        of_group = slopes.reshape(n_groups, group, 1)
        inputs.append(jnp.broadcast_to(of_group, (n_groups, group, LANES)))
        specs.append(pl.BlockSpec((1, group, LANES), lambda h, s, *_: (h, 0, 0)))
    limit = jnp.int32(0) if window is None else window.reshape(())
    rows = group * i_block
    n_heads = n_groups * group
    return pl.pallas_call(
        functools.partial(
            _kernel,
            sizes=sizes,
            scale=rule.scale,
            softcap=rule.softcap,
            windowed=window is not None,
            alibi=None if bias is None else "fine" if slopes is not None else "coarse",
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(n_groups, n_pairs),
            in_specs=specs,
            out_specs=[of_out, of_lse],
            scratch_shapes=[
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, LANES), jnp.float32),
                pltpu.VMEM((rows, H), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(out_shape, jnp.float32),
            jax.ShapeDtypeStruct((n_groups, group, n_tokens), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        # For the compiler's model of time alone: the tokens that a full causal row sees.
        cost_estimate=pl.CostEstimate(
            flops=4 * n_heads * H * useful_pairs,
            transcendentals=n_heads * useful_pairs,
            bytes_accessed=q.size * (q.dtype.itemsize + 4)
            + 2 * n_groups * useful_pairs // i_block * H * k.dtype.itemsize,
        ),
        interpret=interpret,
        name="interval_attention",
    )(packed, jnp.stack([limit, jnp.int32(first)]), *inputs)


def _kernel(
    packed_ref: Any,
    scalars_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    end_ref: Any,
    *refs: Any,
    sizes: Sizes,
    **what: Any,
) -> None:
    """One pair of blocks of one group of heads."""
    # Over 60 lines: a kernel reads from top to bottom.
    group, _, i_block, j_block, H, by_token = sizes
    *inputs, out_ref, lse_ref, top_ref, sum_ref, mixed_ref = refs
    pair = packed_ref[pl.program_id(1)]
    flags = pair >> (2 * BITS)
    i_first = (((pair >> BITS) & ((1 << BITS) - 1)) + scalars_ref[1]) * i_block
    j_first = (pair & ((1 << BITS) - 1)) * j_block
    precision = lax.Precision.HIGHEST if k_ref.dtype == jnp.float32 else None

    @pl.when(flags & FIRST != 0)
    def start() -> None:
        top_ref[...] = jnp.full_like(top_ref, LOWEST)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        mixed_ref[...] = jnp.zeros_like(mixed_ref)

    def step(masked: bool) -> None:
        if by_token:  # one head below the other: whole registers, so nothing moves
            q = jnp.concatenate([q_ref[:, h * H : (h + 1) * H] for h in range(group)], axis=0)
            k, v = k_ref[...], v_ref[...]
        else:
            q, k, v = q_ref[0].reshape(group * i_block, H), k_ref[0], v_ref[0]
        scores = lax.dot_general(
            q,
            k,
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        first = i_first, j_first
        scores = _masked_scores(scores, inputs, masked, scalars_ref, end_ref, first, sizes, what)
        before = top_ref[...]
        top = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp2(scores - _wide(top, j_block))
        shrink = jnp.exp2(before - top)
        sum_ref[...] = shrink * sum_ref[...] + weights.sum(axis=1, keepdims=True)
        top_ref[...] = top
        mixed = lax.dot_general(
            weights.astype(v.dtype),
            v,
            (((1,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        mixed_ref[...] = _wide(shrink, H) * mixed_ref[...] + mixed

    pl.when(flags & PARTIAL != 0)(functools.partial(step, True))
    pl.when(flags & PARTIAL == 0)(functools.partial(step, False))

    @pl.when(flags & LAST != 0)
    def finish() -> None:
        total = jnp.where(sum_ref[...] == 0.0, 1.0, sum_ref[...])
        out = mixed_ref[...] / _wide(total, H)
        lse = (top_ref[...] + jnp.log2(total)) * (1 / LOG2_E)
        for h in range(group):
            rows = slice(h * i_block, (h + 1) * i_block)
            if by_token:
                out_ref[:, h * H : (h + 1) * H] = out[rows]
            else:
                out_ref[0, h] = out[rows]
            lse_ref[0, h : h + 1] = jnp.transpose(lse[rows])[:1]


def _masked_scores(
    products: Array,
    inputs: list[Any],
    masked: bool,
    scalars_ref: Any,
    end_ref: Any,
    first: tuple[Array, Array],
    sizes: Sizes,
    what: dict[str, Any],
) -> Array:
    """Scores of a block pair divided by ln 2; `MASKED` where the mask is false."""
    group, _, i_block, j_block, _, _ = sizes
    scale, softcap, alibi = what["scale"], what["softcap"], what["alibi"]
    shape = (group, i_block, j_block)
    if softcap is None:
        scores = products * (scale * LOG2_E)
    else:
        scores = (softcap * LOG2_E) * jnp.tanh(products * (scale / softcap))
    refs = list(inputs)
    if what["windowed"] or alibi == "fine":
        distance = _column(refs.pop(0)[...]) - refs.pop(0)[...]  # [i_block, j_block]
    if alibi == "fine":
        slope = refs.pop(0)[0][:, :1]  # [group, 1]
        penalty = distance.astype(jnp.float32)[None] * slope[:, :, None]
        scores -= penalty.reshape(scores.shape)
    elif alibi == "coarse":
        of_queries, of_keys = refs
        columns = [of_keys[0, h : h + 1] - _column(of_queries[0, h : h + 1]) for h in range(group)]
        scores += jnp.concatenate(columns, axis=0)
    if not masked:
        return scores
    i = first[0] + lax.broadcasted_iota(jnp.int32, shape[1:], 0)
    j = first[1] + lax.broadcasted_iota(jnp.int32, shape[1:], 1)
    seen = (j <= i) & (i < end_ref[...])
    if what["windowed"]:
        window = scalars_ref[0]
        seen &= (window == 0) | (distance < window)
    return jnp.where(seen[None], scores.reshape(shape), MASKED).reshape(scores.shape)


def _column(row: Array) -> Array:
    """[1, n] across lanes as [n, 1] across sublanes."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[-1])))[:, :1]


def _wide(x: Array, width: int) -> Array:
    """Repeats a number per row, which fills all lanes, over `width` lanes."""
    copies = -(-width // LANES)
    return (jnp.tile(x, (1, copies)) if copies > 1 else x)[:, :width]
