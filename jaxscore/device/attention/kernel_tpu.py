"""Attention under the interval mask as one TPU kernel (Pallas, Mosaic).

The online softmax of flash attention (arXiv 2205.14135) over the block pairs with a visible key
(`block_pairs`). The list of these pairs is computed on the device and prefetched as scalars. Its
length bounds the grid, so other pairs cost neither a step nor a copy. The query heads of one key
head are rows of one product. Scalar memory is small, so the queries of long rows are computed in
parts, each with a separate list.

    grid (groups of heads, pairs)
    q, out [T, N, H] if a head fills whole registers (H is a multiple of 128), else [N, T, H]

The running maximum and sum are repeated in all 128 lanes of a register, since a column would take
as much memory. Scores are in units of ln 2, since the hardware has exp2.
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
    flatten_ends,
    pad_to_multiple,
    pair_counts,
)

LANES = 128
LOG2_E = math.log2(math.e)
LOWEST = -1e29  # initial running maximum: exp2(MASKED - LOWEST) is 0, so a masked row adds 0
# Allowed sizes of a query block, and the maximum size of a key block. The smaller query block suits
# group sizes, such as seven, with which the larger one leaves a product few rows.
QUERIES, KEYS = (256, 128), 512
# Maximum rows of a product: query heads times queries. Heads wider than 256 have fewer rows, since
# their blocks would not fit in a core's memory.
MAX_ROWS = 1024

# Flags of a pair: the first and the last pair of its query block, and pairs that need a mask.
FIRST, LAST, PARTIAL = 1, 2, 4
BITS = 14  # bits of a block index in a packed pair
# Maximum pairs of a list: 768 kB of the 1 MB of scalar memory of v5e, v5p and v6e
MAX_PAIRS = 3 << 16


class Sizes(NamedTuple):
    """Static sizes of the kernel.

    Attributes:
        group: number of query heads of a key head that are the rows of one product.
        groups_of_key: number of such groups per key head.
        queries, keys: numbers of queries and of keys in a block.
        width: head width.
        by_token: if True, arrays have layout [T, N * H], else [N, T, H].
    """

    group: int
    groups_of_key: int
    queries: int
    keys: int
    width: int
    by_token: bool


class Parts(NamedTuple):
    """Static division of the query blocks into parts.

    Attributes:
        n: number of parts.
        blocks: number of query blocks in each part.
        pairs: maximum number of pairs in the list of a part.
    """

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
        window, rule, dtype: see `interval.attention`.
        interpret: if True, run the kernel as ordinary JAX operations, on any platform.

    Raises:
        BatchTooLong: the batch has 8 million tokens, or fewer if rows are shorter than 512.
    """
    R, L, N, H = q_RLNH.shape
    K, T = k_RLKH.shape[2], R * L
    sizes = block_sizes(L, N // K, H)
    end = pad_to_multiple(flatten_ends(subtree_end_RL), sizes.keys, 0)
    position = pad_to_multiple(position_RL.reshape(-1).astype(jnp.int32), sizes.keys, 0)
    parts = query_parts(R * L, L, sizes)
    pairs, n_pairs = _visible_pairs(end, position, window, sizes, parts)
    q, k, v = (_flatten_rows(x.astype(dtype), sizes) for x in (q_RLNH, k_RLKH, v_RLKH))
    bias = rule.kernel_bias(position)

    def run(inputs: tuple[int | Array, Array, Array]) -> tuple[Array, Array]:
        index, *pair_list = inputs
        return _run(
            (q, k, v),
            (end, position, window),
            bias,
            pair_list,
            index * parts.blocks,
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
        axis = 0 if sizes.by_token else 2  # axis of the tokens
        out, lse = _join_parts(out, axis), _join_parts(lse, 2)
    if not sizes.by_token:
        out = out.reshape(N, -1, H).swapaxes(0, 1)
    return out.reshape(-1, N, H)[:T].reshape(R, L, N, H), lse.reshape(N, -1)[:, :T].T.reshape(
        R, L, N
    )


def _flatten_rows(x_RLXH: Array, sizes: Sizes) -> Array:
    """Concatenate the rows to [T, X * H] or [X, T, H], with T padded to whole key blocks."""
    x = x_RLXH.reshape(-1, *x_RLXH.shape[2:])
    if sizes.by_token:
        return pad_to_multiple(x, sizes.keys, 0).reshape(-1, x.shape[1] * x.shape[2])
    return pad_to_multiple(x.transpose(1, 0, 2), sizes.keys, 1)


def _join_parts(parts: Array, axis: int) -> Array:
    """Concatenate the arrays of `parts` [parts, ...] along an axis."""
    moved = jnp.moveaxis(parts, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def block_sizes(length: int, heads: int, width: int) -> Sizes:
    """Choose the sizes with the most rows in a product, and then with the larger query block.

    Args:
        length: number of tokens in a row.
        heads: number of query heads per key head.
        width: head width.
    """
    keys = max(LANES, min(KEYS, 1 << (length - 1).bit_length()))
    max_rows = MAX_ROWS * 256 // max(width, 256)
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    rows, queries = max(
        (n * queries, queries)
        for queries in QUERIES
        for n in divisors
        if queries <= keys and n * queries <= max(queries, max_rows)
    )
    group = rows // queries
    return Sizes(group, heads // group, queries, keys, width, width % LANES == 0)


def query_parts(n_tokens: int, length: int, sizes: Sizes) -> Parts:
    """Divide the queries into the fewest parts whose lists have at most `MAX_PAIRS` pairs.

    Args:
        n_tokens: number of tokens of all rows.
        length: number of tokens in a row.
        sizes: sizes of the kernel.

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
        n_pairs = max(sum(counts[k : k + blocks]) for k in range(0, len(counts), blocks))
        if n_pairs <= MAX_PAIRS and blocks < 1 << BITS:
            break
    return Parts(-(-len(counts) // blocks), blocks, n_pairs)


def _visible_pairs(
    end_T: Array, position_T: Array, window: Array | None, sizes: Sizes, parts: Parts
) -> tuple[Array, Array]:
    """List the block pairs that the kernel computes, in the order of their query blocks.

    A pair is packed into one integer, since scalar memory is small: flags, then the indices of its
    query block, counted from the start of the part, and of its key block.

    Returns:
        Packed pairs [parts, maximum pairs] and the number of pairs [parts].
    """
    i_block, keys = sizes.queries, sizes.keys
    T = end_T.shape[0]
    is_listed, all_visible = block_pairs(end_T, position_T, window, i_block, keys)
    i = jnp.arange(T // i_block, dtype=jnp.int32)[:, None]
    j = jnp.arange(T // keys, dtype=jnp.int32)[None, :]
    # List the diagonal in any case, so that every query block is written.
    is_listed |= j == i * i_block // keys
    rank = jnp.cumsum(is_listed, axis=1)
    flags = (rank == 1) * FIRST + (rank == rank[:, -1:]) * LAST + (~all_visible) * PARTIAL
    packed = (flags << (2 * BITS)) + (i % parts.blocks << BITS) + j
    is_listed, packed = (
        pad_to_multiple(x, parts.n * parts.blocks, 0).reshape(parts.n, -1)
        for x in (is_listed, packed)
    )
    # A stable sort and not `nonzero`, a scatter, whose time the TPU compiler cannot estimate.
    order = jnp.argsort(~is_listed, axis=1, stable=True)[:, : parts.pairs]
    pairs = jnp.take_along_axis(packed, order, axis=1).astype(jnp.int32)
    return pairs, is_listed.sum(axis=1, dtype=jnp.int32)


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
    """Call the kernel for `n_blocks` query blocks, starting with block `first`.

    Args:
        qkv: queries, keys and values in the layout of `Sizes.by_token`.
        mask: subtree ends [T], positions [T] and the window.
        bias: slopes and penalties from `ScoreRule.kernel_bias`.
        pairs: packed pairs and their number, see `_visible_pairs`.
        useful_pairs: number of (query, key) pairs of full causal rows, for the cost estimate.

    Returns:
        Attention output in the layout of `Sizes.by_token`, and log-sum-exp [groups, group, tokens],
        both of the tokens of these blocks.
    """
    # Over 60 lines: block specifications of one call, which share the index functions.
    q, k, v = qkv
    end_T, position_T, window = mask
    slopes, penalties = bias or (None, None)
    packed, n_pairs = pairs
    group, groups_of_key, i_block, j_block, H, by_token = sizes
    T = end_T.shape[0]
    n_groups = (q.shape[1] // H if by_token else q.shape[0]) // group
    if not by_token:
        q = q.reshape(n_groups, group, T, H)

    def query_block(pair: Array) -> Array:
        return (pair >> BITS) & ((1 << BITS) - 1)

    def key_block(pair: Array) -> Array:
        return pair & ((1 << BITS) - 1)

    def query_specs(shape: tuple[int, ...], index: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
        """Return the block specs of an array of all queries, and of one of these queries only."""
        return (
            pl.BlockSpec(shape, lambda h, s, p, c: index(h, query_block(p[s]) + c[1])),
            pl.BlockSpec(shape, lambda h, s, p, _: index(h, query_block(p[s]))),
        )

    n_tokens = n_blocks * i_block
    if by_token:
        q_spec, out_spec = query_specs((i_block, group * H), lambda h, i: (i, h))
        k_spec = pl.BlockSpec(
            (j_block, H), lambda h, s, p, _: (key_block(p[s]), h // groups_of_key)
        )
        out_shape: tuple[int, ...] = n_tokens, q.shape[1]
    else:
        q_spec, out_spec = query_specs((1, group, i_block, H), lambda h, i: (h, 0, i, 0))
        k_spec = pl.BlockSpec(
            (1, j_block, H), lambda h, s, p, _: (h // groups_of_key, key_block(p[s]), 0)
        )
        out_shape = n_groups, group, n_tokens, H
    bias_spec, lse_spec = query_specs((1, group, i_block), lambda h, i: (h, 0, i))
    keys_spec = pl.BlockSpec((1, j_block), lambda h, s, p, _: (0, key_block(p[s])))
    inputs, specs = [q, k, v, end_T[None]], [q_spec, k_spec, k_spec, keys_spec]
    if window is not None or slopes is not None:
        inputs += [position_T[None], position_T[None]]
        specs += [query_specs((1, i_block), lambda h, i: (0, i))[0], keys_spec]
    if penalties is not None:
        inputs += [penalties.reshape(n_groups, group, T)] * 2
        specs += [
            bias_spec,
            pl.BlockSpec((1, group, j_block), lambda h, s, p, _: (h, 0, key_block(p[s]))),
        ]
    if slopes is not None:
        group_slopes = slopes.reshape(n_groups, group, 1)
        inputs.append(jnp.broadcast_to(group_slopes, (n_groups, group, LANES)))
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
            out_specs=[out_spec, lse_spec],
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
        # Used only by the compiler's time model: the pairs of full causal rows.
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
    **options: Any,
) -> None:
    """Compute one block pair of one group of heads."""
    # Over 60 lines: a kernel reads from top to bottom.
    group, _, i_block, j_block, H, by_token = sizes
    *inputs, out_ref, lse_ref, m_ref, l_ref, acc_ref = refs
    pair = packed_ref[pl.program_id(1)]
    flags = pair >> (2 * BITS)
    first_i = (((pair >> BITS) & ((1 << BITS) - 1)) + scalars_ref[1]) * i_block
    first_j = (pair & ((1 << BITS) - 1)) * j_block
    precision = lax.Precision.HIGHEST if k_ref.dtype == jnp.float32 else None

    @pl.when(flags & FIRST != 0)
    def start() -> None:
        m_ref[...] = jnp.full_like(m_ref, LOWEST)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def step(is_masked: bool) -> None:
        if by_token:  # stack the heads; they fill whole registers, so no data moves
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
        first = first_i, first_j
        scores = _masked_scores(
            scores, inputs, is_masked, scalars_ref, end_ref, first, sizes, options
        )
        m_i = m_ref[...]
        m_new = jnp.maximum(m_i, scores.max(axis=1, keepdims=True))
        p = jnp.exp2(scores - _fill_lanes(m_new, j_block))
        alpha = jnp.exp2(m_i - m_new)
        l_ref[...] = alpha * l_ref[...] + p.sum(axis=1, keepdims=True)
        m_ref[...] = m_new
        pv = lax.dot_general(
            p.astype(v.dtype),
            v,
            (((1,), (0,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        acc_ref[...] = _fill_lanes(alpha, H) * acc_ref[...] + pv

    pl.when(flags & PARTIAL != 0)(functools.partial(step, True))
    pl.when(flags & PARTIAL == 0)(functools.partial(step, False))

    @pl.when(flags & LAST != 0)
    def finish() -> None:
        l_i = jnp.where(l_ref[...] == 0.0, 1.0, l_ref[...])
        out = acc_ref[...] / _fill_lanes(l_i, H)
        lse = (m_ref[...] + jnp.log2(l_i)) * (1 / LOG2_E)
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
    is_masked: bool,
    scalars_ref: Any,
    end_ref: Any,
    first: tuple[Array, Array],
    sizes: Sizes,
    options: dict[str, Any],
) -> Array:
    """Compute the scores of a block pair, divided by ln 2; `MASKED` where the mask is False."""
    group, _, i_block, j_block, _, _ = sizes
    scale, softcap, alibi = options["scale"], options["softcap"], options["alibi"]
    shape = (group, i_block, j_block)
    if softcap is None:
        scores = products * (scale * LOG2_E)
    else:
        scores = (softcap * LOG2_E) * jnp.tanh(products * (scale / softcap))
    refs = list(inputs)
    if options["windowed"] or alibi == "fine":
        distance = _to_column(refs.pop(0)[...]) - refs.pop(0)[...]  # [i_block, j_block]
    if alibi == "fine":
        slope = refs.pop(0)[0][:, :1]  # [group, 1]
        penalty = distance.astype(jnp.float32)[None] * slope[:, :, None]
        scores -= penalty.reshape(scores.shape)
    elif alibi == "coarse":
        query_bias, key_bias = refs
        columns = [
            key_bias[0, h : h + 1] - _to_column(query_bias[0, h : h + 1]) for h in range(group)
        ]
        scores += jnp.concatenate(columns, axis=0)
    if not is_masked:
        return scores
    i = first[0] + lax.broadcasted_iota(jnp.int32, shape[1:], 0)
    j = first[1] + lax.broadcasted_iota(jnp.int32, shape[1:], 1)
    mask = (j <= i) & (i < end_ref[...])
    if options["windowed"]:
        window = scalars_ref[0]
        mask &= (window == 0) | (distance < window)
    return jnp.where(mask[None], scores.reshape(shape), MASKED).reshape(scores.shape)


def _to_column(row: Array) -> Array:
    """Transpose a row [1, n] across lanes to a column [n, 1] across sublanes."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[-1])))[:, :1]


def _fill_lanes(x: Array, width: int) -> Array:
    """Widen or narrow x [n, LANES], whose rows are constant, to `width` lanes."""
    copies = -(-width // LANES)
    return (jnp.tile(x, (1, copies)) if copies > 1 else x)[:, :width]
