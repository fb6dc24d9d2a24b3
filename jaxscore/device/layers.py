"""Building blocks of a decoder layer, as Flax modules."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import dot_last

SCALE = "channel_scale"  # name of the scale beside an int8 weight in the tree


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions and mask of the rows' tokens, the same for every layer, and the compute dtype.

    `paths` is the `recurrence.paths.PathIndex` of models with recurrent layers, `embedded` the
    embeddings [R, L, D], of the shard's tokens, of those with shared blocks.
    """

    position: jax.Array
    subtree_end: jax.Array
    dtype: Any
    paths: Any = None
    embedded: jax.Array | None = None


class PerLayer(NamedTuple):
    """Inputs of one layer beside its parameters; None if no layer has the feature.

    Attributes:
        window: see `DecoderConfig.windows`.
        caches: KV caches before the rows.
        cos, sin: of the rotary angles, [R, L, 1, pairs].
        qk_normed: whether queries and keys are normed in this layer.
        growth: the layer's entry of `QueryGrowth.shares`.
    """

    window: jax.Array | None
    caches: tuple[KVCache, ...] = ()
    cos: jax.Array | None = None
    sin: jax.Array | None = None
    qk_normed: jax.Array | None = None
    growth: jax.Array | None = None


def apply_rotary(
    x: Float[Array, "R L N H"], cos: Any, sin: Any, interleaved: bool
) -> Float[Array, "R L N H"]:
    """Rotates pairs of the first channels by their angles (RoPE, arXiv 2104.09864).

    Args:
        cos, sin: [R, L, 1, pairs]; channels beyond 2 * pairs are unchanged.
        interleaved: pairs are channels 2c and 2c + 1, otherwise c and c + pairs.
    """
    n_turned = 2 * cos.shape[-1]
    turned, rest = x[..., :n_turned], x[..., n_turned:]
    if interleaved:
        low, high = turned[..., 0::2], turned[..., 1::2]
    else:
        low, high = jnp.split(turned, 2, axis=-1)
    pair = (low * cos - high * sin, high * cos + low * sin)
    if interleaved:
        turned = jnp.stack(pair, axis=-1).reshape(turned.shape)
    else:
        turned = jnp.concatenate(pair, axis=-1)
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


class Linear(nn.Module):
    """`x @ weight.T + bias` with a weight [out, in], as in checkpoints.

    Attributes:
        quantized: see `DecoderConfig`; the sums are multiplied by a scale per output channel.
        summed: adds up the sums of shards that have parts of the inputs and weight columns.
    """

    features: int
    use_bias: bool
    quantized: str = ""
    summed: Callable[[Array], Array] | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        weight = self.param("weight", nn.initializers.normal(0.02), (self.features, x.shape[-1]))
        if self.quantized:
            y = dot_last(x, weight.astype(self.quantized))
            y *= self.param(SCALE, nn.initializers.ones, (self.features,))
        else:
            y = dot_last(x, weight)
        if self.summed is not None:
            y = self.summed(y)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, (self.features,))
        return y


class LowRankGate(nn.Module):
    """The input times the sigmoid of `right(silu(factor * left(x)))`, products of this rank."""

    rank: int
    quantized: str = ""
    factor: float = 1.0

    @nn.compact
    def __call__(self, x: Array) -> Array:
        inner = Linear(self.rank, False, self.quantized, name="left")(x)
        inner = jax.nn.silu(inner if self.factor == 1.0 else inner * self.factor)
        return x * jax.nn.sigmoid(Linear(x.shape[-1], False, self.quantized, name="right")(inner))


class Norm(nn.Module):
    """Root-mean-square or layer norm over the last `axes` axes, in float32.

    Attributes:
        shape: of the scale, if not that of the normed axes. If these are split and it is that of
            all shards' parts, each shard uses its own part of it.
        use_bias, use_scale, eps: None takes them from the config.
        split: mesh axis over which the normed axes are split.
        groups: sets of neighbouring shards along `split`, each of which is normed on its own.
    """

    config: DecoderConfig
    axes: int = 1
    shape: tuple[int, ...] = ()
    use_bias: bool | None = None
    use_scale: bool | None = None
    eps: float | None = None
    split: str | None = None
    groups: int = 1

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        normed = x.shape[-self.axes :]
        shape = self.shape or normed

        def mean(x: Array) -> Array:
            own = jnp.mean(x, axis=tuple(range(-self.axes, 0)), keepdims=True)
            if self.split is None or self.groups == 1:
                return own if self.split is None else lax.pmean(own, self.split)
            members = lax.axis_size(self.split) // self.groups
            group = lax.axis_index(self.split) // members
            of_groups = jnp.zeros((self.groups, *own.shape)).at[group].set(own / members)
            return lax.psum(of_groups, self.split)[group]

        def part(values: Array) -> Array:
            n = math.prod(normed)
            if self.split is None or values.size == n:
                return values
            start = lax.axis_index(self.split) * n
            return lax.dynamic_slice_in_dim(values.reshape(-1), start, n).reshape(normed)

        if c.norm.kind == "layer":
            x = x - mean(x)
        variance = mean(jnp.square(x))
        y = x * lax.rsqrt(variance + (c.norm.eps if self.eps is None else self.eps))
        if c.norm.scale if self.use_scale is None else self.use_scale:
            y *= part(self.param("scale", nn.initializers.ones, shape))
        if c.norm.bias if self.use_bias is None else self.use_bias:
            y += part(self.param("bias", nn.initializers.zeros, shape))
        return y
