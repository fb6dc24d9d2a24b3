"""How the next token is chosen from all logits.

The order is transformers': repetition penalty, temperature, top_k, top_p.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


class Sampling(NamedTuple):
    """How each request draws: a temperature of 0 is greedy, a top_k of 0 keeps all tokens, a
    penalty of 1 changes no logit."""

    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]
    top_k: Int[Array, " B"]
    penalty: Float[Array, " B"]
    seed: UInt32[Array, " B"]


def penalized(
    logits_BV: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty: Float[Array, " B"]
) -> Float[Array, "B V"]:
    """Logits of the ids that a request has seen, made less probable by a penalty above 1.

    A positive logit is divided by the penalty, a negative one multiplied, once for each id however
    often it was seen (arXiv 1909.05858, section 4.1; the sign rule is transformers').
    """
    by = penalty[:, None]
    changed = jnp.where(logits_BV > 0, logits_BV / by, logits_BV * by)
    return jnp.where(seen, changed, logits_BV)


def draw(
    logits_BV: Float[Array, "B V"], sampling: Sampling, drawn: Int[Array, " B"], *, cut: bool
) -> Int[Array, " B"]:
    """One token per row: greedy, or drawn from softmax(logits / temperature) over some tokens.

    First `top_k` keeps the tokens whose logit is at least the k-th largest. Of their distribution
    the nucleus remains, the smallest set of most probable tokens with at least `top_p` of the
    probability (arXiv 1904.09751). Drawing is the argmax of logits with Gumbel noise, of a key
    that depends on the request's seed and on how many tokens it has drawn, and on nothing else.

    Args:
        cut: some request has a `top_k`, or a `top_p` below 1. Where none has, nothing is sorted,
            which takes longer than the rest.
    """
    temperature = sampling.temperature[:, None]
    # From the largest down, so that a very small temperature gives -inf and never inf - inf.
    z = logits_BV - logits_BV.max(axis=1, keepdims=True)
    z = z / jnp.where(temperature > 0, temperature, 1.0)

    def noise(seed, n):
        key = jax.random.fold_in(jax.random.key(seed), n)
        return jax.random.gumbel(key, (z.shape[1],), jnp.float32)

    noisy = z + jax.vmap(noise)(sampling.seed, drawn)
    if cut:
        noisy = jnp.where(z >= _lowest(z, sampling), noisy, -jnp.inf)
    chosen = jnp.where(temperature > 0, noisy, logits_BV)
    return jnp.argmax(chosen, axis=1).astype(jnp.int32)


def _lowest(z, sampling):
    """The lowest of the logits that may be drawn, [B, 1]; of a request that cuts none, -inf."""
    down = -jnp.sort(-z, axis=1)
    last = jnp.where(sampling.top_k > 0, jnp.minimum(sampling.top_k, z.shape[1]), z.shape[1]) - 1
    within = down >= jnp.take_along_axis(down, last[:, None], axis=1)
    p = jax.nn.softmax(jnp.where(within, down, -jnp.inf), axis=1)
    before = jnp.cumsum(p, axis=1) - p
    kept = (within & (before < sampling.top_p[:, None])).at[:, 0].set(True)
    lowest = jnp.where(kept, down, jnp.inf).min(axis=1, keepdims=True)
    # Sums of float32 reach 1 before the last tokens.
    every = (sampling.top_k == 0) & (sampling.top_p >= 1.0)
    return jnp.where(every[:, None], -jnp.inf, lowest)
