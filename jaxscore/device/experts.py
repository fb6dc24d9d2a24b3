"""A mixture of experts, which computes only the products of the chosen experts.

The (token, expert) pairs are sorted by expert and laid out in blocks of rows with one expert each;
the last block of an expert may be partly empty. A loop runs over the chunks of blocks that pairs
fill. On the CPU a chunk is one block. On accelerators it has as many blocks as a shard needs under
balanced routing, and a kernel computes it.

    expert      0 0 0 0 0 | 1 | 3 3 3       blocks of 4    [0 0 0 0] [0 . . .] [1 . . .] [3 3 3 .]
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.backends import ON_CPU, Build, ExpertsName, lazy
from jaxscore.device.decoder_config import Experts
from jaxscore.device.dots import compute_dtype, dot_last, from_storage, is_blocks

NEVER = -jnp.inf  # score of an expert that is chosen last
TRITON_MULTIPLE = 16  # divides the sizes that the Triton kernel accepts


def route_tokens(
    logits: Float[Array, "R L E"], correction: Float[Array, " E"] | None, experts: Experts
) -> tuple[Float[Array, "R L k"], Int[Array, "R L k"]]:
    """Choose the experts of each token, and compute their weights.

    Args:
        logits: the router's logits, float32.
        correction: bias added to the scores for the choice only (arXiv 2408.15664), or None.
        experts: the config of the router.

    Returns:
        The weights and the indices of the chosen experts.
    """
    if experts.router.scores == "sparsemixer":
        share, chosen = _sparsemixer(logits, experts)
    else:
        score_function = jax.nn.sigmoid if experts.router.scores == "sigmoid" else jax.nn.softmax
        scores = score_function(logits)
        # Rank by logits: in float32 a sigmoid is 1 for logits above about 17, which may differ.
        ranked = logits if experts.router.scores == "sigmoid" else scores
        if correction is not None:
            ranked = (logits if experts.router.corrects_logits else scores) + correction
        _, chosen = lax.top_k(_within_groups(ranked, experts), experts.per_token)
        share = jnp.take_along_axis(scores, chosen, axis=-1)
    if experts.router.renormalised:
        total = jnp.maximum(share.sum(axis=-1, keepdims=True), experts.router.least_sum)
        share = share / (total + experts.router.added_sum if experts.router.added_sum else total)
    return share * experts.router.scale, chosen


def _within_groups(ranked: Array, experts: Experts) -> Array:
    """Set the scores of experts outside the best groups to `dropped_score`.

    Groups of consecutive experts are ranked by the sum of their `group_rank` best scores (arXiv
    2412.19437, section 2.1.2).
    """
    if experts.router.groups == experts.router.groups_per_token:
        return ranked
    groups = ranked.reshape(*ranked.shape[:-1], experts.router.groups, -1)
    best = lax.top_k(groups, experts.router.group_rank)[0].sum(axis=-1)
    _, kept = lax.top_k(best, experts.router.groups_per_token)
    in_best_group = (jnp.arange(experts.router.groups)[:, None] == kept[..., None, :]).any(axis=-1)
    dropped = NEVER if experts.router.dropped_score is None else experts.router.dropped_score
    return jnp.where(in_best_group[..., None], groups, dropped).reshape(ranked.shape)


def _sparsemixer(logits: Array, experts: Experts) -> tuple[Array, Array]:
    """Choose experts one by one, each weighed by a softmax over experts of similar logits.

    With the best logit m of the remaining experts, the softmax includes an expert of logit s if
    (m - s) / max(|s|, m) <= 2 jitter (arXiv 2409.12136, appendix).
    """
    remaining, share, chosen = logits, [], []
    for _ in range(experts.per_token):
        best = remaining.max(axis=-1, keepdims=True)
        is_far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * experts.router.jitter
        nth = jnp.argmax(remaining, axis=-1)[..., None]
        weights = jax.nn.softmax(jnp.where(is_far, NEVER, remaining), axis=-1)
        share.append(jnp.take_along_axis(weights, nth, axis=-1))
        chosen.append(nth)
        remaining = jnp.where(jnp.arange(logits.shape[-1]) == nth, NEVER, remaining)
    return jnp.concatenate(share, axis=-1), jnp.concatenate(chosen, axis=-1)


BLOCK = 128  # rows per product; fewer leave the matrix units of CPU and TPU partly idle


def mixture(
    experts: Any,
    layer: Int[Array, ""],
    gate: Callable[..., Array],
    x: Float[Array, "R L D"],
    share: Float[Array, "R L k"],
    chosen: Int[Array, "R L k"],
    quantized: str = "",
    build: Build = ON_CPU,
    weighs_input: bool = False,
    count: int | None = None,
) -> Float[Array, "R L D"]:
    """Compute `sum_k share_k * down_k(gate(gate_k(x), up_k(x)))` over each token's chosen experts.

    Args:
        experts: "up", "gate" if gated [layers, experts, F, D], and "down" [layers,
            experts, D, F], as stored, with a scale per output channel if quantized, and a bias in
            some models. All layers are passed, since a scan over layers would copy each slice.
        layer: index among the layers that have experts.
        gate: see `feed_forward.gate_function`.
        x: the input of the experts.
        share, chosen: from `route_tokens`.
        quantized, weighs_input: see `DecoderConfig` and `Experts`.
        build: backend and mesh; a shard has consecutive experts, or a slice of each one's channels.
        count: total number of experts of all shards; required if there are several shards.
    """
    axis, shards = build.axis, build.shards
    x = build.gathered(x, jnp.float32 if weighs_input else None)
    share, chosen = build.gathered(share, share.dtype), build.gathered(chosen, chosen.dtype)
    n_local = experts["up"]["weight"].shape[1]
    if axis is not None and n_local != count:
        chosen = chosen - lax.axis_index(axis) * n_local
    elif axis is not None:
        shards, down = 1, experts["down"]
        if "bias" in down:  # add it on one shard only
            bias = jnp.where(lax.axis_index(axis) == 0, down["bias"], 0)
            experts = experts | {"down": down | {"bias": bias}}
    D, k = x.shape[-1], chosen.shape[-1]
    flat = x.reshape(-1, D), share.reshape(-1, k), chosen.reshape(-1, k)
    implementation = build.backend.experts
    if any(is_blocks(projection["weight"]) for projection in experts.values()):
        implementation = "blocked"  # the kernels do not dequantize
    if implementation == "kernel_gpu" and not build.backend.interpreted:
        stored = (experts[name]["weight"] for name in ("up", "down"))
        if not all(fits_grouped_gpu(weight.shape, weight.dtype) for weight in stored):
            implementation = "blocked"
    product, chunk_shards, sums = one_block, None, None
    if implementation != "blocked":
        interpreted = build.backend.interpreted
        run = functools.partial(GROUPED[implementation], interpret=interpreted)
        product, chunk_shards = functools.partial(grouped, run), shards
        sums = (
            functools.partial(SUMS[implementation], interpret=interpreted)
            if implementation in SUMS
            else None
        )
    out = in_chunks(
        product, chunk_shards, sums, experts, layer, gate, *flat, quantized, weighs_input
    )
    return build.summed(out.reshape(x.shape))


class Blocks(NamedTuple):
    """Layout of (token, expert) pairs in blocks of rows.

    Attributes:
        order: the pairs sorted by expert.
        rows: the number of pairs of each expert.
        row_end, block_end: the end of each expert, in rows and in blocks.
    """

    order: Int[Array, " pairs"]
    rows: Int[Array, " experts"]
    row_end: Int[Array, " experts"]
    block_end: Int[Array, " experts"]

    def expert(self, block: int | Array) -> Array:
        """Return the expert index of each block."""
        return _first_index_above(self.block_end, block)

    def pairs(self, block: int | Array) -> tuple[Array, Array]:
        """Return the (token, expert) pair of each row of a block, and a mask of valid rows."""
        expert = jnp.minimum(self.expert(block), len(self.rows) - 1)
        first_block = self.block_end[expert] - (self.rows[expert] + BLOCK - 1) // BLOCK
        index_in_expert = (block - first_block) * BLOCK + jnp.arange(BLOCK)
        row = self.row_end[expert] - self.rows[expert] + index_in_expert
        is_valid = (index_in_expert < self.rows[expert]) & (block < self.block_end[-1])
        return self.order[jnp.clip(row, 0, len(self.order) - 1)], is_valid

    def pair_rows(self) -> Array:
        """Return the row of each pair among the rows of all blocks, or -1 if it is in no block."""
        index = jnp.arange(len(self.order))
        padding_rows = -self.rows % BLOCK  # after the rows of each expert
        row = index + jnp.where(index[:, None] >= self.row_end, padding_rows, 0).sum(axis=1)
        row = jnp.where(index < self.row_end[-1], row, -1)
        return lax.sort((self.order, row), num_keys=1)[1]


def _first_index_above(sorted_values: Array, values: int | Array) -> Array:
    """Return the index of the first number of a sorted array that is above each value.

    Compares all numbers at once: on a GPU, each step of a binary search would be a kernel launch.
    """
    return jnp.searchsorted(sorted_values, values, side="right", method="compare_all")


def _lay_out_blocks(chosen_Tk: Array, count: int) -> Blocks:
    """Lay out pairs in blocks. Pairs of other shards' experts come last and are in no block."""
    flat = chosen_Tk.reshape(-1)
    expert = jnp.where((flat >= 0) & (flat < count), flat, count)
    sorted_experts, order = lax.sort((expert, jnp.arange(len(expert))), num_keys=1, is_stable=True)
    # Not a scatter, since the TPU compiler does not estimate the time of scatters.
    row_end = _first_index_above(sorted_experts, jnp.arange(count)).astype(jnp.int32)
    rows = jnp.diff(row_end, prepend=0)
    blocks = (rows + BLOCK - 1) // BLOCK
    return Blocks(order, rows, row_end, jnp.cumsum(blocks))


def chunk_blocks(n_pairs: int, count: int, shards: int) -> tuple[int, int]:
    """Return the number of blocks of a chunk, and the maximum number that the pairs can fill.

    A chunk has room for a shard's pairs under balanced routing, and an incomplete block per expert.
    There is one chunk if a shard has all experts: on one device, or if channels are split.
    """
    max_blocks = min(n_pairs, n_pairs // BLOCK + count)
    return min(max_blocks, -(-n_pairs // (shards * BLOCK)) + count), max_blocks


def in_chunks(
    product: Callable[..., Array],
    shards: int | None,
    sums: Callable[..., Array] | None,
    experts: Any,
    layer: Array,
    gate: Callable[..., Array],
    x_TD: Float[Array, "T D"],
    share_Tk: Float[Array, "T k"],
    chosen_Tk: Int[Array, "T k"],
    quantized: str = "",
    weighs_input: bool = False,
) -> Float[Array, "T D"]:
    """Compute `mixture` one chunk of blocks at a time.

    Routing may send any number of pairs to a shard; memory is bounded by one chunk.

    Args:
        product: `one_block`, or `grouped` with its kernel.
        shards: number of devices that share the experts, see `chunk_blocks`; None for chunks of one
            block.
        sums: `grouped_matmul.weighted_sums_tpu`; None adds rows to their tokens one by one.
        experts, layer, gate, quantized, weighs_input: see `mixture`.
        x_TD, share_Tk, chosen_Tk: inputs, weights and experts of T tokens; experts of other shards
            are skipped.

    Returns:
        The outputs, float32 [T, D].
    """
    T, D = x_TD.shape
    k, count = chosen_Tk.shape[1], experts["up"]["weight"].shape[1]
    blocks, share = _lay_out_blocks(chosen_Tk, count), share_Tk.reshape(-1)
    size, max_blocks = (1, None) if shards is None else chunk_blocks(T * k, count, shards)
    pair_rows = (
        blocks.pair_rows().reshape(T, k) if sums is not None else jnp.zeros((0, k), jnp.int32)
    )

    def step(n: Array, out: Array) -> Array:
        block = n * size + jnp.arange(size)
        expert = jnp.minimum(blocks.expert(block), count - 1).astype(jnp.int32)
        pair, is_valid = jax.vmap(blocks.pairs)(block)
        weight = share[pair][..., None]
        # A kernel's grid must not be empty: a shard without pairs computes one unused block.
        n_used = jnp.clip(blocks.block_end[-1] - n * size, 0 if sums is None else 1, size)

        def products(x: Array) -> Array:
            def apply(rows: Array, name: str) -> Array:
                return product(rows, experts[name], layer, expert, n_used, quantized)

            x = x * weight if weighs_input else x
            return apply(
                gate(*(apply(x, name) for name in ("gate", "up") if name in experts)), "down"
            )

        if sums is not None:
            y = products(x_TD[pair // k]).reshape(-1, D)
            row = pair_rows - n * size * BLOCK
            row = jnp.where((pair_rows >= 0) & (row >= 0) & (row < len(y)), row, -1)
            return sums(y, row, jnp.ones_like(share_Tk) if weighs_input else share_Tk, out, n == 0)
        token = jnp.where(
            is_valid, pair // k, T
        )  # T is out of bounds: reads give 0, adds are dropped
        y = products(x_TD.at[token].get(mode="fill", fill_value=0))
        # Blocks that are not computed are undefined and may hold NaN.
        y = jnp.where(is_valid[..., None], y if weighs_input else y * weight, 0.0)
        return out.at[token].add(y, mode="drop")

    out = jnp.zeros((T, D), jnp.float32) if sums is None else lax.empty((T, D), jnp.float32)
    if size == max_blocks:
        return step(jnp.int32(0), out)
    n_chunks = -(-blocks.block_end[-1] // size)
    return lax.fori_loop(0, n_chunks if sums is None else jnp.maximum(n_chunks, 1), step, out)


def one_block(
    rows_1RD: Array, projection: Any, layer: Array, expert_1: Array, n_used: Array, quantized: str
) -> Array:
    """Multiply one block with its expert's matrix, in XLA."""

    def select_expert(stacked: Array) -> Array:
        start: Any = (layer, expert_1[0], *[0] * (stacked.ndim - 2))
        return lax.dynamic_slice(stacked, start, (1, 1, *stacked.shape[2:]))[0, 0]

    matrix = from_storage(jax.tree.map(select_expert, projection["weight"]))
    y = dot_last(rows_1RD, matrix.astype(quantized) if quantized else matrix)
    if quantized:
        y *= select_expert(projection["channel_scale"])
    return y + select_expert(projection["bias"]) if "bias" in projection else y


def grouped(
    run: Callable[..., Array],
    rows_BRD: Array,
    projection: Any,
    layer: Array,
    expert_B: Array,
    n_used: Array,
    quantized: str,
) -> Array:
    """Multiply the first `n_used` of several blocks with their experts' matrices, in a kernel.

    Args:
        run: `grouped_matmul.grouped_tpu` or `grouped_gpu`.
    """
    n_layers, count = projection["weight"].shape[:2]
    dtype = jnp.dtype(quantized) if quantized else compute_dtype(projection["weight"])
    matrix = layer * count + expert_B
    weight, scale = from_storage(projection["weight"]), projection.get("channel_scale")
    y = run(rows_BRD.astype(dtype), weight, scale, matrix, n_used)
    if "bias" not in projection:
        return y
    return y + projection["bias"].reshape(n_layers * count, -1)[matrix][:, None]


def fits_grouped_gpu(weights_shape: tuple[int, ...], dtype: Any) -> bool:
    """Return True if `grouped_gpu` accepts matrices of this shape, [..., F, D], and dtype.

    F and D must be multiples of 16. Triton uses 32-bit offsets for arrays up to 2**32 bytes, which
    overflow beyond 2**31 elements of one byte.
    """
    n, itemsize = math.prod(weights_shape), jnp.dtype(dtype).itemsize
    are_multiples = all(size % TRITON_MULTIPLE == 0 for size in weights_shape[-2:])
    return are_multiples and not (itemsize == 1 and 2**31 <= n <= 2**32)


GROUPED: dict[ExpertsName, Callable[..., Any]] = {
    "kernel_gpu": lazy("jaxscore.device.grouped_matmul", "grouped_gpu"),
    "kernel_tpu": lazy("jaxscore.device.grouped_matmul", "grouped_tpu"),
}
SUMS: dict[ExpertsName, Callable[..., Any]] = {
    "kernel_tpu": lazy("jaxscore.device.grouped_matmul", "weighted_sums_tpu")
}
