"""What the halves of a decoder layer are made of, as Flax modules."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import dot_last

SCALE = "channel_scale"  # of an int8 weight, beside it in the tree


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the tokens of the rows stand, the same for every layer."""

    position: jax.Array
    subtree_end: jax.Array
    dtype: Any


class PerLayer(NamedTuple):
    """What differs between layers beside parameters; cosine and sine are [R, L, 1, pairs].

    `qk_normed` and `growth` are this layer's `qk_norm_of` and share of `query_growth`.
    """

    window: jax.Array | None
    caches: tuple[KVCache, ...] = ()
    cos: jax.Array | None = None
    sin: jax.Array | None = None
    qk_normed: jax.Array | None = None
    growth: jax.Array | None = None


def apply_rotary(
    x: Float[Array, "R L N H"], cos: Array, sin: Array, interleaved: bool
) -> Float[Array, "R L N H"]:
    """Turn each pair of the first channels by its angle; the others pass."""
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
    """`x @ weight.T + bias`; weight is [out, in], as checkpoints have it.

    With `quantized`, see `DecoderConfig`, the sums are multiplied by their channel's scale, which
    is the same as multiplying the weights. With `summed` the inputs are split over a mesh axis,
    and so are the weight's columns.
    """

    features: int
    use_bias: bool
    quantized: str = ""
    summed: str | None = None

    @nn.compact
    def __call__(self, x):
        weight = self.param("weight", nn.initializers.normal(0.02), (self.features, x.shape[-1]))
        if self.quantized:
            y = dot_last(x, weight.astype(self.quantized))
            y *= self.param(SCALE, nn.initializers.ones, (self.features,))
        else:
            y = dot_last(x, weight)
        if self.summed is not None:
            y = lax.psum(y, self.summed)
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, (self.features,))
        return y


class Norm(nn.Module):
    """Root-mean-square or layer norm over the last `axes` axes, in float32."""

    config: DecoderConfig
    axes: int = 1
    shape: tuple[int, ...] = ()  # of the scale, where it is not the normed axes'
    use_bias: bool | None = None  # None: as the config says, and so of the next two
    use_scale: bool | None = None
    eps: float | None = None
    split: str | None = None  # mesh axis over which what is normed is split

    @nn.compact
    def __call__(self, x):
        c = self.config
        shape = self.shape or x.shape[-self.axes :]

        def mean(x):
            own = jnp.mean(x, axis=tuple(range(-self.axes, 0)), keepdims=True)
            return own if self.split is None else lax.pmean(own, self.split)

        if c.norm == "layer":
            x = x - mean(x)
        variance = mean(jnp.square(x))
        y = x * lax.rsqrt(variance + (c.norm_eps if self.eps is None else self.eps))
        if c.norm_scale if self.use_scale is None else self.use_scale:
            y *= self.param("scale", nn.initializers.ones, shape)
        if c.norm_bias if self.use_bias is None else self.use_bias:
            y += self.param("bias", nn.initializers.zeros, shape)
        return y
