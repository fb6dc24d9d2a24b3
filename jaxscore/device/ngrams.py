"""Embeddings of hashed n-grams, which some layers add to residual streams before they run.

Let t be a token and t_1, t_2, … its ancestors. From the nearest separator on, ancestors count as
the separator, and so does what precedes the text. With multipliers m and primes p of a layer,

    h_n = t m_0 xor t_1 m_1 xor … xor t_{n-1} m_{n-1}       64 bits, for each order n
    e   = rows h_n mod p of the layer's table, joined       several primes of each order
    v_i = sigmoid(root(norm(K e)_i · norm(s_i) / sqrt(D))) V e
    s_i = s_i + v_i + silu(conv(norm(v))_i)

where root(x) = sign(x) sqrt(max(|x|, 1e-6)), and the convolution reads every N-th token of a path,
N being the largest order.

JAX has 32 bits: a hash is two numbers of 32 bits, and its remainder is taken a few bits at a time.
"""

import itertools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxscore.device.backends import ON_CPU, Build
from jaxscore.device.decoder_config import DecoderConfig, HyperConnections, NgramTable
from jaxscore.device.layers import Linear, Norm
from jaxscore.device.recurrence.mixers import Convolution
from jaxscore.device.recurrence.paths import PathIndex, last_inputs, with_inputs_before

LOW = 0xFFFF  # half of a number of 32 bits
LEAST_GATE = 1e-6


class NgramRun(NamedTuple):
    """What the layers with n-grams of one run share.

    Attributes:
        embedding: of each such layer, of the shard's tokens.
        paths: ancestors, as far as `DecoderConfig.ngrams.reach`.
        states: of all such layers before the rows, or ().
    """

    embedding: Float[Array, "P R L E"]
    paths: PathIndex
    states: Any


def coded(ids: Int[Array, "R L"]) -> Float[Array, "T 1"]:
    """Token ids plus one, as states store them: 0 is no token; float32 is exact up to 2^24."""
    return (ids.reshape(-1, 1) + 1).astype(jnp.float32)


def kept_ids(ids: Int[Array, "R L"], index: PathIndex, before: Array | None) -> Array | None:
    """Tokens [E, 1, reach] that the kept tokens' descendants need, or None."""
    if index.kept is None:
        return None
    return last_inputs(coded(ids), index.ancestors, index.kept, before)


def path_tokens(
    ids: Int[Array, "R L"], size: int, separator: int, index: PathIndex, before: Array | None
) -> list[Int[Array, " T"]]:
    """Each token and its next `size` - 1 ancestors, with separators from the nearest one on.

    Args:
        before: tokens before the rows, as from `kept_ids`.
    """
    given = with_inputs_before(coded(ids), before)[:, 0].astype(jnp.int32)
    out, open_ = [ids.reshape(-1)], jnp.ones(ids.size, bool)
    for ancestor in index.ancestors[: size - 1]:
        above = jnp.take(given, ancestor, mode="fill", fill_value=0) - 1
        open_ &= (above >= 0) & (above != separator)
        out.append(jnp.where(open_, above, separator))
    return out


def hashed_rows(tokens: list[Int[Array, " T"]], table: NgramTable) -> Int[Array, "T H"]:
    """Rows of a table for the n-grams of all orders that end at each token."""
    high, low = (jnp.zeros(tokens[0].shape, jnp.uint32) for _ in range(2))
    n_heads, found = len(table.primes) // (len(tokens) - 1), []
    for order, (ids, multiplier) in enumerate(zip(tokens, table.multipliers, strict=True)):
        more_high, more_low = product(ids.astype(jnp.uint32), multiplier)
        high, low = high ^ more_high, low ^ more_low
        if order:
            primes = table.primes[(order - 1) * n_heads : order * n_heads]
            found.append(remainder(high[:, None], low[:, None], primes))
    first = [0, *itertools.accumulate(table.primes[:-1])]
    return jnp.concatenate(found, axis=1).astype(jnp.int32) + jnp.asarray(first, jnp.int32)


def product(x: Array, multiplier: int) -> tuple[Array, Array]:
    """High and low 32 bits of uint32 numbers times a number below 2^63."""
    above, below = np.uint32(multiplier >> 32), np.uint32(multiplier & 0xFFFFFFFF)
    x1, x0, m1, m0 = x >> 16, x & LOW, below >> np.uint32(16), below & np.uint32(LOW)
    least, first, second = x0 * m0, x0 * m1, x1 * m0
    middle = (least >> 16) + (first & LOW) + (second & LOW)
    high = x1 * m1 + (first >> 16) + (second >> 16) + (middle >> 16) + x * above
    return high, (least & LOW) | (middle << 16)


def remainder(high: Array, low: Array, primes: tuple[int, ...]) -> Array:
    """Remainders of numbers of 64 bits by primes below 2^31, of each along the last axis."""
    p = jnp.asarray(primes, jnp.uint32)
    step, rest = 32 - max(primes).bit_length(), high % p
    for top in range(32, 0, -step):
        bits = min(step, top)
        part = (low >> (top - bits)) & ((1 << bits) - 1)
        rest = ((rest << bits) | part) % p
    return rest


class NgramHalf(nn.Module):
    """What n-grams add to the streams [N, R, L, D], of the shard's tokens.

    The convolution reads all tokens; its states are whole on each shard.
    """

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, streams: Array, embedding: Array, index: PathIndex) -> Array:
        c, build = self.config, self.build
        assert c.ngrams is not None
        assert isinstance(c.residual.streams, HyperConnections)
        n = c.residual.streams.n_streams
        x = jnp.moveaxis(streams, 0, -2)

        def normed(name: str, y: Array) -> Array:
            made: Array = Norm(c, shape=(n, c.width), name=f"{name}_norm")(y.reshape(x.shape))
            return made

        key = normed("key", Linear(n * c.width, False, c.quantized, name="key")(embedding))
        gate = (key * normed("query", x)).sum(-1, keepdims=True) / math.sqrt(c.width)
        gate = jnp.sqrt(jnp.maximum(jnp.abs(gate), LEAST_GATE)) * jnp.sign(gate)
        value = Linear(c.width, False, c.quantized, name="value")(embedding)[..., None, :]
        value = jax.nn.sigmoid(gate) * value
        flat = normed("conv", value).reshape(*x.shape[:-2], n * c.width)
        rows = build.gathered(flat, flat.dtype)
        conv = Convolution(c.ngrams.taps, False, len(c.ngrams.tables[0].multipliers), name="conv")
        mixed = build.own_tokens(conv(rows.reshape(-1, n * c.width), index).reshape(rows.shape))
        return jnp.moveaxis(value + jax.nn.silu(mixed).reshape(x.shape), -2, 0)
