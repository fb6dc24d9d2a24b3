"""Sums over the vocabulary, from which every score of a position follows without its logits.

The columns are visited once, with a running maximum m (the online softmax of arXiv 1805.02867).
The sums over the columns visited so far are relative to it:

    s0 = sum e^(z-m)      s1 = sum e^(z-m) (z-m)      s2 = sum (z-m)

Blocks, lanes and shards merge by rescaling to a common m. From the sums follow, with no large
number subtracted from another,

    logprob(t)     = (z_t - m) - ln s0
    entropy        = ln s0 - s1 / s0
    self-certainty = ln s0 - s2 / V - ln V     KL(uniform || p), arXiv 2502.18581

and from s3 = sum e^(z-m) (z-m-s1/s0)^2 and s4 = sum e^(2(z-m)), if requested:

    varentropy     = s3 / s0                   variance of ln p under p, in squares of nats
    deviation      = (s3 / s0)^(1/2)           its root, in nats
    renyi2         = 2 ln s0 - ln s4           Renyi entropy of order 2, -ln sum p^2
    rank           = 1 + the number of columns whose logit is larger than the target's

s3 is centred on the mean of its own columns and moves with it (Chan et al. 1979), since a
difference of raw moments cancels. It is scaled by SCALE^2 and made of e^((z-m)/2): the variance of
a distribution with one probable token comes from columns whose e^(z-m) underflows float32.

The k most probable tokens are kept beside the sums: the k best of a block and the k best of all
columns before it leave the k best of both. Equal logits keep the order of their columns, since
`lax.top_k` puts the lower index first and earlier columns stand in front.

A logit of minus infinity is a probability of 0: its part of the entropy is 0, the limit of p ln p,
and self-certainty is plus infinity, as the definition has it.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxscore.device.rows import Unembedding

LOWEST = -1e30  # finite, so that a maximum minus the one before is never inf - inf
SCALE = 2.0**48  # its square times 10^9 is a float32
MEASURES = ("deviation", "rank", "renyi2", "varentropy")
VARIANCE_MEASURES = {"deviation", "varentropy"}  # they need s3
SQUARE_MEASURES = {"renyi2"}  # they need s4


class TopK(NamedTuple):
    """The k largest logits at each position over some columns, and their columns."""

    z: Float[Array, "Q k"]
    id: Int[Array, "Q k"]


class TargetRank(NamedTuple):
    """Rank of each position's target among some columns.

    Attributes:
        above: number of columns whose logit is larger than the one passed for the target.
        found: the target's logit as computed in this pass, or 0 if another shard has its column.
    """

    above: Int[Array, " Q"]
    found: Float[Array, " Q"]


class Sums(NamedTuple):
    """Sums at each position over some columns.

    Attributes:
        top, best: the maximum, and the lowest column that has it.
        s0, s1, s2, s3, s4: see the module; s3 and s4 are None unless a measure needs them.
        ranked: None if fewer than two tokens are ranked.
        place: None unless the measure "rank" is requested.
    """

    top: Float[Array, " Q"]
    s0: Float[Array, " Q"]
    s1: Float[Array, " Q"]
    s2: Float[Array, " Q"]
    best: Int[Array, " Q"]
    ranked: TopK | None = None
    s3: Float[Array, " Q"] | None = None
    s4: Float[Array, " Q"] | None = None
    place: TargetRank | None = None


class Terms(NamedTuple):
    """Scores of each position's distribution over all columns, float32 nats.

    Attributes:
        top, log_total: the maximum, and ln s0.
        measures: names in `MEASURES` that the sums allow.
    """

    top: Float[Array, " Q"]
    log_total: Float[Array, " Q"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]
    measures: dict[str, Float[Array, " Q"]] = {}  # noqa: RUF012 - never changed


def mean_below(s0: Array, s1: Array) -> Array:
    """Mean of z - m under the softmax weights of some columns; 0 before the first column."""
    return jnp.where(s0 > 0, s1 / jnp.where(s0 > 0, s0, 1.0), 0.0)


def squares(below: Array, mean: Array) -> Array:
    """Terms of s3, from z - m and its mean over all columns so far."""
    root = jnp.exp(0.5 * below)
    return jnp.square(jnp.where(root > 0, root * (below - mean), 0.0) * SCALE)


def rescale_squares(s3: Array, s1: Array, s0: Array, rise: Array, mean: Array) -> Array:
    """s3 relative to a maximum that is higher by `-rise`, and to a new mean of z - m."""
    root = jnp.exp(0.5 * rise)
    distance = rise + mean_below(s0, s1) - mean
    moved = root * (root * s3) + s0 * jnp.square(root * distance * SCALE)
    return jnp.where(root > 0, moved, 0.0)


def transform(logits: Array, bias: Array | None, scale: float, softcap: float | None) -> Array:
    """Applies bias, scale and soft cap of `Unembedding`, in that order."""
    if bias is not None:
        logits = logits + bias
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return logits


def terms(sums: Sums, head: Unembedding) -> Terms:
    """Scores of each position from its sums.

    With a split vocabulary the sums are one shard's, and a few numbers per position are exchanged.
    """
    top, s0, s1, s2, best, _, s3, s4, place = sums
    V, axis = head.weight.shape[0], head.split
    above = None if place is None else place.above
    if axis is not None:
        own, top = top, lax.pmax(top, axis)
        rise, shrink = own - top, jnp.exp(own - top)
        s0_here, s1_here = s0, s1
        s4 = None if s4 is None else lax.psum(shrink * shrink * s4, axis)
        above = None if above is None else lax.psum(above, axis)
        s1 = lax.psum(shrink * (s1 + rise * s0), axis)
        s0 = lax.psum(shrink * s0, axis)
        if s3 is not None:
            moved = rescale_squares(s3, s1_here, s0_here, rise, mean_below(s0, s1))
            s3 = lax.psum(moved, axis)
        s2 = lax.psum(s2 + V * rise, axis)
        column = best + lax.axis_index(axis) * V
        best = lax.pmin(jnp.where(own == top, column, jnp.iinfo(jnp.int32).max), axis)
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
    return Terms(top, log_total, entropy, self_certainty, best, measures)


def empty_top_k(n_positions: int, head: Unembedding, top: int) -> TopK | None:
    """`TopK` before the first column, or None for fewer than two tokens: the sums have the argmax.

    Args:
        top: tokens to rank; a shard with fewer columns ranks all of them.
    """
    k = min(top, head.weight.shape[0])
    if top < 2:
        return None
    return TopK(jnp.full((n_positions, k), -jnp.inf), jnp.zeros((n_positions, k), jnp.int32))


def merge_top_k(
    ranked: TopK, z: Float[Array, "Q C"], start: Int[Array, ""], fresh: Bool[Array, "1 C"]
) -> TopK:
    """The top k of `ranked` and of the `fresh` columns of a block that starts at `start`.

    A logit below LOWEST counts as LOWEST, so that every fresh column precedes masked ones.
    """
    z = jnp.where(z == 0, 0.0, z)  # `lax.top_k` puts 0.0 before -0.0
    z = jnp.where(fresh, jnp.maximum(z, LOWEST), -jnp.inf)
    own, at = lax.top_k(z, min(ranked.z.shape[1], z.shape[1]))
    both = TopK(
        jnp.concatenate([ranked.z, own], axis=1),
        jnp.concatenate([ranked.id, start + at], axis=1),
    )
    return _first(both, ranked.z.shape[1])


def top_k_logprobs(
    ranked: TopK | None, by_position: Terms, head: Unembedding, top: int
) -> tuple[Int[Array, "Q k"], Float[Array, "Q k"]]:
    """Ids and log-probabilities of the `top` most probable tokens, the most probable one first.

    A logit of minus infinity, or of LOWEST at most, gives a log-probability of minus infinity.

    Args:
        ranked: of this shard's columns; None for one token, which `by_position` has.
        by_position: terms over all columns.
    """
    if ranked is None:
        ranked = TopK(by_position.top[:, None], by_position.greedy_id[:, None])
    elif head.split is not None:
        # Shard after shard, so that equal logits stay in the order of their columns.
        first = lax.axis_index(head.split) * head.weight.shape[0]
        z = lax.all_gather(ranked.z, head.split, axis=1, tiled=True)
        id = lax.all_gather(ranked.id + first, head.split, axis=1, tiled=True)
        ranked = _first(TopK(z, id), top)
    z = jnp.where(ranked.z > LOWEST, ranked.z, -jnp.inf)
    # The expression of an edge's log-probability, so that the bits agree for the argmax.
    return ranked.id, (z - by_position.top[:, None]) - by_position.log_total[:, None]


def _first(ranked: TopK, k: int) -> TopK:
    """The largest k in descending order."""
    z, at = lax.top_k(ranked.z, k)
    return TopK(z, jnp.take_along_axis(ranked.id, at, axis=1))
