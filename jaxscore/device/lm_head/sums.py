"""Sums over the vocabulary from which all scores of a position are computed without its logits.

The columns are visited once, with a running maximum m (the online softmax of arXiv 1805.02867).
The sums over the columns visited so far are relative to it:

    s0 = sum e^(z-m)      s1 = sum e^(z-m) (z-m)      s2 = sum (z-m)

Sums of blocks, lanes and shards are merged by rescaling them to a common m. The scores follow
without a difference of large numbers:

    logprob(t)     = (z_t - m) - ln s0
    entropy        = ln s0 - s1 / s0
    self-certainty = ln s0 - s2 / V - ln V     KL(uniform || p), arXiv 2502.18581

The optional measures use s3 = sum e^(z-m) (z-m-s1/s0)^2 and s4 = sum e^(2(z-m)):

    varentropy     = s3 / s0                   variance of ln p under p, in squared nats
    deviation      = (s3 / s0)^(1/2)           its square root, in nats
    renyi2         = 2 ln s0 - ln s4           Renyi entropy of order 2, -ln sum p^2
    rank           = 1 + the number of columns whose logit is larger than the target's

s3 is centred on the mean of the columns visited so far and is updated with it (Chan et al. 1979),
since a difference of raw moments suffers from cancellation. It is scaled by SCALE^2 and computed
from e^((z-m)/2): the variance of a distribution with one probable token comes from columns whose
e^(z-m) underflows float32.

The log-probability of a class of tokens is

    mass           = ln sum_c e^(z-m) - ln s0  over the columns c of the class

Float32 has e^(z-m) down to e^-87, so the sum of a class whose tokens are all improbable would lose
them. Where a sum is below SMALLEST, the classes are summed again, relative to their own maxima.

The k most probable tokens are merged block by block: from the k best tokens of all earlier columns
and the k best of the block, the k best of both are kept. Equal logits keep the order of their
columns, since `lax.top_k` prefers the lower index and earlier columns come first.

A logit of minus infinity is a probability of 0. Its term of the entropy is 0, the limit of p ln p.
Self-certainty is then plus infinity, as its definition implies.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.rows import Unembedding

LOWEST = -1e30  # finite, so that a difference of two maxima is never inf - inf
SMALLEST = 2.0**-86  # e^-60: columns that underflow float32 are too few to change a larger sum
SCALE = 2.0**48  # SCALE^2 * 10^9 is below the float32 maximum
MEASURES = ("deviation", "rank", "renyi2", "varentropy")
VARIANCE_MEASURES = {"deviation", "varentropy"}  # measures that need s3
SQUARE_MEASURES = {"renyi2"}  # measures that need s4


class TopK(NamedTuple):
    """The k largest logits of each position over the columns so far, and their columns."""

    z: Float[Array, "Q k"]
    id: Int[Array, "Q k"]


class TargetRank(NamedTuple):
    """Rank of each position's target among the columns so far.

    Attributes:
        above: number of columns whose logit is larger than the target logit passed by the caller.
        target_logit: the target's logit as computed in this pass, or 0 if another shard has its
            column.
    """

    above: Int[Array, " Q"]
    target_logit: Float[Array, " Q"]


class ClassSums(NamedTuple):
    """Sums over the columns of each class so far.

    Attributes:
        top: the logit that `total` is relative to.
        total: sum e^(z-top).
    """

    top: Float[Array, "Q n_classes"]
    total: Float[Array, "Q n_classes"]


class Sums(NamedTuple):
    """Sums at each position over the columns so far.

    Attributes:
        top, best: the maximum m, and the lowest column that has it.
        s0, s1, s2, s3, s4: sums defined in the module docstring; s3 and s4 are None unless a
            measure needs them.
        ranked: the most probable tokens, or None if fewer than two tokens are ranked.
        target_rank: the target's rank, or None unless the measure "rank" is requested.
        classes: sums of the classes of tokens, or None without classes.
    """

    top: Float[Array, " Q"]
    s0: Float[Array, " Q"]
    s1: Float[Array, " Q"]
    s2: Float[Array, " Q"]
    best: Int[Array, " Q"]
    ranked: TopK | None = None
    s3: Float[Array, " Q"] | None = None
    s4: Float[Array, " Q"] | None = None
    target_rank: TargetRank | None = None
    classes: ClassSums | None = None


class Terms(NamedTuple):
    """Scores of each position's distribution over all columns, float32 nats.

    Attributes:
        top, log_total: the maximum m, and ln s0.
        entropy, self_certainty: scores defined in the module docstring.
        greedy_id: the lowest column with the maximum.
        measures: the measures in `MEASURES` that the sums allow, by name.
        mass: log-probability of each class of tokens, or None without classes.
    """

    top: Float[Array, " Q"]
    log_total: Float[Array, " Q"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]
    measures: dict[str, Float[Array, " Q"]] = {}  # noqa: RUF012 - never changed
    mass: Float[Array, "Q n_classes"] | None = None


def mean_below(s0: Array, s1: Array) -> Array:
    """Compute the mean of z - m under the softmax weights; 0 before the first column."""
    return jnp.where(s0 > 0, s1 / jnp.where(s0 > 0, s0, 1.0), 0.0)


def squares(below: Array, mean: Array) -> Array:
    """Compute the terms of s3 from z - m and its mean over all columns so far."""
    root = jnp.exp(0.5 * below)
    return jnp.square(jnp.where(root > 0, root * (below - mean), 0.0) * SCALE)


def rescale_squares(s3: Array, s1: Array, s0: Array, rise: Array, mean: Array) -> Array:
    """Update s3 to a maximum that is larger by `-rise`, and to a new mean of z - m."""
    root = jnp.exp(0.5 * rise)
    distance = rise + mean_below(s0, s1) - mean
    rescaled = root * (root * s3) + s0 * jnp.square(root * distance * SCALE)
    return jnp.where(root > 0, rescaled, 0.0)


def transform(logits: Array, bias: Array | None, scale: float, softcap: float | None) -> Array:
    """Apply the bias, scale and soft cap of an `Unembedding`, in that order."""
    if bias is not None:
        logits = logits + bias
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return logits


def terms(sums: Sums, head: Unembedding) -> Terms:
    """Compute the scores of each position from its sums.

    With a split vocabulary the sums are those of one shard. The shards then exchange a few numbers
    per position.
    """
    top, s0, s1, s2, best, _, s3, s4, target_rank, classes = sums
    V, axis = head.weight.shape[0], head.split
    above = None if target_rank is None else target_rank.above
    if axis is not None:
        shard_top, top = top, lax.pmax(top, axis)
        rise, shrink = shard_top - top, jnp.exp(shard_top - top)
        shard_s0, shard_s1 = s0, s1
        s4 = None if s4 is None else lax.psum(shrink * shrink * s4, axis)
        above = None if above is None else lax.psum(above, axis)
        s1 = lax.psum(shrink * (s1 + rise * s0), axis)
        s0 = lax.psum(shrink * s0, axis)
        if s3 is not None:
            rescaled = rescale_squares(s3, shard_s1, shard_s0, rise, mean_below(s0, s1))
            s3 = lax.psum(rescaled, axis)
        s2 = lax.psum(s2 + V * rise, axis)
        column = best + lax.axis_index(axis) * V
        best = lax.pmin(jnp.where(shard_top == top, column, jnp.iinfo(jnp.int32).max), axis)
        V *= lax.axis_size(axis)
    log_total = jnp.log(s0)
    entropy, self_certainty = log_total - s1 / s0, log_total - s2 / V - math.log(V)
    measures = {}
    if above is not None:
        measures["rank"] = (1 + above).astype(jnp.float32)
    if s4 is not None:
        measures["renyi2"] = 2 * log_total - jnp.log(s4)
    if s3 is not None:
        measures["deviation"] = jnp.sqrt(s3 / s0) / SCALE
        measures["varentropy"] = s3 / s0 / SCALE / SCALE
    mass = None if classes is None else _log_mass(classes, top, log_total, axis)
    return Terms(top, log_total, entropy, self_certainty, best, measures, mass)


def _log_mass(
    classes: ClassSums, top: Array, log_total: Array, axis: str | None
) -> Float[Array, "Q n_classes"]:
    """Compute the log-probability of each class from the sums of all shards."""
    mass = (classes.top - top[:, None]) + jnp.log(classes.total)
    if axis is not None:
        largest = jnp.maximum(lax.pmax(mass, axis), LOWEST)  # finite also if all are 0
        mass = largest + jnp.log(lax.psum(jnp.exp(mass - largest), axis))
    # The classes and all columns are summed in different orders.
    return jnp.minimum(mass - log_total[:, None], 0.0)


def empty_top_k(n_positions: int, head: Unembedding, top: int) -> TopK | None:
    """Return the initial `TopK`, or None for fewer than two tokens, since the sums have the argmax.

    Args:
        n_positions: number of positions.
        head: the LM head.
        top: number of tokens to rank; a shard with fewer columns ranks all of them.
    """
    k = min(top, head.weight.shape[0])
    if top < 2:
        return None
    return TopK(jnp.full((n_positions, k), -jnp.inf), jnp.zeros((n_positions, k), jnp.int32))


def merge_top_k(
    ranked: TopK, z: Float[Array, "Q C"], start: Int[Array, ""], fresh: Bool[Array, "1 C"]
) -> TopK:
    """Return the top k of `ranked` and of the `fresh` columns of a block that starts at `start`.

    A logit below LOWEST counts as LOWEST, so that fresh columns rank before masked ones.
    """
    z = jnp.where(z == 0, 0.0, z)  # `lax.top_k` puts 0.0 before -0.0
    z = jnp.where(fresh, jnp.maximum(z, LOWEST), -jnp.inf)
    block_z, index = lax.top_k(z, min(ranked.z.shape[1], z.shape[1]))
    merged = TopK(
        jnp.concatenate([ranked.z, block_z], axis=1),
        jnp.concatenate([ranked.id, start + index], axis=1),
    )
    return _largest(merged, ranked.z.shape[1])


def top_k_logprobs(
    ranked: TopK | None, by_position: Terms, head: Unembedding, top: int
) -> tuple[Int[Array, "Q k"], Float[Array, "Q k"]]:
    """Return ids and log-probabilities of the `top` most probable tokens, in descending order.

    A logit of at most LOWEST gives a log-probability of minus infinity.

    Args:
        ranked: the top k of this shard's columns, or None for one token, taken from `by_position`.
        by_position: terms over all columns.
        head: the LM head.
        top: number of tokens.
    """
    if ranked is None:
        ranked = TopK(by_position.top[:, None], by_position.greedy_id[:, None])
    elif head.split is not None:
        # In the order of the shards, so that equal logits keep the order of their columns.
        first = lax.axis_index(head.split) * head.weight.shape[0]
        z = lax.all_gather(ranked.z, head.split, axis=1, tiled=True)
        id = lax.all_gather(ranked.id + first, head.split, axis=1, tiled=True)
        ranked = _largest(TopK(z, id), top)
    z = jnp.where(ranked.z > LOWEST, ranked.z, -jnp.inf)
    # The same expression as for an edge's log-probability, so that the argmax has equal bits.
    return ranked.id, (z - by_position.top[:, None]) - by_position.log_total[:, None]


def _largest(ranked: TopK, k: int) -> TopK:
    """Return the k largest entries in descending order."""
    z, index = lax.top_k(ranked.z, k)
    return TopK(z, jnp.take_along_axis(ranked.id, index, axis=1))
