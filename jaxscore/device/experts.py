"""A mixture of experts: each token runs a few experts, and only their products are computed.

The (token, expert) pairs are sorted by expert and laid out in blocks of rows, each of one expert;
the last block of an expert may be partly empty. A loop runs over chunks of blocks, as many as the
pairs fill. On the CPU a chunk is one block; on accelerators it has the blocks that a shard expects,
and a kernel computes them.

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

NEVER = -jnp.inf  # chosen after all others
TRITON_MULTIPLE = 16  # of the sizes that Triton's products take


def route_tokens(
    logits: Float[Array, "R L E"], correction: Float[Array, " E"] | None, experts: Experts
) -> tuple[Float[Array, "R L k"], Int[Array, "R L k"]]:
    """Experts of each token and their weights.

    Args:
        logits: the router's products, float32.
        correction: bias on the scores for the choice alone (arXiv 2408.15664), or None.
        experts: the rules.

    Returns:
        Weights, and indices of the experts.
    """
    if experts.router.scores == "sparsemixer":
        share, chosen = _sparsemixer(logits, experts)
    else:
        kind = jax.nn.sigmoid if experts.router.scores == "sigmoid" else jax.nn.softmax
        scores = kind(logits)
        # A sigmoid is 1 from about 17 on, where the logits still differ.
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
    """Scores with `dropped_score` for experts outside the best groups.

    Groups of neighbours are ranked by the sum of their `group_rank` best scores (arXiv
    2412.19437, section 2.1.2).
    """
    if experts.router.groups == experts.router.groups_per_token:
        return ranked
    groups = ranked.reshape(*ranked.shape[:-1], experts.router.groups, -1)
    best = lax.top_k(groups, experts.router.group_rank)[0].sum(axis=-1)
    _, kept = lax.top_k(best, experts.router.groups_per_token)
    mine = (jnp.arange(experts.router.groups)[:, None] == kept[..., None, :]).any(axis=-1)
    dropped = NEVER if experts.router.dropped_score is None else experts.router.dropped_score
    return jnp.where(mine[..., None], groups, dropped).reshape(ranked.shape)


def _sparsemixer(logits: Array, experts: Experts) -> tuple[Array, Array]:
    """Chooses experts one by one, each weighed by a softmax over those not far below it.

    With the best logit m of the remaining experts, an expert with logit s counts if
    (m - s) / max(|s|, m) <= 2 jitter (arXiv 2409.12136, appendix).
    """
    left, share, chosen = logits, [], []
    for _ in range(experts.per_token):
        best = left.max(axis=-1, keepdims=True)
        far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * experts.router.jitter
        nth = jnp.argmax(left, axis=-1)[..., None]
        weights = jax.nn.softmax(jnp.where(far, NEVER, left), axis=-1)
        share.append(jnp.take_along_axis(weights, nth, axis=-1))
        chosen.append(nth)
        left = jnp.where(jnp.arange(logits.shape[-1]) == nth, NEVER, left)
    return jnp.concatenate(share, axis=-1), jnp.concatenate(chosen, axis=-1)


BLOCK = 128  # rows of a product; fewer leave a CPU's and a TPU's units partly idle


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
    """`sum_k share_k * down_k(gate(gate_k(x), up_k(x)))` over each token's chosen experts.

    Args:
        experts: "up" and, unless they have no gate, "gate" [layers, experts, F, D], "down" [layers,
            experts, D, F], as stored; quantized ones have a scale per output channel, and some have
            a bias. Of all layers, since a loop over layers would copy its slice.
        layer: index among the layers that have experts.
        gate: see `feed_forward.gate_function`.
        x: input of the experts.
        share, chosen: from `route_tokens`.
        quantized, weighs_input: see `DecoderConfig` and `Experts`.
        build: backend and mesh; each shard has consecutive experts, or some channels of each.
        count: number of experts of all shards; only needed if there are several.
    """
    axis, shards = build.axis, build.shards
    x = build.gathered(x, jnp.float32 if weighs_input else None)
    share, chosen = build.gathered(share, share.dtype), build.gathered(chosen, chosen.dtype)
    n_own = experts["up"]["weight"].shape[1]
    if axis is not None and n_own != count:
        chosen = chosen - lax.axis_index(axis) * n_own
    elif axis is not None:
        shards, down = 1, experts["down"]
        if "bias" in down:  # which is added once
            bias = jnp.where(lax.axis_index(axis) == 0, down["bias"], 0)
            experts = experts | {"down": down | {"bias": bias}}
    D, k = x.shape[-1], chosen.shape[-1]
    flat = x.reshape(-1, D), share.reshape(-1, k), chosen.reshape(-1, k)
    form = build.backend.experts
    if any(is_blocks(own["weight"]) for own in experts.values()):
        form = "blocked"  # the kernels read plain matrices
    if form == "kernel_gpu" and not build.backend.interpreted:
        stored = (experts[name]["weight"] for name in ("up", "down"))
        if not all(fits_grouped_gpu(weight.shape, weight.dtype) for weight in stored):
            form = "blocked"
    product, chunk_shards, sums = one_block, None, None
    if form != "blocked":
        interpreted = build.backend.interpreted
        run = functools.partial(GROUPED[form], interpret=interpreted)
        product, chunk_shards = functools.partial(grouped, run), shards
        sums = functools.partial(SUMS[form], interpret=interpreted) if form in SUMS else None
    out = in_chunks(
        product, chunk_shards, sums, experts, layer, gate, *flat, quantized, weighs_input
    )
    return build.summed(out.reshape(x.shape))


class Blocks(NamedTuple):
    """Layout of the (token, expert) pairs in blocks of rows.

    Attributes:
        order: pairs sorted by expert.
        rows: number of pairs of each expert.
        row_end, block_end: where each expert ends, in rows and in blocks.
    """

    order: Int[Array, " pairs"]
    rows: Int[Array, " experts"]
    row_end: Int[Array, " experts"]
    block_end: Int[Array, " experts"]

    def expert(self, block: int | Array) -> Array:
        """Expert index of each block."""
        return _first_above(self.block_end, block)

    def pairs(self, block: int | Array) -> tuple[Array, Array]:
        """Token-expert pair of each row of a block, with a validity mask."""
        expert = jnp.minimum(self.expert(block), len(self.rows) - 1)
        first = self.block_end[expert] - (self.rows[expert] + BLOCK - 1) // BLOCK
        within = (block - first) * BLOCK + jnp.arange(BLOCK)
        row = self.row_end[expert] - self.rows[expert] + within
        mine = (within < self.rows[expert]) & (block < self.block_end[-1])
        return self.order[jnp.clip(row, 0, len(self.order) - 1)], mine

    def places(self) -> Array:
        """Row of all blocks in which each pair is, or -1 if it is in none."""
        at = jnp.arange(len(self.order))
        empty = -self.rows % BLOCK  # rows behind those of each expert
        row = at + jnp.where(at[:, None] >= self.row_end, empty, 0).sum(axis=1)
        row = jnp.where(at < self.row_end[-1], row, -1)
        return lax.sort((self.order, row), num_keys=1)[1]


def _first_above(rising: Array, values: int | Array) -> Array:
    """Index of the first number of a rising array that is above each value.

    Compares all at once: each step of a binary search would be a program of its own on a GPU.
    """
    return jnp.searchsorted(rising, values, side="right", method="compare_all")


def _blocks(chosen_Tk: Array, count: int) -> Blocks:
    """Layout of the pairs; pairs of other shards' experts come last and are in no block."""
    flat = chosen_Tk.reshape(-1)
    expert = jnp.where((flat >= 0) & (flat < count), flat, count)
    rising, order = lax.sort((expert, jnp.arange(len(expert))), num_keys=1, is_stable=True)
    # Not a scatter, for which the TPU compiler has no estimate of time.
    row_end = _first_above(rising, jnp.arange(count)).astype(jnp.int32)
    rows = jnp.diff(row_end, prepend=0)
    blocks = (rows + BLOCK - 1) // BLOCK
    return Blocks(order, rows, row_end, jnp.cumsum(blocks))


def _inward(experts: Any) -> list[str]:
    """Names of the products that an expert's input goes through."""
    return [name for name in ("gate", "up") if name in experts]


def chunk_blocks(n_pairs: int, count: int, shards: int) -> tuple[int, int]:
    """Blocks of a chunk, and most blocks that the pairs can fill.

    A chunk holds the pairs that a shard expects, and an incomplete block per expert. There is one
    chunk if a shard has all experts, on one device or some channels of each.
    """
    most = min(n_pairs, n_pairs // BLOCK + count)
    return min(most, -(-n_pairs // (shards * BLOCK)) + count), most


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
    """`mixture` one chunk of blocks at a time, as many chunks as these tokens fill.

    The routing may send any number of pairs to a shard; memory is that of one chunk.

    Args:
        product: `one_block`, or `grouped` with its kernel.
        shards: devices that share the experts, see `chunk_blocks`; None for chunks of one block.
        sums: `grouped_matmul.weighted_sums_tpu`; None adds rows to their tokens one by one.
        experts, layer, gate, quantized, weighs_input: see `mixture`.
        x_TD, share_Tk, chosen_Tk: of T tokens; experts of other shards are skipped.

    Returns:
        float32 [T, D].
    """
    T, D = x_TD.shape
    k, count = chosen_Tk.shape[1], experts["up"]["weight"].shape[1]
    blocks, share = _blocks(chosen_Tk, count), share_Tk.reshape(-1)
    size, most = (1, None) if shards is None else chunk_blocks(T * k, count, shards)
    places = blocks.places().reshape(T, k) if sums is not None else jnp.zeros((0, k), jnp.int32)

    def step(n: Array, out: Array) -> Array:
        block = n * size + jnp.arange(size)
        expert = jnp.minimum(blocks.expert(block), count - 1).astype(jnp.int32)
        pair, mine = jax.vmap(blocks.pairs)(block)
        weight = share[pair][..., None]
        # A kernel's grid is never empty: a shard without pairs computes a block that nothing reads.
        n_used = jnp.clip(blocks.block_end[-1] - n * size, 0 if sums is None else 1, size)

        def products(x: Array) -> Array:
            def through(rows: Array, name: str) -> Array:
                return product(rows, experts[name], layer, expert, n_used, quantized)

            x = x * weight if weighs_input else x
            return through(gate(*(through(x, name) for name in _inward(experts))), "down")

        if sums is not None:
            y = products(x_TD[pair // k]).reshape(-1, D)
            row = places - n * size * BLOCK
            row = jnp.where((places >= 0) & (row >= 0) & (row < len(y)), row, -1)
            return sums(y, row, jnp.ones_like(share_Tk) if weighs_input else share_Tk, out, n == 0)
        token = jnp.where(mine, pair // k, T)  # beyond the end: read as zeros, dropped when added
        y = products(x_TD.at[token].get(mode="fill", fill_value=0))
        # Blocks that are not computed may hold anything, NaN included.
        y = jnp.where(mine[..., None], y if weighs_input else y * weight, 0.0)
        return out.at[token].add(y, mode="drop")

    out = jnp.zeros((T, D), jnp.float32) if sums is None else lax.empty((T, D), jnp.float32)
    if size == most:
        return step(jnp.int32(0), out)
    n_chunks = -(-blocks.block_end[-1] // size)
    return lax.fori_loop(0, n_chunks if sums is None else jnp.maximum(n_chunks, 1), step, out)


def one_block(
    rows_1RD: Array, own: Any, layer: Array, expert_1: Array, n_used: Array, quantized: str
) -> Array:
    """Products of one block, by XLA."""

    def of_expert(stacked: Array) -> Array:
        start: Any = (layer, expert_1[0], *[0] * (stacked.ndim - 2))
        return lax.dynamic_slice(stacked, start, (1, 1, *stacked.shape[2:]))[0, 0]

    matrix = from_storage(jax.tree.map(of_expert, own["weight"]))
    y = dot_last(rows_1RD, matrix.astype(quantized) if quantized else matrix)
    if quantized:
        y *= of_expert(own["channel_scale"])
    return y + of_expert(own["bias"]) if "bias" in own else y


def grouped(
    run: Callable[..., Array],
    rows_BRD: Array,
    own: Any,
    layer: Array,
    expert_B: Array,
    n_used: Array,
    quantized: str,
) -> Array:
    """Products of the first `n_used` of several blocks, by a kernel.

    Args:
        run: `grouped_matmul.grouped_tpu` or `grouped_gpu`.
    """
    n_layers, count = own["weight"].shape[:2]
    dtype = jnp.dtype(quantized) if quantized else compute_dtype(own["weight"])
    matrix = layer * count + expert_B
    weight, scale = from_storage(own["weight"]), own.get("channel_scale")
    y = run(rows_BRD.astype(dtype), weight, scale, matrix, n_used)
    if "bias" not in own:
        return y
    return y + own["bias"].reshape(n_layers * count, -1)[matrix][:, None]


def fits_grouped_gpu(weights_shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether `grouped_gpu` accepts matrices of this shape, [..., F, D], and dtype.

    F and D must be multiples of 16. Triton's addresses have 32 bits up to 2**32 bytes, which is too
    few for more than 2**31 numbers of one byte.
    """
    n, itemsize = math.prod(weights_shape), jnp.dtype(dtype).itemsize
    wide = all(size % TRITON_MULTIPLE == 0 for size in weights_shape[-2:])
    return wide and not (itemsize == 1 and 2**31 <= n <= 2**32)


GROUPED: dict[ExpertsName, Callable[..., Any]] = {
    "kernel_gpu": lazy("jaxscore.device.grouped_matmul", "grouped_gpu"),
    "kernel_tpu": lazy("jaxscore.device.grouped_matmul", "grouped_tpu"),
}
SUMS: dict[ExpertsName, Callable[..., Any]] = {
    "kernel_tpu": lazy("jaxscore.device.grouped_matmul", "weighted_sums_tpu")
}
