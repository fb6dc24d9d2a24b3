"""Embeddings of hashed n-grams, which some layers add to the residual streams at their start.

Let t be a token and t_1, t_2, … its ancestors. From the nearest separator on, ancestors are
replaced by the separator, as are tokens before the start of the text. With multipliers m and
primes p of a layer,

    h_n = t m_0 xor t_1 m_1 xor … xor t_{n-1} m_{n-1}       64 bits, for each order n
    e   = rows h_n mod p of the layer's table, concatenated      several primes for each order
    v_i = sigmoid(root(norm(K e)_i · norm(s_i) / sqrt(D))) V e
    s_i = s_i + v_i + silu(conv(norm(v))_i)

where root(x) = sign(x) sqrt(max(|x|, 1e-6)). The convolution along the path is dilated by N, the
largest order.

JAX integers have 32 bits, so a hash is a pair of uint32, and its remainder is computed a few bits
at a time.
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

LOW = 0xFFFF  # mask of the low half of a uint32
LEAST_GATE = 1e-6


class NgramRun(NamedTuple):
    """Inputs that all layers with n-grams share in a forward pass.

    Attributes:
        embedding: the n-gram embeddings of the shard's tokens, for each such layer.
        paths: the path index, with `Ngrams.reach` ancestors.
        states: the start states of all such layers, or ().
    """

    embedding: Float[Array, "P R L E"]
    paths: PathIndex
    states: Any


def coded(ids: Int[Array, "R L"]) -> Float[Array, "T 1"]:
    """Return token ids plus one, as stored in states: 0 marks no token; exact up to 2^24."""
    return (ids.reshape(-1, 1) + 1).astype(jnp.float32)


def kept_ids(ids: Int[Array, "R L"], index: PathIndex, before: Array | None) -> Array | None:
    """Return the ids [E, 1, reach] that descendants of the kept tokens need, or None."""
    if index.kept is None:
        return None
    return last_inputs(coded(ids), index.ancestors, index.kept, before)


def path_tokens(
    ids: Int[Array, "R L"], size: int, separator: int, index: PathIndex, before: Array | None
) -> list[Int[Array, " T"]]:
    """Return each token and its next `size` - 1 ancestors, with separators from the nearest one on.

    Args:
        before: ids of the tokens before the rows, from `kept_ids`, or None.
    """
    coded_ids = with_inputs_before(coded(ids), before)[:, 0].astype(jnp.int32)
    out, is_inside = [ids.reshape(-1)], jnp.ones(ids.size, bool)
    for ancestor in index.ancestors[: size - 1]:
        above = jnp.take(coded_ids, ancestor, mode="fill", fill_value=0) - 1
        is_inside &= (above >= 0) & (above != separator)
        out.append(jnp.where(is_inside, above, separator))
    return out


def hashed_rows(tokens: list[Int[Array, " T"]], table: NgramTable) -> Int[Array, "T H"]:
    """Return the table rows of the n-grams of all orders that end at each token."""
    high, low = (jnp.zeros(tokens[0].shape, jnp.uint32) for _ in range(2))
    n_heads, rows = len(table.primes) // (len(tokens) - 1), []
    for order, (ids, multiplier) in enumerate(zip(tokens, table.multipliers, strict=True)):
        more_high, more_low = product(ids.astype(jnp.uint32), multiplier)
        high, low = high ^ more_high, low ^ more_low
        if order:
            primes = table.primes[(order - 1) * n_heads : order * n_heads]
            rows.append(remainder(high[:, None], low[:, None], primes))
    first_row = [0, *itertools.accumulate(table.primes[:-1])]
    return jnp.concatenate(rows, axis=1).astype(jnp.int32) + jnp.asarray(first_row, jnp.int32)


def product(x: Array, multiplier: int) -> tuple[Array, Array]:
    """Multiply uint32 numbers by a number below 2^63; return the high and low 32 bits, mod 2^64."""
    m_high, m_low = np.uint32(multiplier >> 32), np.uint32(multiplier & 0xFFFFFFFF)
    x1, x0, m1, m0 = x >> 16, x & LOW, m_low >> np.uint32(16), m_low & np.uint32(LOW)
    low_product, cross_1, cross_2 = x0 * m0, x0 * m1, x1 * m0
    middle = (low_product >> 16) + (cross_1 & LOW) + (cross_2 & LOW)
    high = x1 * m1 + (cross_1 >> 16) + (cross_2 >> 16) + (middle >> 16) + x * m_high
    return high, (low_product & LOW) | (middle << 16)


def remainder(high: Array, low: Array, primes: tuple[int, ...]) -> Array:
    """Return the remainders of 64-bit numbers by primes below 2^31, along the last axis."""
    p = jnp.asarray(primes, jnp.uint32)
    step, rest = 32 - max(primes).bit_length(), high % p
    for top in range(32, 0, -step):
        bits = min(step, top)
        digit = (low >> (top - bits)) & ((1 << bits) - 1)
        rest = ((rest << bits) | digit) % p
    return rest


class NgramHalf(nn.Module):
    """Update of the streams [N, R, L, D] of the shard's tokens by n-grams.

    The convolution reads all tokens; its states are replicated.
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
            normed_y: Array = Norm(c, shape=(n, c.width), name=f"{name}_norm")(y.reshape(x.shape))
            return normed_y

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
