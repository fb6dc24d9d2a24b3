"""A mixture of experts: each token runs a few experts, and only their products are computed.

The (token, expert) pairs are sorted by expert and laid out in blocks of rows, each of one expert;
the last block of an expert may be partly empty. On the CPU the blocks are computed one after the
other; on accelerators a kernel computes all of them.

    expert      0 0 0 0 0 | 1 | 3 3 3       blocks of 4    [0 0 0 0] [0 . . .] [1 . . .] [3 3 3 .]
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.backends import ON_CPU, Build, ExpertsName
from jaxscore.device.decoder_config import Experts
from jaxscore.device.dots import compute_dtype, dot_last, from_storage
from jaxscore.device.grouped_matmul import grouped_gpu, grouped_tpu, supports_grouped_gpu

NEVER = -jnp.inf  # chosen after all others


def route_tokens(
    logits: Float[Array, "R L E"], correction: Float[Array, " E"] | None, experts: Experts
) -> tuple[Float[Array, "R L k"], Int[Array, "R L k"]]:
    """Weights of each token's experts, and the experts, by the rules of `Experts`.

    Args:
        logits: the router's products, float32.
        correction: added to the scores for the choice alone.
    """
    if experts.scores == "sparsemixer":
        share, chosen = _sparsemixer(logits, experts)
    else:
        kind = jax.nn.sigmoid if experts.scores == "sigmoid" else jax.nn.softmax
        scores = kind(logits)
        # A sigmoid is 1 from about 17 on, where the logits still differ.
        ranked = logits if experts.scores == "sigmoid" else scores
        ranked = ranked if correction is None else scores + correction
        _, chosen = lax.top_k(_within_groups(ranked, experts), experts.per_token)
        share = jnp.take_along_axis(scores, chosen, axis=-1)
    if experts.renormalised:
        share = share / jnp.maximum(share.sum(axis=-1, keepdims=True), experts.least_sum)
    return share * experts.scale, chosen


def _within_groups(ranked, experts):
    """Scores of experts in groups that are not among the best are out of the running.

    Groups of neighbours are ranked by the sum of their `group_rank` best scores (arXiv
    2412.19437, section 2.1.2).
    """
    if experts.groups == experts.groups_per_token:
        return ranked
    groups = ranked.reshape(*ranked.shape[:-1], experts.groups, -1)
    best = lax.top_k(groups, experts.group_rank)[0].sum(axis=-1)
    _, kept = lax.top_k(best, experts.groups_per_token)
    mine = (jnp.arange(experts.groups)[:, None] == kept[..., None, :]).any(axis=-1)
    return jnp.where(mine[..., None], groups, NEVER).reshape(ranked.shape)


def _sparsemixer(logits, experts):
    """One expert after the other, each weighed by a softmax over those not far below it.

    With the best logit m of those that are left, an expert with logit s counts where
    (m - s) / max(|s|, m) <= 2 jitter (arXiv 2409.12136, appendix).
    """
    left, share, chosen = logits, [], []
    for _ in range(experts.per_token):
        best = left.max(axis=-1, keepdims=True)
        far = (best - logits) / jnp.maximum(jnp.abs(logits), best) > 2 * experts.jitter
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
    gate: Callable[[Array, Array], Array],
    x: Float[Array, "R L D"],
    share: Float[Array, "R L k"],
    chosen: Int[Array, "R L k"],
    quantized: str = "",
    build: Build = ON_CPU,
    weighs_input: bool = False,
) -> Float[Array, "R L D"]:
    """`sum_k share_k * down(gate(gate_k(x), up_k(x)))` of each token's chosen experts.

    Args:
        experts: "gate" and "up" [layers, experts, F, D], "down" [layers, experts, D, F], as
            stored; quantized ones have a scale for each of their output channels, and some a bias.
            All layers, since a loop over layers would copy the slice that it is handed.
        layer: among those that have experts.
        gate: see `feed_forward.gate_function`.
        weighs_input: see `Experts`.
        quantized: see `DecoderConfig`.
        build: backend and mesh; a shard has some of the experts, in order.
    """
    axis = build.axis
    if axis is not None:
        chosen = chosen - lax.axis_index(axis) * experts["up"]["weight"].shape[1]
    D, k = x.shape[-1], chosen.shape[-1]
    flat = x.reshape(-1, D), share.reshape(-1, k), chosen.reshape(-1, k)
    form = build.backend.experts
    if form == "kernel_gpu" and not build.backend.interpreted:
        stored = (experts[name]["weight"] for name in ("up", "down"))
        if not all(supports_grouped_gpu(weight.shape, weight.dtype) for weight in stored):
            form = "blocked"
    if form == "blocked":
        out = blocked(experts, layer, gate, *flat, quantized, weighs_input)
    else:
        product = functools.partial(GROUPED[form], interpret=build.backend.interpreted)
        out = grouped(product, experts, layer, gate, *flat, quantized, weighs_input)
    out = out.reshape(x.shape)
    return out if axis is None else lax.psum(out, axis)


class Blocks(NamedTuple):
    """Where the (token, expert) pairs lie in blocks of rows.

    Attributes:
        order: pairs, those of the first expert first.
        rows: how many pairs each expert has.
        row_end, block_end: of each expert, in all rows and in all blocks.
    """

    order: Int[Array, " pairs"]
    rows: Int[Array, " experts"]
    row_end: Int[Array, " experts"]
    block_end: Int[Array, " experts"]

    def expert(self, block):
        """Whose a block is."""
        return _first_above(self.block_end, block)

    def pairs(self, block):
        """Of a block's rows the (token, expert) pair, and whether there is one."""
        expert = jnp.minimum(self.expert(block), len(self.rows) - 1)
        first = self.block_end[expert] - (self.rows[expert] + BLOCK - 1) // BLOCK
        within = (block - first) * BLOCK + jnp.arange(BLOCK)
        row = self.row_end[expert] - self.rows[expert] + within
        mine = (within < self.rows[expert]) & (block < self.block_end[-1])
        return self.order[jnp.clip(row, 0, len(self.order) - 1)], mine


def _first_above(rising, values):
    """Where in a rising array the first number is that is above each value.

    All are compared at once: a binary search is a loop, and each of its steps a program of a GPU.
    """
    return jnp.searchsorted(rising, values, side="right", method="compare_all")


def _blocks(chosen_Tk, count) -> Blocks:
    """Pairs of experts that are elsewhere come last and are in no block."""
    flat = chosen_Tk.reshape(-1)
    expert = jnp.where((flat >= 0) & (flat < count), flat, count)
    order = jnp.argsort(expert, stable=True)
    # Counted where each expert ends; of a scatter the TPU compiler has no estimate.
    row_end = _first_above(expert[order], jnp.arange(count)).astype(jnp.int32)
    rows = jnp.diff(row_end, prepend=0)
    blocks = (rows + BLOCK - 1) // BLOCK
    return Blocks(order, rows, row_end, jnp.cumsum(blocks))


def blocked(experts, layer, gate, x_TD, share_Tk, chosen_Tk, quantized="", weighs_input=False):
    """A block of rows of one expert at a time; as many blocks as these tokens fill.

    Args:
        experts: as of `mixture`.
        x_TD, share_Tk, chosen_Tk: of T tokens; experts that are not here are left out.

    Returns:
        float32 [T, D].
    """
    T, D = x_TD.shape
    k, count = chosen_Tk.shape[1], experts["up"]["weight"].shape[1]
    blocks, share = _blocks(chosen_Tk, count), share_Tk.reshape(-1)

    def step(b, out):
        expert = blocks.expert(b)
        pair, mine = blocks.pairs(b)
        token = jnp.where(mine, pair // k, T)  # beyond the end: read as zeros, dropped when added
        x = x_TD.at[token].get(mode="fill", fill_value=0)
        weight = share[pair][:, None]

        def own(stacked):
            start = (layer, expert, *[0] * (stacked.ndim - 2))
            return lax.dynamic_slice(stacked, start, (1, 1, *stacked.shape[2:]))[0, 0]

        def product(rows, name):
            matrix = from_storage(own(experts[name]["weight"]))
            y = dot_last(rows, matrix.astype(quantized) if quantized else matrix)
            if quantized:
                y *= own(experts[name]["channel_scale"])
            return y + own(experts[name]["bias"]) if "bias" in experts[name] else y

        x = x * weight if weighs_input else x
        y = product(gate(product(x, "gate"), product(x, "up")), "down")
        return out.at[token].add(y if weighs_input else y * weight, mode="drop")

    return lax.fori_loop(0, blocks.block_end[-1], step, jnp.zeros((T, D), jnp.float32))


def grouped(run, experts, layer, gate, x_TD, share_Tk, chosen_Tk, quantized="", weighs_input=False):
    """What `blocked` computes, all blocks in each of three products.

    The experts of all layers are handed over, since a slice of one layer would be copied.

    Args:
        run: `grouped_tpu` or `grouped_gpu`.
    """
    T, D = x_TD.shape
    k, (n_layers, count) = chosen_Tk.shape[1], experts["up"]["weight"].shape[:2]
    blocks = _blocks(chosen_Tk, count)
    dtype = jnp.dtype(quantized) if quantized else compute_dtype(experts["up"]["weight"])
    every = jnp.arange(min(T * k, T * k // BLOCK + count))
    pair, mine = jax.vmap(blocks.pairs)(every)
    matrix = layer * count + jnp.minimum(blocks.expert(every), count - 1).astype(jnp.int32)

    def product(rows_BRD, name):
        weight = from_storage(experts[name]["weight"])
        scale = experts[name].get("channel_scale")
        scale = None if scale is None else scale.reshape(n_layers * count, -1)
        weight = weight.reshape(n_layers * count, *weight.shape[2:])
        y = run(rows_BRD.astype(dtype), weight, scale, matrix, blocks.block_end[-1])
        if "bias" not in experts[name]:
            return y
        bias = experts[name]["bias"].reshape(n_layers * count, -1)
        return y + bias[matrix][:, None]

    token = jnp.where(mine, pair // k, T)
    x = x_TD.at[token].get(mode="fill", fill_value=0)
    share = share_Tk.reshape(-1)[pair][..., None]
    x = x * share if weighs_input else x
    y = product(gate(product(x, "gate"), product(x, "up")), "down")
    # Blocks that are not computed hold anything, also what is no number.
    y = jnp.where(mine[..., None], y if weighs_input else y * share, 0.0)
    return jnp.zeros((T, D), jnp.float32).at[token].add(y, mode="drop")


GROUPED: dict[ExpertsName, Callable[..., Any]] = {
    "kernel_gpu": grouped_gpu,
    "kernel_tpu": grouped_tpu,
}
