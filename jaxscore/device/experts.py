"""The experts of a mixture: each token runs a few of them, and only their products are computed.

The (token, expert) pairs are sorted by expert, so that an expert's tokens are rows of one
product. On the CPU blocks of rows go by, each of one expert, the last of an expert partly empty;
accelerators have a product of their own for groups of rows.

    expert      0 0 0 0 0 | 1 | 3 3 3       blocks of 4    [0 0 0 0] [0 . . .] [1 . . .] [3 3 3 .]
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.build import ON_CPU, Build
from jaxscore.device.dots import compute_dtype, dot_last, from_storage

BLOCK = 128  # rows of a product on the CPU, which wants at least as many


def mixture(
    experts: Any,
    layer: Int[Array, ""],
    activation: Callable[[Array], Array],
    x: Float[Array, "R L D"],
    share: Float[Array, "R L k"],
    chosen: Int[Array, "R L k"],
    quantized: str = "",
    build: Build = ON_CPU,
) -> Float[Array, "R L D"]:
    """`sum_k share_k * down(activation(gate(x)) * up(x))` of each token's chosen experts.

    Args:
        experts: "gate" and "up" [layers, experts, F, D], "down" [layers, experts, D, F], as
            stored; quantized ones have a scale for each of their output channels. All layers,
            since a loop over layers would copy the slice that it is handed.
        quantized: see `DecoderConfig`.
        build: forms and mesh; a shard has some of the experts, in order.
    """
    axis = build.axis
    if axis is not None:
        chosen = chosen - lax.axis_index(axis) * experts["up"]["weight"].shape[1]
    run = blocked if build.forms.experts_by_block else grouped
    D, k = x.shape[-1], chosen.shape[-1]
    flat = x.reshape(-1, D), share.reshape(-1, k), chosen.reshape(-1, k)
    out = run(experts, layer, activation, *flat, quantized).reshape(x.shape)
    return out if axis is None else lax.psum(out, axis)


def _sorted(chosen_Tk, count):
    """(token, expert) pairs by expert, and how many each of the experts here has.

    Those of experts that are elsewhere come last and are nobody's.
    """
    flat = chosen_Tk.reshape(-1)
    expert = jnp.where((flat >= 0) & (flat < count), flat, count)
    order = jnp.argsort(expert, stable=True)
    return order, expert[order], jnp.zeros(count, jnp.int32).at[expert].add(1, mode="drop")


def blocked(experts, layer, activation, x_TD, share_Tk, chosen_Tk, quantized=""):
    """A block of rows of one expert at a time; as many blocks as these tokens fill."""
    T, D = x_TD.shape
    k, count = chosen_Tk.shape[1], experts["up"]["weight"].shape[1]
    order, _, rows = _sorted(chosen_Tk, count)
    share = share_Tk.reshape(-1)
    blocks = (rows + BLOCK - 1) // BLOCK
    row_end, block_end = jnp.cumsum(rows), jnp.cumsum(blocks)

    def step(b, out):
        expert = jnp.searchsorted(block_end, b, side="right")
        within = (b - (block_end - blocks)[expert]) * BLOCK + jnp.arange(BLOCK)
        row = (row_end - rows)[expert] + within
        pair = order[jnp.minimum(row, T * k - 1)]
        mine = within < rows[expert]
        token = jnp.where(mine, pair // k, T)  # beyond the end: read as zeros, dropped when added
        x = x_TD.at[token].get(mode="fill", fill_value=0)

        def own(stacked):
            start = (layer, expert, *[0] * (stacked.ndim - 2))
            return lax.dynamic_slice(stacked, start, (1, 1, *stacked.shape[2:]))[0, 0]

        def product(rows, name):
            weight = from_storage(own(experts[name]["weight"]))
            if not quantized:
                return dot_last(rows, weight)
            return dot_last(rows, weight.astype(quantized)) * own(experts[name]["channel_scale"])

        inner = activation(product(x, "gate")) * product(x, "up")
        y = product(inner, "down") * share[pair][:, None]
        return out.at[token].add(y, mode="drop")

    return lax.fori_loop(0, block_end[-1], step, jnp.zeros((T, D), jnp.float32))


def grouped(experts, layer, activation, x_TD, share_Tk, chosen_Tk, quantized=""):
    """One product for all groups of rows."""
    T, D = x_TD.shape
    k, count = chosen_Tk.shape[1], experts["up"]["weight"].shape[1]
    order, expert, sizes = _sorted(chosen_Tk, count)
    dtype = jnp.dtype(quantized) if quantized else compute_dtype(experts["up"]["weight"])
    dimensions = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (2,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )

    def product(rows, name):
        sums = lax.ragged_dot_general(
            rows.astype(dtype),
            from_storage(experts[name]["weight"][layer]).astype(dtype),
            sizes,
            dimensions,
            precision=lax.Precision.HIGHEST if dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        return (
            sums * experts[name]["channel_scale"][layer, jnp.minimum(expert, count - 1)]
            if quantized
            else sums
        )

    here = (expert < count)[:, None]
    x = jnp.where(here, x_TD[order // k], 0.0)
    y = product(activation(product(x, "gate")) * product(x, "up"), "down")
    y = jnp.where(here, y * share_Tk.reshape(-1)[order][:, None], 0.0)
    return jnp.zeros((T, D), jnp.float32).at[order // k].add(y)
