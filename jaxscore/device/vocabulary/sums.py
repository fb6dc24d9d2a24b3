"""Sums over the vocabulary, from which every term of a query follows without its logits.

Parts of the vocabulary go by with a running maximum m (the online softmax of arXiv 1805.02867).
Kept relative to it are, over the columns seen so far,

    s0 = sum e^(z-m)      s1 = sum e^(z-m) (z-m)      s2 = sum (z-m)

and parts merge by rescaling to a common m, be they blocks, lanes or shards. From them, with no
large number ever subtracted from another,

    logprob(t)     = (z_t - m) - ln s0
    entropy        = ln s0 - s1 / s0
    self-certainty = ln s0 - s2 / V - ln V     KL(uniform || p), arXiv 2502.18581

A logit of minus infinity is a probability of 0: its part of the entropy is 0, the limit of p ln p,
and self-certainty is plus infinity, as the definition has it.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.rows import Unembedding

LOWEST = -1e30  # finite, so that a maximum minus the one before is never inf - inf


class Ranked(NamedTuple):
    """Of each query the k largest logits of some columns and their columns, see `ranked`."""

    z: Float[Array, "Q k"]
    id: Int[Array, "Q k"]


class Sums(NamedTuple):
    """Of each query over some columns; `best` is the lowest column that holds the maximum.

    `ranked` is None where fewer than two tokens are ranked.
    """

    top: Float[Array, " Q"]
    s0: Float[Array, " Q"]
    s1: Float[Array, " Q"]
    s2: Float[Array, " Q"]
    best: Int[Array, " Q"]
    ranked: Ranked | None = None


class Terms(NamedTuple):
    """Of each query over all columns, float32 nats; `log_total` is ln s0."""

    top: Float[Array, " Q"]
    log_total: Float[Array, " Q"]
    entropy: Float[Array, " Q"]
    self_certainty: Float[Array, " Q"]
    greedy_id: Int[Array, " Q"]


def transform(logits, bias, scale, softcap):
    """Bias, scale and softcap of `Unembedding`, in that order."""
    if bias is not None:
        logits = logits + bias
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return logits


def terms(sums: Sums, head: Unembedding) -> Terms:
    """What the sums say; of a split vocabulary they are one shard's, and a few numbers travel."""
    top, s0, s1, s2, best, _ = sums
    V, axis = head.weight.shape[0], head.split
    if axis is not None:
        own, top = top, lax.pmax(top, axis)
        rise, shrink = own - top, jnp.exp(own - top)
        s1 = lax.psum(shrink * (s1 + rise * s0), axis)
        s0 = lax.psum(shrink * s0, axis)
        s2 = lax.psum(s2 + V * rise, axis)
        column = best + lax.axis_index(axis) * V
        best = lax.pmin(jnp.where(own == top, column, jnp.iinfo(jnp.int32).max), axis)
        V *= lax.axis_size(axis)
    log_total = jnp.log(s0)
    entropy, self_certainty = log_total - s1 / s0, log_total - s2 / V - math.log(V)
    return Terms(top, log_total, entropy, self_certainty, best)
