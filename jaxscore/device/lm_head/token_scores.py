"""Scores of tokens inside a JAX program, with gradients and without the full logits in memory.

The forward pass is described in `sums`. With the maximum m held constant and w_j = e^(z_j - m), the
sums of a position have the derivatives

    d s0 / d z_j = w_j      d s1 / d z_j = w_j (1 + z_j - m)      d s2 / d z_j = 1

and no score depends on m. The backward pass therefore visits the same blocks of columns and
computes their logits again. From the cotangents c of the sums and of the target's logit it computes

    d z_j = w_j (c0 + c1 (1 + z_j - m)) + c2 + [j = target] c_target

times the derivatives of soft cap and scale. Two products then give the cotangents of the hidden
states and of the unembedding. JAX differentiates all steps from the sums to the scores, including
the exchange between the shards of a split vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device import jax_settings
from jaxscore.device.backends import Backend, current_backend
from jaxscore.device.dots import from_storage, to_storage
from jaxscore.device.lm_head import IMPLEMENTATIONS, logprob_of_logits, target_logits
from jaxscore.device.lm_head.column_blocks import (
    block_columns,
    block_logits,
    block_starts,
    vary_like,
)
from jaxscore.device.lm_head.sums import Sums
from jaxscore.device.lm_head.sums import terms as terms_of_sums
from jaxscore.device.rows import ScoredPositions, Unembedding

TERMS = ("logprob", "entropy", "self_certainty")
ARRAYS = ("hidden", "targets", "unembed", "mask", "bias")
FLOATS = ("float32", "bfloat16", "float16")
LANES = 128  # columns that a TPU computes in parallel


class _Function(NamedTuple):
    """Static options of the LM head.

    Attributes:
        axis: mesh axis over which the vocabulary is split, or None.
        backend: implementations for the platform.
        scores_all: if True, every position is scored, so that loops have a static length.
    """

    scale: float
    softcap: float | None
    axis: str | None
    backend: Backend
    scores_all: bool


class _Inputs(NamedTuple):
    """Hidden states and targets of the positions, the scored ones first, and the LM head."""

    hidden: Float[Array, "Q D"]
    weight: Float[Array, "V D"]
    bias: Float[Array, " V"] | None
    target: Int[Array, " Q"]
    n_positions: Int[Array, ""]

    def head(self, function: _Function) -> Unembedding:
        """Return the LM head for the forward pass."""
        scale, softcap, axis, backend, _ = function
        weight = to_storage(self.weight, backend.integers)
        return Unembedding(weight, self.bias, scale, softcap, axis, backend)

    def gradient_head(self, function: _Function) -> Unembedding:
        """Return the LM head for the backward pass, with its block size."""
        backend = function.backend
        columns = _even_blocks(self.weight.shape[0], backend.gradient_columns)
        # Weights stored as integers would not have second derivatives.
        backend = dataclasses.replace(backend, lm_head_columns=columns, integers=False)
        return self.head(function._replace(backend=backend))


@jax_settings.applied(jax_settings.CHECKS)
def token_scores(
    hidden: Float[Array, "... D"],
    targets: Int[Array, "..."],
    unembed: Float[Array, "V D"],
    *,
    mask: Bool[Array, "..."] | None = None,
    bias: Float[Array, " V"] | None = None,
    scale: float | Array = 1.0,
    softcap: float | Array | None = None,
    terms: Sequence[str] = TERMS,
    axis_name: str | None = None,
) -> dict[str, Float[Array, "..."]]:
    """Compute log-probabilities of tokens, entropies and self-certainties from hidden states.

    This is a pure function for `jit`, `grad`, `vmap`, `remat` and `shard_map`. It supports
    reverse-mode derivatives with respect to `hidden`, `unembed` and `bias`, and second derivatives
    without a mask. The full logits

        z = softcap * tanh(scale * (hidden @ unembed.T + bias) / softcap)

    are never in memory, neither forward nor backward. Products have the dtype of `unembed`; sums
    and scores are float32. `Scorer` runs the same pass. With p = softmax(z) over V columns, in
    nats:

        logprob         ln p(target)
        entropy         -sum p ln p
        self_certainty  -(1/V) sum ln(V p) = KL(uniform || p), arXiv 2502.18581

    Inside `shard_map`, and for arrays split over explicit mesh axes (the default of
    `jax.make_mesh`), each device computes its own tokens. For arrays split over auto axes each
    device computes all tokens. JAX refuses `vmap` over a split dimension; use leading dimensions
    instead.

    Args:
        hidden: final hidden states, after the last norm; float32, bfloat16 or float16.
        targets: ids of the tokens whose log-probability is computed; for next-token prediction
            the ids one position later. An id outside the vocabulary gives NaN unless masked.
        unembed: weight of the LM head, in one of the same dtypes.
        mask: True at positions to score. The scores of the others are 0, have zero gradients and
            cost next to nothing.
        bias: bias that is added to the products.
        scale: factor on the logits, for example 1 / temperature; must not be traced.
        softcap: bound on the absolute logit, above 0, or None for no bound; must not be traced.
        terms: names of the scores to return.
        axis_name: mesh axis over which the vocabulary is split inside `shard_map`. `unembed` and
            `bias` then are consecutive columns, in the order of the shards; all other arguments
            must be equal on these shards.

    Returns:
        The requested terms by name, float32 nats.

    Raises:
        ValueError: shapes or dtypes do not fit, a term is unknown, or `scale` or `softcap` is
            traced or out of range.
        TypeError: forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are requested.
    """
    # Over 60 lines: most of them document public parameters.
    factor = _constant("scale", scale)
    cap = None if softcap is None else _constant("softcap", softcap)
    if cap is not None and cap <= 0:
        raise ValueError(f"softcap is {cap}, expected a number above 0, or None for no cap")
    hidden, targets, unembed, mask, bias = jax.tree.map(
        jnp.asarray, (hidden, targets, unembed, mask, bias)
    )
    _check_call(hidden, targets, unembed, mask, bias, terms)
    targets = _as_int32(targets)  # here, where 64-bit integers exist if the caller enabled them
    arrays = hidden, targets, unembed, mask, bias
    split = {
        name: jax.typeof(array).sharding
        for name, array in zip(ARRAYS, arrays, strict=True)
        if array is not None and any(axis is not None for axis in jax.typeof(array).sharding.spec)
    }
    if split:
        if axis_name is not None:
            raise ValueError(
                f"axis_name is {axis_name!r}, but explicit axes also split {', '.join(split)}; "
                "apply shard_map to all axes of the mesh"
            )
        options = {"scale": factor, "softcap": cap, "terms": terms}
        return _over_explicit_axes(dict(zip(ARRAYS, arrays, strict=True)), split, options)
    if not targets.size:
        return {name: jnp.zeros(targets.shape, jnp.float32) for name in terms}
    function = _Function(factor, cap, axis_name, current_backend(), mask is None)
    return _score(function, hidden, targets, unembed, mask, bias, terms)


@jax_settings.inside_jit()
def _score(
    function: _Function,
    hidden: Array,
    targets: Array,
    unembed: Array,
    mask: Array | None,
    bias: Array | None,
    terms: Sequence[str],
) -> dict[str, Array]:
    """Compute `token_scores` of checked arrays on one device."""
    shape, Q, V, axis = targets.shape, targets.size, unembed.shape[0], function.axis
    hidden, targets = hidden.reshape(Q, -1), targets.reshape(Q)
    order, n_positions = jnp.arange(Q), jnp.int32(Q)
    if mask is not None:
        order = jnp.argsort(~mask.reshape(Q), stable=True)
        n_positions = mask.sum(dtype=jnp.int32)
        hidden, targets = hidden[order], targets[order]
    inputs = _Inputs(hidden, unembed, bias, targets, n_positions)
    inputs = vary_like(inputs, inputs)

    sums, logit = _sums(function, inputs)
    fixed = lax.stop_gradient(inputs)
    head = fixed.head(function)
    by_position = terms_of_sums(sums._replace(top=lax.stop_gradient(sums.top)), head)
    values = {"entropy": by_position.entropy, "self_certainty": by_position.self_certainty}
    if "logprob" in terms:
        if axis is not None:
            logit, V = lax.psum(logit, axis), V * lax.axis_size(axis)
        logprob = logprob_of_logits(fixed.hidden, logit, by_position, head)
        values["logprob"] = jnp.where((targets >= 0) & (targets < V), logprob, jnp.nan)
    if mask is None:
        return {name: values[name].reshape(shape) for name in terms}
    scored = jnp.arange(Q) < n_positions

    def restore_order(value: Array) -> Array:
        return jnp.zeros_like(value).at[order].set(jnp.where(scored, value, 0.0)).reshape(shape)

    return {name: restore_order(values[name]) for name in terms}


@jax_settings.inside_jit()
def _over_explicit_axes(
    arrays: dict[str, Any], split: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Compute `token_scores` of arrays of which some are split over explicit mesh axes.

    Tokens are split like the first split array of `hidden`, `targets` and `mask`. The vocabulary is
    split like `unembed`, unless tokens are split over the same axes.
    """
    arrays = {name: array for name, array in arrays.items() if array is not None}
    n_dims = arrays["targets"].ndim
    token_specs = [
        split[name].spec[:n_dims] for name in ("hidden", "targets", "mask") if name in split
    ]
    rows = PartitionSpec(*next((spec for spec in token_specs if any(spec)), ()))
    axis = split["unembed"].spec[0] if "unembed" in split else None
    if {*jax.tree.leaves(axis)} & {*jax.tree.leaves(tuple(rows))}:
        axis = None  # gathers the vocabulary
    specs = {"targets": rows, "mask": rows, "bias": PartitionSpec(axis)}
    specs |= {"hidden": PartitionSpec(*rows, None), "unembed": PartitionSpec(axis, None)}
    specs = {name: specs[name] for name in arrays}
    mesh = next(iter(split.values())).mesh

    def score_shard(shard: dict[str, Any]) -> dict[str, Any]:
        return token_scores(**shard, **options, axis_name=axis)

    @jax.jit
    def run(arrays: dict[str, Any]) -> dict[str, Any]:
        placed = {
            name: jax.sharding.reshard(array, NamedSharding(mesh, specs[name]))
            for name, array in arrays.items()
        }
        return jax.shard_map(score_shard, mesh=mesh, in_specs=(specs,), out_specs=rows)(placed)

    scores: dict[str, Any] = run(arrays)
    return scores


def score_tokens(
    apply_fn: Callable[[Any, Int[Array, "R L"]], Float[Array, "R L _"]],
    params: Any,
    ids: Int[Array, "R L"],
    mask: Bool[Array, "R L"] | None = None,
    *,
    unembed: Callable[[Any], Any] | None = None,
    **options: Any,
) -> dict[str, Float[Array, "R L"]]:
    """Compute the scores of each token given the previous tokens of its row.

    Args:
        apply_fn: function of `params` and `ids` that returns the hidden states after the last norm.
            They must depend only on the token and earlier tokens of its row. Without `unembed` the
            function returns the logits, so that the full logits are in memory.
        params: the model's parameters, passed on unchanged.
        ids: rows of tokens, padded at the end.
        mask: True at tokens to score, by default at all. The first token of a row is never scored.
        unembed: function of `params` that returns the LM head's weight [V, D], or a tuple of the
            weight and the bias [V].
        options: `bias`, `scale`, `softcap` and `terms` of `token_scores`; for logits only `terms`.

    Returns:
        The terms by name, float32 nats, at the positions of the scored tokens. Entropy and
        self-certainty are those of the distribution that predicts the token. Positions that are not
        scored are 0.

    Raises:
        ValueError: an argument of `token_scores` is invalid, a function returns an array of another
            shape, or an option is not supported for logits.
    """
    if ids.ndim != 2 or (mask is not None and mask.shape != ids.shape):
        mask_shape = "" if mask is None else f" and mask {mask.shape}"
        raise ValueError(f"ids is {ids.shape}{mask_shape}, expected rows of tokens [R, L]")
    out = apply_fn(params, ids)
    if getattr(out, "shape", ())[:2] != ids.shape:
        description = getattr(out, "shape", type(out).__name__)
        raise ValueError(
            f"apply_fn returned {description}, expected one array "
            f"[{ids.shape[0]}, {ids.shape[1]}, _]"
        )
    out, targets = out[:, :-1], ids[:, 1:]
    scored = jnp.ones(targets.shape, bool) if mask is None else mask[:, 1:]
    if unembed is None:
        terms = options.pop("terms", TERMS)
        if options:
            raise ValueError(f"{', '.join(options)} without unembed: not supported for logits")
        like_head = jax.ShapeDtypeStruct((out.shape[-1], out.shape[-1]), jnp.float32)
        _check_call(out, targets, like_head, scored, None, terms)
        values = _scores_of_logits(out, _as_int32(targets), scored, terms)
    else:
        weight, bias = weight_and_bias(unembed(params))
        options = options if bias is None else {"bias": bias} | options
        values = token_scores(out, targets, weight, mask=scored, **options)
    return {name: jnp.pad(value, ((0, 0), (1, 0))) for name, value in values.items()}


def weight_and_bias(unembedding: Any) -> tuple[Any, Any]:
    """Return the LM head's weight and its bias, or None for no bias.

    Args:
        unembedding: the result of a model's `unembed`: the weight, or (weight, bias).

    Raises:
        ValueError: `unembedding` is neither an array nor a pair of arrays.
    """
    pair = unembedding if isinstance(unembedding, tuple) else (unembedding, None)
    if len(pair) != 2 or not hasattr(pair[0], "shape"):
        raise ValueError(
            f"unembed gives {type(unembedding).__name__}, expected the weight [V, D] or "
            "(weight, bias [V])"
        )
    return pair


@jax_settings.inside_jit()
def _scores_of_logits(
    logits: Array, targets: Array, mask: Array, terms: Sequence[str]
) -> dict[str, Array]:
    """Compute `token_scores` from logits; the arrays have been checked."""
    V = logits.shape[-1]
    z = jnp.where(mask[..., None], logits, 0).reshape(-1, V).astype(jnp.float32)
    top = lax.stop_gradient(z.max(axis=1))
    below = z - top[:, None]
    w = jnp.exp(below)
    sums = Sums(
        top,
        w.sum(axis=1),
        (w * jnp.where(w > 0, below, 0.0)).sum(axis=1),
        below.sum(axis=1),
        z.argmax(axis=1),
    )
    head = Unembedding(jnp.zeros((V, 0)), None, 1.0, None)
    by_position = terms_of_sums(sums, head)
    index = jnp.where((targets >= 0) & (targets < V), targets, -V - 1).reshape(-1, 1)
    logit = jnp.take_along_axis(below, index, axis=1, mode="fill", fill_value=jnp.nan)[:, 0]
    values = {
        "logprob": logit - by_position.log_total,
        "entropy": by_position.entropy,
        "self_certainty": by_position.self_certainty,
    }
    return {name: jnp.where(mask, values[name].reshape(mask.shape), 0.0) for name in terms}


def _check_call(
    hidden: Any, targets: Any, unembed: Any, mask: Any, bias: Any, terms: Sequence[str]
) -> None:
    """Raise a ValueError if shapes, dtypes or terms are invalid."""
    if unembed.ndim != 2 or hidden.shape != (*targets.shape, unembed.shape[1]):
        raise ValueError(
            f"hidden is {hidden.shape}, targets {targets.shape} and unembed {unembed.shape}, "
            "expected [..., D], [...] and [V, D]"
        )
    if not unembed.shape[0]:
        raise ValueError("unembed has 0 rows, expected one row per token id")
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"targets are {targets.dtype}, expected integers")
    floats = {"hidden": hidden, "unembed": unembed} | ({} if bias is None else {"bias": bias})
    for name, array in floats.items():
        if array.dtype not in FLOATS:
            raise ValueError(f"{name} has dtype {array.dtype}, expected {', '.join(FLOATS)}")
    if mask is not None and (mask.shape != targets.shape or mask.dtype != bool):
        raise ValueError(
            f"mask is {mask.shape} of {mask.dtype}, expected {targets.shape} of bool, like targets"
        )
    if bias is not None and bias.shape != unembed.shape[:1]:
        raise ValueError(f"bias is {bias.shape}, expected {unembed.shape[:1]}")
    if isinstance(terms, str):
        raise ValueError(f"terms is {terms!r}, expected a sequence such as ({terms!r},)")
    if unknown := [name for name in terms if name not in TERMS]:
        raise ValueError(f"unknown term {unknown[0]!r}, expected {', '.join(TERMS)}")


def _as_int32(targets: Int[Array, "..."]) -> Int[Array, "..."]:
    """Convert ids to int32; ids out of its range become -1, which is in no vocabulary."""
    fits = (targets >= 0) & (targets <= jnp.iinfo(jnp.int32).max)
    return jnp.where(fits, targets, -1).astype(jnp.int32)


def _constant(name: str, value: Any) -> float:
    """Convert a number to a Python float.

    Raises:
        ValueError: the value is traced or not a finite number.
    """
    if isinstance(value, jax.core.Tracer):
        raise ValueError(f"{name} is traced, expected a number")
    if np.ndim(value):
        raise ValueError(f"{name} has shape {np.shape(value)}, expected a number")
    if value is None or isinstance(value, str) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
    return float(value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(function: _Function, inputs: _Inputs) -> tuple[Sums, Float[Array, " Q"]]:
    """Compute the sums over this shard's columns, and target logits (0 if on another shard)."""
    head, target = inputs.head(function), inputs.target
    positions = jnp.arange(len(target), dtype=jnp.int32)
    n: Any = len(target) if function.scores_all else inputs.n_positions
    scored = ScoredPositions(positions, n, positions, target, n)
    sums = IMPLEMENTATIONS[function.backend.lm_head](inputs.hidden, scored, head, 0, ())
    return sums, target_logits(inputs.hidden, target, head)


def _forward(function: _Function, inputs: _Inputs) -> Any:
    sums, logit = _sums(function, inputs)
    return (sums, logit), (inputs, sums.top)


@jax_settings.inside_jit()
def _backward(function: _Function, saved: tuple[_Inputs, Array], cotangents: Any) -> Any:
    """Compute the cotangents of hidden states, weight and bias; see the module docstring."""
    inputs, top = saved
    (_, c0, c1, c2, *_), c_target = cotangents
    (Q, D), V = inputs.hidden.shape, inputs.weight.shape[0]
    head, target = inputs.gradient_head(function), inputs.target
    if function.axis is not None:
        target = target - lax.axis_index(function.axis) * V
    n: Any = Q if function.scores_all else inputs.n_positions
    loops = _position_loops(Q, n, function.backend.gradient_positions)

    def add_columns(carry: Any, first: Array) -> Any:
        d_hidden, *totals = carry
        columns, fresh = block_columns(head, first)
        start, C = columns[0], len(columns)
        weight = from_storage(lax.dynamic_slice_in_dim(head.weight, start, C))

        def add_positions(first: Any, rows: int, b: Array, carry: Any) -> Any:
            d_hidden, d_block, d_bias_block = carry
            first_row = first + b * rows
            start_row = jnp.minimum(first_row, Q - rows)

            def take_rows(x: Array) -> Array:
                return lax.dynamic_slice_in_dim(x, start_row, rows)

            # The last block is shifted back and shares rows with the one before.
            row = start_row + jnp.arange(rows)
            is_valid = ((row >= first_row) & (row < n))[:, None]
            hidden = jnp.where(is_valid, take_rows(inputs.hidden), 0)
            z = block_logits(hidden, head, start, C)
            is_target = columns == take_rows(target)[:, None]
            row_cotangents = [take_rows(x)[:, None] for x in (c0, c1, c2, c_target)]
            dz = _product_cotangents(
                z, z - take_rows(top)[:, None], is_target, row_cotangents, head
            )
            dz = jnp.where(is_valid & fresh, dz, 0.0)
            d_rows = _dot(dz.astype(weight.dtype), weight, ((1,), (0,)))
            d_hidden = lax.dynamic_update_slice_in_dim(
                d_hidden, take_rows(d_hidden) + d_rows, start_row, 0
            )
            d_weight = _dot(dz.astype(weight.dtype), hidden.astype(weight.dtype), ((0,), (0,)))
            return d_hidden, d_block + d_weight, d_bias_block + dz.sum(axis=0)

        carry = d_hidden, *vary_like((jnp.zeros((C, D)), jnp.zeros(C)), inputs)
        for from_position, rows, n_blocks in loops:
            step = functools.partial(add_positions, from_position, rows)
            carry = lax.fori_loop(0, n_blocks, step, carry)
        d_hidden, *blocks = carry

        totals = [
            lax.dynamic_update_slice_in_dim(total, block.astype(total.dtype), start, 0)
            for total, block in zip(totals, blocks, strict=True)
        ]
        return (d_hidden, *totals), None

    # Start with the last block, which is shifted back. The one before it then overwrites its zeros.
    carry = jnp.zeros((Q, D)), lax.empty((V, D), inputs.weight.dtype), lax.empty((V,), jnp.float32)
    out, _ = lax.scan(add_columns, vary_like(carry, inputs), block_starts(head), reverse=True)
    d_bias = None if inputs.bias is None else out[2].astype(inputs.bias.dtype)
    d_hidden = out[0].astype(inputs.hidden.dtype)
    integers: Any = None  # integers have no cotangents
    return (_Inputs(d_hidden, out[1], d_bias, integers, integers),)


def _product_cotangents(
    z: Array, below: Array, is_target: Array, cotangents: Sequence[Array], head: Unembedding
) -> Array:
    """Compute the cotangents of the products [positions, columns] from which logits are computed.

    Args:
        z: logits.
        below: logits minus the largest logit of each position.
        is_target: mask of the targets' columns.
        cotangents: cotangents of s0, s1, s2 and the target's logit, [positions, 1] each.
        head: the LM head.
    """
    w = jnp.exp(below)
    weighted = cotangents[0] + cotangents[1] * (1 + jnp.where(w > 0, below, 0.0))
    dz = w * weighted + cotangents[2] + jnp.where(is_target, cotangents[3], 0.0)
    if head.softcap is not None:
        dz *= 1 - jnp.square(z / head.softcap)
    return dz * head.scale


def _position_loops(Q: int, n: Any, sizes: tuple[int, int]) -> list[tuple[Any, int, Any]]:
    """Return first position, block size and number of blocks of each loop over n of Q positions.

    Like `map_position_blocks`, but a static n that fits in a large block is a single block.
    """
    large, small = min(Q, sizes[0]), min(Q, sizes[1])
    if isinstance(n, int) and n <= large:
        return [(0, n, 1)]
    if large == Q:
        return [(0, small, -(-n // small))]
    n_large = n // large
    remaining = n - n_large * large
    loops = [(0, large, n_large), (n_large * large, small, -(-remaining // small))]
    return [loop for loop in loops if not isinstance(loop[2], int) or loop[2]]


def _even_blocks(n_columns: int, max_columns: int) -> int:
    """Return the number of columns per block, such that the blocks are nearly equal.

    A smaller last block would be shifted back and compute columns of the one before again.
    """
    n_blocks = -(-n_columns // max_columns)
    return min(max_columns, -(-n_columns // (n_blocks * LANES)) * LANES)


def _dot(x: Array, y: Array, axes: Any) -> Array:
    precision = lax.Precision.HIGHEST if y.dtype == jnp.float32 else None
    dimensions = axes, ((), ())
    return lax.dot_general(x, y, dimensions, precision, preferred_element_type=jnp.float32)


_sums.defvjp(_forward, _backward)
