"""Choice of the next token from its logits.

The order is transformers': repetition penalty, temperature, top_k, top_p.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

HALVINGS = 31  # there are fewer than 2^31 float32 from minus infinity to 0


class Sampling(NamedTuple):
    """Sampling parameters of B requests.

    A temperature of 0 is greedy, a `top_k` of 0 keeps all tokens, a penalty of 1 changes nothing.
    """

    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]
    top_k: Int[Array, " B"]
    penalty: Float[Array, " B"]
    seed: UInt32[Array, " B"]


def apply_repetition_penalty(
    logits_BV: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty: Float[Array, " B"]
) -> Float[Array, "B V"]:
    """Applies the repetition penalty to the ids that a request has seen.

    A positive logit is divided by the penalty and a negative one multiplied, once per id however
    often it was seen (arXiv 1909.05858, section 4.1; the sign rule is transformers').
    """
    by = penalty[:, None]
    changed = jnp.where(logits_BV > 0, logits_BV / by, logits_BV * by)
    return jnp.where(seen, changed, logits_BV)


def sample_tokens(
    logits_BV: Float[Array, "B V"], sampling: Sampling, drawn: Int[Array, " B"], *, cut: bool
) -> Int[Array, " B"]:
    """One token per request: greedy, or drawn from softmax(logits / temperature).

    First `top_k` keeps the k most probable tokens. Of their distribution the nucleus remains, the
    smallest set of most probable tokens with at least `top_p` of the probability (arXiv
    1904.09751). Among equally probable tokens the lowest ids come first; transformers keeps all of
    them. A draw is the argmax of logits plus `gumbel_noise`.

    Args:
        logits_BV: after the repetition penalty.
        sampling: parameters.
        drawn: tokens that each request has drawn.
        cut: some request has a `top_k`, or a `top_p` below 1. Otherwise the search of `_allowed`,
            which takes longer than all the rest, is skipped.
    """
    temperature = sampling.temperature[:, None]
    # Relative to the maximum, so that a very small temperature gives -inf and never inf - inf.
    z = logits_BV - logits_BV.max(axis=1, keepdims=True)
    z = z / jnp.where(temperature > 0, temperature, 1.0)
    noisy = z + gumbel_noise(sampling.seed, drawn, z.shape[1])
    if cut:
        noisy = jnp.where(_allowed(z, sampling), noisy, -jnp.inf)
    chosen = jnp.where(temperature > 0, noisy, logits_BV)
    return jnp.argmax(chosen, axis=1).astype(jnp.int32)


def gumbel_noise(
    seed: UInt32[Array, " B"], drawn: Int[Array, " B"], n_tokens: int
) -> Float[Array, "B V"]:
    """Gumbel noise of B requests, which depends on seed, count and token id alone.

    The bits of a token are one Threefry hash of these three numbers. `jax.random.bits` would draw
    the same ones with JAX's default settings, but its bits depend on the settings of the process:
    on the generator, `jax_threefry_partitionable`, and an offset of all seeds. With some of them
    they depend on the other requests, too.

    Args:
        seed: of each request.
        drawn: tokens that each request has drawn.
        n_tokens: V.
    """
    data = jnp.stack([jnp.zeros_like(seed), seed], axis=1)
    keys = jax.random.wrap_key_data(data, impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in)(keys, drawn)
    tokens = jnp.arange(n_tokens, dtype=jnp.uint32)
    hash_tokens = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    words = jax.random.key_data(jax.vmap(hash_tokens, in_axes=(0, None))(keys, tokens))
    bits = words[..., 0] ^ words[..., 1]
    # The upper 23 bits are the fraction of a float32 from 1 to 2.
    fraction = lax.bitcast_convert_type(bits >> np.uint32(9) | np.uint32(0x3F800000), jnp.float32)
    tiny = jnp.finfo(jnp.float32).tiny
    uniform = jnp.maximum(tiny, fraction - 1 + tiny)
    return -jnp.log(-jnp.log(uniform))


def _allowed(z_BV: Float[Array, "B V"], sampling: Sampling) -> Bool[Array, "B V"]:
    """Mask of the tokens that may be drawn, from scaled logits with maximum 0.

    Nothing is sorted. A logit stays if fewer than `top_k` logits are above it, and if the remaining
    ones above it have less than `top_p` of the probability. Each of these two bounds is the least
    logit with that property, found by bisection. Ties at a bound are broken by the lowest id.
    """
    key = _ordered_bits(z_BV)
    k = jnp.where(sampling.top_k > 0, sampling.top_k, z_BV.shape[1])
    kth = _least(lambda at: (key > at).sum(axis=1) < k, len(z_BV))
    within = _lowest_ids(key > kth, key == kth, k - (key > kth).sum(axis=1))
    share = jnp.where(within, jnp.exp(z_BV), 0.0)
    enough = sampling.top_p * share.sum(axis=1)
    nucleus = _least(lambda at: jnp.where(key > at, share, 0.0).sum(axis=1) < enough, len(z_BV))
    above, at_bound = within & (key > nucleus), within & (key == nucleus)
    missing = enough - jnp.where(above, share, 0.0).sum(axis=1)
    each = jnp.where(at_bound, share, 0.0).max(axis=1)
    # Tokens of probability 0, which never change the sum, all stay.
    count = jnp.where(each > 0, jnp.ceil(missing / jnp.where(each > 0, each, 1.0)), jnp.inf)
    count = jnp.clip(count, 1, z_BV.shape[1]).astype(jnp.int32)
    # Sums of float32 reach 1 before the last tokens.
    whole = (sampling.top_p >= 1.0)[:, None]
    return jnp.where(whole, within, _lowest_ids(above, at_bound, count))


def _lowest_ids(
    above: Bool[Array, "B V"], tied: Bool[Array, "B V"], count: Int[Array, " B"]
) -> Bool[Array, "B V"]:
    """`above`, and the first `count` of `tied` in each row.

    Logits are rarely equal, so the search for the last id is skipped if no row needs it.
    """
    id = jnp.arange(tied.shape[1])

    def cut() -> Array:
        def enough(last: Array) -> Array:
            return (tied & (id <= last)).sum(axis=1) >= count

        low, high = jnp.zeros_like(count), jnp.full_like(count, tied.shape[1] - 1)
        last = _bisect(enough, low, high, tied.shape[1].bit_length())
        return above | (tied & (id <= last))

    return lax.cond((tied.sum(axis=1) > count).any(), cut, lambda: above | tied)


def _ordered_bits(z: Array) -> Array:
    """float32 as int32 in the same order; both zeros are 0."""
    bits = lax.bitcast_convert_type(jnp.where(z == 0, 0.0, z), jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _least(holds: Callable[[Int[Array, "B 1"]], Bool[Array, " B"]], n: int) -> Int[Array, "B 1"]:
    """Least key of each of n rows, at most 0, for which the monotone predicate `holds` is true."""
    least = jnp.broadcast_to(_ordered_bits(jnp.float32(-jnp.inf)), (n,))
    return _bisect(holds, least, jnp.zeros(n, jnp.int32), HALVINGS)


def _bisect(
    holds: Callable[[Int[Array, "B 1"]], Bool[Array, " B"]],
    low: Int[Array, " B"],
    high: Int[Array, " B"],
    halvings: int,
) -> Int[Array, "B 1"]:
    """`_least` between two bounds, by bisection; `high` if nothing below it holds."""

    def halved(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        here = holds(middle[:, None])
        return jnp.where(here, low, middle + 1), jnp.where(here, middle, high)

    return lax.fori_loop(0, halvings, halved, (low, high))[1][:, None]
