"""The fused vocabulary pass: from hidden states to log-probabilities without [tokens, V] logits.

Vocabulary blocks go by with a running maximum m (the online softmax of arXiv 1805.02867). Kept
relative to it are, over the columns seen so far,

    s0 = sum e^(z-m)      s1 = sum e^(z-m) (z-m)      s2 = sum (z-m)

and parts of the vocabulary merge by rescaling to a common m, be they blocks or shards. From them,
with no large number ever subtracted from another,

    logprob(t)     = (z_t - m) - ln s0
    entropy        = ln s0 - s1 / s0
    self-certainty = ln s0 - s2 / V - ln V     KL(uniform || p), arXiv 2502.18581

A logit of minus infinity is a probability of 0: its part of the entropy is 0, the limit of p ln p,
and self-certainty is plus infinity, as the definition has it.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxscore.device.dots import dot_last, from_storage
from jaxscore.device.rows import Scores, Unembedding


def transform(logits, bias, scale, softcap):
    """Bias, scale and softcap of `Unembedding`, in that order."""
    if bias is not None:
        logits = logits + bias
    if scale != 1.0:
        logits = logits * scale
    if softcap is not None:
        logits = softcap * jnp.tanh(logits / softcap)
    return logits


def vocabulary_terms(
    hidden_QD: Float[Array, "Q D"], target_QT: Int[Array, "Q T"], head: Unembedding
) -> Scores:
    """Log-probability of the targets, entropy, self-certainty and argmax of each query.

    Where the vocabulary is split over a mesh, only a few numbers per query travel between shards.
    """
    Q, V = hidden_QD.shape[0], head.weight.shape[0]
    block = min(V, head.forms.vocabulary_columns)
    weight, bias, axis = head.weight, head.bias, head.split
    if axis is not None:
        target_QT = target_QT - lax.axis_index(axis) * V

    def step(carry, first):
        m, s0, s1, s2, best, z_target = carry
        # The last block is moved back inside the table, and the columns that an earlier block
        # has had are masked: padding the table would copy it.
        start = jnp.minimum(first, V - block)
        columns = start + jnp.arange(block, dtype=jnp.int32)
        fresh = (columns >= first)[None, :]
        part = from_storage(lax.dynamic_slice_in_dim(weight, start, block))
        part_bias = None if bias is None else lax.dynamic_slice_in_dim(bias, start, block)
        z = transform(dot_last(hidden_QD, part), part_bias, head.scale, head.softcap)

        block_max = jnp.where(fresh, z, -jnp.inf).max(axis=1)
        new_m = jnp.maximum(m, block_max)
        below = jnp.where(fresh, z - new_m[:, None], 0.0)
        weights = jnp.where(fresh, jnp.exp(below), 0.0)
        rise, shrink = m - new_m, jnp.exp(m - new_m)
        # A column of probability 0 adds nothing, also where its logit is minus infinity.
        added = jnp.where(weights > 0, weights * below, 0.0)
        s1 = shrink * (s1 + rise * s0) + added.sum(axis=1)
        s0 = shrink * s0 + weights.sum(axis=1)
        s2 = s2 + first.astype(jnp.float32) * rise + below.sum(axis=1)
        # The lowest index that holds the maximum, as torch.argmax. jnp.argmax is a variadic
        # reduction, which costs as much again as all the rest of the elementwise work.
        holds = fresh & (z == block_max[:, None])
        block_best = jnp.where(holds, columns[None, :], V).min(axis=1)
        best = jnp.where(block_max > m, block_best, best)
        local = target_QT - start
        here = (target_QT >= first) & (local < block)
        found = jnp.take_along_axis(z, jnp.clip(local, 0, block - 1), axis=1)
        return (new_m, s0, s1, s2, best, jnp.where(here, found, z_target)), None

    zero = jnp.zeros(Q, jnp.float32)
    start = (
        jnp.full(Q, -1e30, jnp.float32),
        zero,
        zero,
        zero,
        jnp.zeros(Q, jnp.int32),
        jnp.zeros(target_QT.shape, jnp.float32),
    )
    firsts = jnp.arange(0, V, block, dtype=jnp.int32)
    (m, s0, s1, s2, best, z_target), _ = lax.scan(step, start, firsts)
    if axis is not None:
        shard, here = lax.axis_index(axis), (target_QT >= 0) & (target_QT < V)
        top = lax.pmax(m, axis)
        rise, shrink = m - top, jnp.exp(m - top)
        s1 = lax.psum(shrink * (s1 + rise * s0), axis)
        s0 = lax.psum(shrink * s0, axis)
        s2 = lax.psum(s2 + V * rise, axis)
        best = lax.pmin(jnp.where(m == top, best + shard * V, jnp.iinfo(jnp.int32).max), axis)
        z_target = lax.psum(jnp.where(here, z_target, 0.0), axis)
        target_QT, m, V = target_QT + shard * V, top, V * lax.axis_size(axis)
    log_s0 = jnp.log(s0)
    return Scores(
        logprob=z_target - m[:, None] - log_s0[:, None],
        greedy=target_QT == best[:, None],
        entropy=log_s0 - s1 / s0,
        self_certainty=log_s0 - s2 / V - math.log(V),
        greedy_id=best,
    )


def all_logits(hidden_BD: Float[Array, "B D"], head: Unembedding) -> Float[Array, "B V"]:
    """Every logit of a few hidden states, by blocks of the vocabulary as `vocabulary_terms`."""
    B, V = hidden_BD.shape[0], head.weight.shape[0]
    block = min(V, head.forms.vocabulary_columns)

    def step(out, first):
        start = jnp.minimum(first, V - block)
        part = from_storage(lax.dynamic_slice_in_dim(head.weight, start, block))
        bias = None if head.bias is None else lax.dynamic_slice_in_dim(head.bias, start, block)
        z = transform(dot_last(hidden_BD, part), bias, head.scale, head.softcap)
        return lax.dynamic_update_slice_in_dim(out, z, start, 1), None

    firsts = jnp.arange(0, V, block, dtype=jnp.int32)
    own = lax.scan(step, jnp.zeros((B, V), jnp.float32), firsts)[0]
    return own if head.split is None else lax.all_gather(own, head.split, axis=1, tiled=True)


def score_queries(
    hidden_ND: Float[Array, "N D"],
    query_Q: Int[Array, " Q"],
    target_QT: Int[Array, "Q T"],
    n_queries: Int[Array, ""],
    head: Unembedding,
) -> Scores:
    """`vocabulary_terms` of the tokens that are asked for, and of no others.

    Queries go in blocks and the number of blocks is data, not shape: a batch with few queries
    costs few, and nothing recompiles. Large blocks read the vocabulary seldom, small ones at
    the end leave few slots empty.
    """
    Q, T = target_QT.shape
    out = Scores(
        logprob=jnp.zeros((Q, T), jnp.float32),
        greedy=jnp.zeros((Q, T), bool),
        entropy=jnp.zeros(Q, jnp.float32),
        self_certainty=jnp.zeros(Q, jnp.float32),
        greedy_id=jnp.zeros(Q, jnp.int32),
    )

    def step(first, block, b, out):
        start = jnp.minimum(first + b * block, Q - block)
        query = lax.dynamic_slice_in_dim(query_Q, start, block)
        target = lax.dynamic_slice_in_dim(target_QT, start, block)
        part = vocabulary_terms(hidden_ND[query], target, head)
        return jax.tree.map(lambda o, p: lax.dynamic_update_slice_in_dim(o, p, start, 0), out, part)

    large, small = head.forms.query_blocks
    done = jnp.int32(0)
    # A block of all Q slots would be the same in each step, and XLA moves what is the same out
    # of the loop: it would run once also where no step does.
    if large < Q:
        n_large = n_queries // large
        out = lax.fori_loop(0, n_large, functools.partial(step, 0, large), out)
        done = n_large * large
    small = min(Q, small)
    n_small = (n_queries - done + small - 1) // small
    return lax.fori_loop(0, n_small, functools.partial(step, done, small), out)
