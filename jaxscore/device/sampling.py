"""Choice of the next token from its logits.

As in transformers, the order is repetition penalty, temperature, top_k, top_p.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

HALVINGS = 31  # fewer than 2^31 float32 values lie in [-inf, 0]


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
    """Apply the repetition penalty to the ids that each request has seen.

    Positive logits are divided by the penalty and negative ones multiplied, once per id regardless
    of its count (arXiv 1909.05858, section 4.1; the sign rule is that of transformers).
    """
    penalty_B1 = penalty[:, None]
    penalized = jnp.where(logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1)
    return jnp.where(seen, penalized, logits_BV)


def sample_tokens(
    logits_BV: Float[Array, "B V"], sampling: Sampling, drawn: Int[Array, " B"], *, cut: bool
) -> Int[Array, " B"]:
    """Choose one token per request: greedy, or drawn from softmax(logits / temperature).

    First, `top_k` keeps the k most probable tokens. Then `top_p` keeps the nucleus of their
    distribution, the smallest set of most probable tokens with at least `top_p` of the probability
    (arXiv 1904.09751). Ties are broken by the lowest id; transformers keeps all tied tokens. A draw
    is the argmax of the logits plus `gumbel_noise`.

    Args:
        logits_BV: the logits after the repetition penalty.
        sampling: the sampling parameters.
        drawn: the number of tokens that each request has drawn.
        cut: True if any request has a `top_k`, or a `top_p` below 1; otherwise the search of
            `_allowed_tokens`, the slowest step, is skipped.
    """
    temperature = sampling.temperature[:, None]
    # Subtract the maximum first, so that a tiny temperature gives -inf and never inf - inf.
    z = logits_BV - logits_BV.max(axis=1, keepdims=True)
    z = z / jnp.where(temperature > 0, temperature, 1.0)
    noisy = z + gumbel_noise(sampling.seed, drawn, z.shape[1])
    if cut:
        noisy = jnp.where(_allowed_tokens(z, sampling), noisy, -jnp.inf)
    chosen = jnp.where(temperature > 0, noisy, logits_BV)
    return jnp.argmax(chosen, axis=1).astype(jnp.int32)


def gumbel_noise(
    seed: UInt32[Array, " B"], drawn: Int[Array, " B"], n_tokens: int
) -> Float[Array, "B V"]:
    """Return Gumbel noise that depends only on seed, number of drawn tokens, and token id.

    The bits of a token are one Threefry hash of these three numbers. With JAX's default settings,
    `jax.random.bits` draws the same bits. But its bits depend on process-wide settings (the
    generator, `jax_threefry_partitionable`, the seed offset), and under some settings on the other
    requests.

    Args:
        seed: the seed of each request.
        drawn: the number of tokens that each request has drawn.
        n_tokens: V, the vocabulary size.
    """
    data = jnp.stack([jnp.zeros_like(seed), seed], axis=1)
    keys = jax.random.wrap_key_data(data, impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in)(keys, drawn)
    tokens = jnp.arange(n_tokens, dtype=jnp.uint32)
    hash_tokens = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    words = jax.random.key_data(jax.vmap(hash_tokens, in_axes=(0, None))(keys, tokens))
    bits = words[..., 0] ^ words[..., 1]
    # The upper 23 bits become the mantissa of a float32 in [1, 2).
    fraction = lax.bitcast_convert_type(bits >> np.uint32(9) | np.uint32(0x3F800000), jnp.float32)
    tiny = jnp.finfo(jnp.float32).tiny
    uniform = jnp.maximum(tiny, fraction - 1 + tiny)
    return -jnp.log(-jnp.log(uniform))


def _allowed_tokens(z_BV: Float[Array, "B V"], sampling: Sampling) -> Bool[Array, "B V"]:
    """Return the mask of tokens that may be drawn, given scaled logits with maximum 0.

    No sort is needed. A logit is kept if fewer than `top_k` logits are above it, and if the kept
    logits above it have less than `top_p` of the probability. Bisection gives the lowest logit
    that satisfies each condition. Ties at a bound are broken by the lowest id.
    """
    key = _ordered_bits(z_BV)
    k = jnp.where(sampling.top_k > 0, sampling.top_k, z_BV.shape[1])
    kth_key = _least(lambda at: (key > at).sum(axis=1) < k, len(z_BV))
    in_top_k = _lowest_ids(key > kth_key, key == kth_key, k - (key > kth_key).sum(axis=1))
    share = jnp.where(in_top_k, jnp.exp(z_BV), 0.0)
    nucleus_share = sampling.top_p * share.sum(axis=1)
    nucleus_key = _least(
        lambda at: jnp.where(key > at, share, 0.0).sum(axis=1) < nucleus_share, len(z_BV)
    )
    above, is_tied = in_top_k & (key > nucleus_key), in_top_k & (key == nucleus_key)
    missing_share = nucleus_share - jnp.where(above, share, 0.0).sum(axis=1)
    tied_share = jnp.where(is_tied, share, 0.0).max(axis=1)
    # Tokens of probability 0 do not change the sum and are all kept.
    count = jnp.where(
        tied_share > 0,
        jnp.ceil(missing_share / jnp.where(tied_share > 0, tied_share, 1.0)),
        jnp.inf,
    )
    count = jnp.clip(count, 1, z_BV.shape[1]).astype(jnp.int32)
    # A float32 sum may reach 1 before the last tokens, so `top_p` of 1 is handled separately.
    keeps_all = (sampling.top_p >= 1.0)[:, None]
    return jnp.where(keeps_all, in_top_k, _lowest_ids(above, is_tied, count))


def _lowest_ids(
    above: Bool[Array, "B V"], tied: Bool[Array, "B V"], count: Int[Array, " B"]
) -> Bool[Array, "B V"]:
    """Return `above`, plus the first `count` tokens of `tied` in each row.

    Ties are rare, so the search for the last id is skipped if no row needs it.
    """
    id = jnp.arange(tied.shape[1])

    def truncate_ties() -> Array:
        def has_enough(last: Array) -> Array:
            return (tied & (id <= last)).sum(axis=1) >= count

        low, high = jnp.zeros_like(count), jnp.full_like(count, tied.shape[1] - 1)
        last = _bisect(has_enough, low, high, tied.shape[1].bit_length())
        return above | (tied & (id <= last))

    return lax.cond((tied.sum(axis=1) > count).any(), truncate_ties, lambda: above | tied)


def _ordered_bits(z: Array) -> Array:
    """Map float32 to int32, preserving order; both zeros map to 0."""
    bits = lax.bitcast_convert_type(jnp.where(z == 0, 0.0, z), jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _least(holds: Callable[[Int[Array, "B 1"]], Bool[Array, " B"]], n: int) -> Int[Array, "B 1"]:
    """Return the least key <= 0 of each of n rows for which the monotone predicate `holds`."""
    min_key = jnp.broadcast_to(_ordered_bits(jnp.float32(-jnp.inf)), (n,))
    return _bisect(holds, min_key, jnp.zeros(n, jnp.int32), HALVINGS)


def _bisect(
    holds: Callable[[Int[Array, "B 1"]], Bool[Array, " B"]],
    low: Int[Array, " B"],
    high: Int[Array, " B"],
    halvings: int,
) -> Int[Array, "B 1"]:
    """Return the least key in [low, high] for which `holds`, by bisection; `high` if none below."""

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        holds_at_middle = holds(middle[:, None])
        return jnp.where(holds_at_middle, low, middle + 1), jnp.where(holds_at_middle, middle, high)

    return lax.fori_loop(0, halvings, halve, (low, high))[1][:, None]
