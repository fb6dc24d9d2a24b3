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

SCALE = "channel_scale"  # parameter name of the scale of an int8 weight


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions and mask of tokens, shared by all layers, and the compute dtype.

    Attributes:
        position, subtree_end: see `rows.Rows`.
        dtype: the compute dtype.
        paths: the `recurrence.paths.PathIndex` of models with recurrent layers, otherwise None.
        embedded: the embeddings [R, L, D] of the shard's tokens, read by shared blocks.
    """

    position: jax.Array
    subtree_end: jax.Array
    dtype: Any
    paths: Any = None
    embedded: jax.Array | None = None


class PerLayer(NamedTuple):
    """Inputs of one layer in addition to its parameters; None if no layer has the feature.

    Attributes:
        window: see `Scores.windows`.
        caches: KV caches of the preceding tokens.
        cos, sin: cosines and sines of the rotary angles, [R, L, 1, pairs].
        qk_normed: True if queries and keys are normed in this layer.
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
    """Rotate pairs of the first channels by their angles (RoPE, arXiv 2104.09864).

    Args:
        cos, sin: cosines and sines [R, L, 1, pairs]; channels from 2 * pairs on are unchanged.
        interleaved: if True, pairs are channels 2c and 2c + 1, otherwise c and c + pairs.
    """
    n_rotary = 2 * cos.shape[-1]
    rotary, rest = x[..., :n_rotary], x[..., n_rotary:]
    if interleaved:
        low, high = rotary[..., 0::2], rotary[..., 1::2]
    else:
        low, high = jnp.split(rotary, 2, axis=-1)
    pair = (low * cos - high * sin, high * cos + low * sin)
    if interleaved:
        rotary = jnp.stack(pair, axis=-1).reshape(rotary.shape)
    else:
        rotary = jnp.concatenate(pair, axis=-1)
    return jnp.concatenate([rotary, rest], axis=-1) if rest.shape[-1] else rotary


class Linear(nn.Module):
    """The linear map `x @ weight.T + bias` with a weight [out, in], as in checkpoints.

    Attributes:
        quantized: see `DecoderConfig`; outputs are multiplied by a scale per channel.
        summed: function that sums the outputs over shards, if inputs and weight columns are split.
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
    """A low-rank gate: `x * sigmoid(right(silu(factor * left(x))))`."""

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
        axes: number of normed axes.
        shape: shape of the scale, if it differs from that of the normed axes. A scale of the
            unsplit shape is sliced by each shard.
        use_bias, use_scale, eps: see `decoder_config.Norm`; None takes them from the config.
        split: mesh axis over which the normed axes are split, or None.
        groups: number of groups of consecutive shards along `split` with separate statistics.
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
            local_mean = jnp.mean(x, axis=tuple(range(-self.axes, 0)), keepdims=True)
            if self.split is None or self.groups == 1:
                return local_mean if self.split is None else lax.pmean(local_mean, self.split)
            members = lax.axis_size(self.split) // self.groups
            group = lax.axis_index(self.split) // members
            of_groups = (
                jnp.zeros((self.groups, *local_mean.shape)).at[group].set(local_mean / members)
            )
            return lax.psum(of_groups, self.split)[group]

        def select_local(values: Array) -> Array:
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
            y *= select_local(self.param("scale", nn.initializers.ones, shape))
        if c.norm.bias if self.use_bias is None else self.use_bias:
            y += select_local(self.param("bias", nn.initializers.zeros, shape))
        return y
