"""Scores of tokens inside a JAX program, with gradients and without logits in memory.

`sums` has the forward pass. With the maximum m held constant, the sums of a position have the
derivatives, w_j = e^(z_j - m),

    d s0 / d z_j = w_j      d s1 / d z_j = w_j (1 + z_j - m)      d s2 / d z_j = 1

and no score depends on m. So the backward pass visits the same blocks of columns, computes their
logits again, and has from the cotangents c of the sums and of the target's logit

    d z_j = w_j (c0 + c1 (1 + z_j - m)) + c2 + [j = target] c_target

times the derivatives of soft cap and scale. Two products give the parts of the hidden states and
of the unembedding. What lies between sums and scores, the exchange between the shards of a split
vocabulary included, JAX differentiates itself.
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
LANES = 128  # columns that a TPU computes side by side


class _Function(NamedTuple):
    """Static options of the LM head.

    Attributes:
        axis: mesh axis of a split vocabulary.
        scores_all: every position is scored, so that loops have a static length.
    """

    scale: float
    softcap: float | None
    axis: str | None
    backend: Backend
    scores_all: bool


class _Inputs(NamedTuple):
    """Positions, those to score first, and the LM head."""

    hidden: Float[Array, "Q D"]
    weight: Float[Array, "V D"]
    bias: Float[Array, " V"] | None
    target: Int[Array, " Q"]
    n_positions: Int[Array, ""]

    def head(self, function: _Function) -> Unembedding:
        """The LM head as the forward pass of the engine takes it."""
        scale, softcap, axis, backend, _ = function
        weight = to_storage(self.weight, backend.integers)
        return Unembedding(weight, self.bias, scale, softcap, axis, backend)

    def gradient_head(self, function: _Function) -> Unembedding:
        """The LM head in blocks of columns for the backward pass."""
        backend = function.backend
        columns = _even_blocks(self.weight.shape[0], backend.gradient_columns)
        # Weights as integers would have no second derivatives.
        even = dataclasses.replace(backend, lm_head_columns=columns, integers=False)
        return self.head(function._replace(backend=even))


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
    """Log-probabilities of tokens, entropies and self-certainties, from hidden states.

    A pure function for `jit`, `grad`, `vmap`, `remat` and `shard_map`. It has derivatives in
    reverse mode with respect to `hidden`, `unembed` and `bias`, without a mask second ones too. The
    logits

        z = softcap * tanh(scale * (hidden @ unembed.T + bias) / softcap)

    are never in memory as a whole, neither forward nor backward. Products have the dtype of
    `unembed`; sums and scores are float32. `Scorer` runs the same pass. With p = softmax(z) over V
    columns, in nats:

        logprob         ln p(target)
        entropy         -sum p ln p
        self_certainty  -(1/V) sum ln(V p) = KL(uniform || p), arXiv 2502.18581

    Each device computes its own tokens inside `shard_map`, and of arrays that are split over
    explicit mesh axes, the default of `jax.make_mesh`. JAX refuses `vmap` over a split dimension;
    use leading dimensions instead. Of arrays split over auto axes each device computes all tokens.

    Args:
        hidden: final hidden states, after the last norm; float32, bfloat16 or float16.
        targets: ids of the tokens whose log-probability is computed; for next-token prediction
            the ids one position later. An id outside the vocabulary gives NaN unless masked.
        unembed: weight of the LM head, of these dtypes, too.
        mask: positions to score. The others are 0, pass no gradient, and cost next to nothing.
        bias: added to the products.
        scale: a number that is not traced, for example 1 / temperature.
        softcap: the same, the largest absolute logit, above 0; None for no cap.
        terms: names of the scores to return.
        axis_name: mesh axis over which the vocabulary is split, inside `shard_map`: `unembed` and
            `bias` are this shard's consecutive columns; all else is the same on these shards.

    Returns:
        The requested terms by name, float32 nats.

    Raises:
        ValueError: shapes or dtypes do not fit, a term is unknown, `scale` or `softcap` is traced
            or out of range.
        TypeError: forward-mode derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`).
    """
    # Over 60 lines: most of them document public parameters.
    factor = _constant("scale", scale)
    cap = None if softcap is None else _constant("softcap", softcap)
    if cap is not None and cap <= 0:
        raise ValueError(f"softcap is {cap}, expected a number above 0, or None for no cap")
    given = hidden, targets, unembed, mask, bias
    hidden, targets, unembed, mask, bias = jax.tree.map(jnp.asarray, given)
    _check_call(hidden, targets, unembed, mask, bias, terms)
    targets = _as_int32(targets)  # here, where integers of 64 bits exist if the caller has them
    arrays = hidden, targets, unembed, mask, bias
    split = {
        name: jax.typeof(array).sharding
        for name, array in zip(ARRAYS, arrays, strict=True)
        if array is not None and any(axis is not None for axis in jax.typeof(array).sharding.spec)
    }
    if split:
        if axis_name is not None:
            raise ValueError(
                f"axis_name is {axis_name!r} and {', '.join(split)} split over explicit axes, too; "
                "let shard_map have all axes of the mesh"
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
    """`token_scores` of checked arrays, of which this device has its own part."""
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

    def at_their_positions(value: Array) -> Array:
        return jnp.zeros_like(value).at[order].set(jnp.where(scored, value, 0.0)).reshape(shape)

    return {name: at_their_positions(values[name]) for name in terms}


@jax_settings.inside_jit()
def _over_explicit_axes(
    arrays: dict[str, Any], split: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """`token_scores` of arrays of which some are split over explicit mesh axes.

    Each device computes the tokens that `hidden` or else `targets` or `mask` gives it, and its
    columns of the vocabulary, unless tokens are split over the same axes.
    """
    arrays = {name: array for name, array in arrays.items() if array is not None}
    n_dims = arrays["targets"].ndim
    by_token = [
        split[name].spec[:n_dims] for name in ("hidden", "targets", "mask") if name in split
    ]
    rows = PartitionSpec(*next((spec for spec in by_token if any(spec)), ()))
    axis = split["unembed"].spec[0] if "unembed" in split else None
    if {*jax.tree.leaves(axis)} & {*jax.tree.leaves(tuple(rows))}:
        axis = None  # then the vocabulary is gathered
    whole = {"targets": rows, "mask": rows, "bias": PartitionSpec(axis)}
    whole |= {"hidden": PartitionSpec(*rows, None), "unembed": PartitionSpec(axis, None)}
    specs = {name: whole[name] for name in arrays}
    mesh = next(iter(split.values())).mesh

    def score_shard(parts: dict[str, Any]) -> dict[str, Any]:
        return token_scores(**parts, **options, axis_name=axis)

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
    """Scores of each token of some rows, given the tokens before it in its row.

    Args:
        apply_fn: hidden states of `params` and `ids` after the last norm, which depend on earlier
            tokens of the row alone; without `unembed` logits, which are then in memory as a whole.
        params: of the model, passed on as they are.
        ids: rows of tokens, padded at the end.
        mask: tokens to score, by default all; the first of a row has none before it and is never
            scored.
        unembed: from `params` the LM head's weight [V, D], or that and its bias [V].
        options: `bias`, `scale`, `softcap` and `terms` of `token_scores`; of logits `terms` alone.

    Returns:
        The terms by name, float32 nats, at the places of their tokens: entropy and self-certainty
        are of the distribution that predicts the token. 0 at positions that are not scored.

    Raises:
        ValueError: as `token_scores`; functions that give something else; or options that logits
            do not take.
    """
    if ids.ndim != 2 or (mask is not None and mask.shape != ids.shape):
        other = "" if mask is None else f" and mask {mask.shape}"
        raise ValueError(f"ids is {ids.shape}{other}, expected rows of tokens [R, L]")
    found = apply_fn(params, ids)
    if getattr(found, "shape", ())[:2] != ids.shape:
        what = getattr(found, "shape", type(found).__name__)
        raise ValueError(
            f"apply_fn gives {what}, expected one array [{ids.shape[0]}, {ids.shape[1]}, _]"
        )
    out, targets = found[:, :-1], ids[:, 1:]
    scored = jnp.ones(targets.shape, bool) if mask is None else mask[:, 1:]
    if unembed is None:
        terms = options.pop("terms", TERMS)
        if options:
            raise ValueError(f"{', '.join(options)} without unembed: logits are taken as they are")
        like_head = jax.ShapeDtypeStruct((out.shape[-1], out.shape[-1]), jnp.float32)
        _check_call(out, targets, like_head, scored, None, terms)
        values = _scores_of_logits(out, _as_int32(targets), scored, terms)
    else:
        weight, bias = weight_and_bias(unembed(params))
        options = options if bias is None else {"bias": bias} | options
        values = token_scores(out, targets, weight, mask=scored, **options)
    return {name: jnp.pad(value, ((0, 0), (1, 0))) for name, value in values.items()}


def weight_and_bias(found: Any) -> tuple[Any, Any]:
    """The LM head's weight and its bias or None, of what a model's `unembed` gives.

    Raises:
        ValueError: it is neither an array nor a pair of arrays.
    """
    pair = found if isinstance(found, tuple) else (found, None)
    if len(pair) != 2 or not hasattr(pair[0], "shape"):
        raise ValueError(
            f"unembed gives {type(found).__name__}, expected the weight [V, D], or it and the "
            "bias [V]"
        )
    return pair


@jax_settings.inside_jit()
def _scores_of_logits(
    logits: Array, targets: Array, mask: Array, terms: Sequence[str]
) -> dict[str, Array]:
    """`token_scores` of checked arrays, from logits."""
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
    at = jnp.where((targets >= 0) & (targets < V), targets, -V - 1).reshape(-1, 1)
    logit = jnp.take_along_axis(below, at, axis=1, mode="fill", fill_value=jnp.nan)[:, 0]
    values = {
        "logprob": logit - by_position.log_total,
        "entropy": by_position.entropy,
        "self_certainty": by_position.self_certainty,
    }
    return {name: jnp.where(mask, values[name].reshape(mask.shape), 0.0) for name in terms}


def _check_call(
    hidden: Any, targets: Any, unembed: Any, mask: Any, bias: Any, terms: Sequence[str]
) -> None:
    if unembed.ndim != 2 or hidden.shape != (*targets.shape, unembed.shape[1]):
        raise ValueError(
            f"hidden is {hidden.shape}, targets {targets.shape} and unembed {unembed.shape}, "
            "expected [..., D], [...] and [V, D]"
        )
    if not unembed.shape[0]:
        raise ValueError("unembed has no row, expected one per token id")
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"targets are {targets.dtype}, expected integers")
    floats = {"hidden": hidden, "unembed": unembed} | ({} if bias is None else {"bias": bias})
    for name, array in floats.items():
        if array.dtype not in FLOATS:
            raise ValueError(f"{name} is of {array.dtype}, expected {', '.join(FLOATS)}")
    if mask is not None and (mask.shape != targets.shape or mask.dtype != bool):
        raise ValueError(
            f"mask is {mask.shape} of {mask.dtype}, expected {targets.shape} of bool, as targets"
        )
    if bias is not None and bias.shape != unembed.shape[:1]:
        raise ValueError(f"bias is {bias.shape}, expected {unembed.shape[:1]}")
    if isinstance(terms, str):
        raise ValueError(f"terms is {terms!r}, expected a sequence such as ({terms!r},)")
    if unknown := [name for name in terms if name not in TERMS]:
        raise ValueError(f"no term {unknown[0]!r}; there are {', '.join(TERMS)}")


def _as_int32(targets: Int[Array, "..."]) -> Int[Array, "..."]:
    """Convert ids to int32; ids out of its range become -1, which no vocabulary has."""
    fits = (targets >= 0) & (targets <= jnp.iinfo(jnp.int32).max)
    return jnp.where(fits, targets, -1).astype(jnp.int32)


def _constant(name: str, value: Any) -> float:
    """The number as Python's.

    Raises:
        ValueError: it is traced, or no finite number.
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
    """Sums over this shard's columns, and the target's logit or 0 if another shard has it."""
    head, target = inputs.head(function), inputs.target
    each = jnp.arange(len(target), dtype=jnp.int32)
    n: Any = len(target) if function.scores_all else inputs.n_positions
    scored = ScoredPositions(each, n, each, target, n)
    sums = IMPLEMENTATIONS[function.backend.lm_head](inputs.hidden, scored, head, 0, ())
    return sums, target_logits(inputs.hidden, target, head)


def _forward(function: _Function, inputs: _Inputs) -> Any:
    sums, logit = _sums(function, inputs)
    return (sums, logit), (inputs, sums.top)


@jax_settings.inside_jit()
def _backward(function: _Function, saved: tuple[_Inputs, Array], cotangents: Any) -> Any:
    """Cotangents of hidden states, weight and bias; see the module."""
    inputs, top = saved
    (_, c0, c1, c2, *_), c_target = cotangents
    (Q, D), V = inputs.hidden.shape, inputs.weight.shape[0]
    head, target = inputs.gradient_head(function), inputs.target
    if function.axis is not None:
        target = target - lax.axis_index(function.axis) * V
    n: Any = Q if function.scores_all else inputs.n_positions
    loops = _position_loops(Q, n, function.backend.gradient_positions)

    def of_columns(carry: Any, first: Array) -> Any:
        d_hidden, *wholes = carry
        columns, fresh = block_columns(head, first)
        start, C = columns[0], len(columns)
        weight = from_storage(lax.dynamic_slice_in_dim(head.weight, start, C))

        def of_positions(first: Any, rows: int, b: Array, carry: Any) -> Any:
            d_hidden, d_part, d_bias_part = carry
            from_row = first + b * rows
            at = jnp.minimum(from_row, Q - rows)

            def block(x: Array) -> Array:
                return lax.dynamic_slice_in_dim(x, at, rows)

            # A block moved back inside the arrays has entries of the one before.
            row = at + jnp.arange(rows)
            own = ((row >= from_row) & (row < n))[:, None]
            hidden = jnp.where(own, block(inputs.hidden), 0)
            z = block_logits(hidden, head, start, C)
            is_target = columns == block(target)[:, None]
            given = [block(x)[:, None] for x in (c0, c1, c2, c_target)]
            dz = _product_cotangents(z, z - block(top)[:, None], is_target, given, head)
            dz = jnp.where(own & fresh, dz, 0.0)
            more = _dot(dz.astype(weight.dtype), weight, ((1,), (0,)))
            d_hidden = lax.dynamic_update_slice_in_dim(d_hidden, block(d_hidden) + more, at, 0)
            more = _dot(dz.astype(weight.dtype), hidden.astype(weight.dtype), ((0,), (0,)))
            return d_hidden, d_part + more, d_bias_part + dz.sum(axis=0)

        carry = d_hidden, *vary_like((jnp.zeros((C, D)), jnp.zeros(C)), inputs)
        for from_position, rows, n_blocks in loops:
            step = functools.partial(of_positions, from_position, rows)
            carry = lax.fori_loop(0, n_blocks, step, carry)
        d_hidden, *parts = carry

        wholes = [
            lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), start, 0)
            for whole, part in zip(wholes, parts, strict=True)
        ]
        return (d_hidden, *wholes), None

    # The last block comes first: where it was moved back, the one before it overwrites its zeros.
    carry = jnp.zeros((Q, D)), lax.empty((V, D), inputs.weight.dtype), lax.empty((V,), jnp.float32)
    out, _ = lax.scan(of_columns, vary_like(carry, inputs), block_starts(head), reverse=True)
    d_bias = None if inputs.bias is None else out[2].astype(inputs.bias.dtype)
    d_hidden = out[0].astype(inputs.hidden.dtype)
    integers: Any = None  # no cotangent
    return (_Inputs(d_hidden, out[1], d_bias, integers, integers),)


def _product_cotangents(
    z: Array, below: Array, is_target: Array, given: Sequence[Array], head: Unembedding
) -> Array:
    """Cotangents of the products that logits come from, [positions, columns].

    Args:
        z: the logits; `below` these less the largest of each position.
        given: cotangents of the three sums and of the target's logit, [positions, 1] each.
    """
    w = jnp.exp(below)
    mixed = given[0] + given[1] * (1 + jnp.where(w > 0, below, 0.0))
    dz = w * mixed + given[2] + jnp.where(is_target, given[3], 0.0)
    if head.softcap is not None:
        dz *= 1 - jnp.square(z / head.softcap)
    return dz * head.scale


def _position_loops(Q: int, n: Any, sizes: tuple[int, int]) -> list[tuple[Any, int, Any]]:
    """First position, positions per block and number of blocks of each loop over n of Q positions.

    As `scores.map_position_blocks`, but a number that is known is one block if it is small.
    """
    large, small = min(Q, sizes[0]), min(Q, sizes[1])
    if isinstance(n, int) and n <= large:
        return [(0, n, 1)]
    if large == Q:
        return [(0, small, -(-n // small))]
    n_large = n // large
    rest = n - n_large * large
    loops = [(0, large, n_large), (n_large * large, small, -(-rest // small))]
    return [loop for loop in loops if not isinstance(loop[2], int) or loop[2]]


def _even_blocks(n_columns: int, most: int) -> int:
    """Columns per block such that the last block is hardly smaller than the others.

    A block moved back inside the table computes columns of the one before again.
    """
    n_blocks = -(-n_columns // most)
    return min(most, -(-n_columns // (n_blocks * LANES)) * LANES)


def _dot(x: Array, y: Array, axes: Any) -> Array:
    highest = lax.Precision.HIGHEST if y.dtype == jnp.float32 else None
    dimensions = axes, ((), ())
    return lax.dot_general(x, y, dimensions, highest, preferred_element_type=jnp.float32)


_sums.defvjp(_forward, _backward)
