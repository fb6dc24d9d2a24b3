"""The parts of a decoder layer as Flax modules, each reading its kind from `DecoderConfig`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxscore.device.attention.interval import attention, isolated
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.build import ON_CPU, Build
from jaxscore.device.decoder_config import (
    NORMS_AFTER,
    NORMS_BEFORE,
    Activation,
    DecoderConfig,
    Experts,
)
from jaxscore.device.dots import dot_last, to_storage

SCALE = "channel_scale"  # of an int8 weight, beside it in the tree

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the tokens of the rows stand, the same for every layer."""

    position: jax.Array
    subtree_end: jax.Array
    dtype: Any


class PerLayer(NamedTuple):
    """What differs between layers beside parameters; cosine and sine are [R, L, 1, pairs]."""

    window: jax.Array | None
    caches: tuple[KVCache, ...] = ()
    cos: jax.Array | None = None
    sin: jax.Array | None = None


def rotate(
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
    use_bias: bool | None = None  # None: as the config says
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
        scale = self.param("scale", nn.initializers.ones, shape)
        y = x * lax.rsqrt(variance + c.norm_eps) * scale
        if c.norm_bias if self.use_bias is None else self.use_bias:
            y += self.param("bias", nn.initializers.zeros, shape)
        return y


class Attention(nn.Module):
    """Returns the mixed values and, for those who come later, this layer's keys and values."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x, layout, own):
        c, build, axis = self.config, self.build, self.build.axis
        whole_kv = build.whole_kv(c)
        R, L, _ = x.shape
        n_heads = c.n_heads // build.shards
        n_kv_heads = c.n_kv_heads if whole_kv else c.n_kv_heads // build.shards

        def heads(name, count):
            y = Linear(count * c.head_width, c.qkv_bias, c.quantized, name=name)(x)
            return y.reshape(R, L, count, c.head_width)

        def turned(name, y):
            if c.qk_norm:
                flat, shape = c.qk_norm == "flat", y.shape[-2:]
                split = axis if flat and not (name == "k" and whole_kv) else None
                shape = shape[1:] if c.qk_norm == "head" else shape
                axes = 2 if flat else 1
                y = Norm(c, axes, shape, c.qk_norm_bias, split, name=f"{name}_norm")(y)
            return y if own.cos is None else rotate(y, own.cos, own.sin, c.interleaved)

        q, k, v = heads("q", n_heads), heads("k", n_kv_heads), heads("v", n_kv_heads)
        q, k = turned("q", q), turned("k", k)
        if whole_kv:
            mine = lax.axis_index(axis) * n_heads // (c.n_heads // c.n_kv_heads)
            k, v = (lax.dynamic_slice_in_dim(y, mine, 1, axis=2) for y in (k, v))
        k, v = isolated(k, v)
        mixed = attention(
            q,
            k,
            v,
            layout.position,
            layout.subtree_end,
            own.window,
            caches=own.caches,
            rule=ScoreRule(c.attention_scale, c.attention_softcap, c.alibi, axis),
            dtype=layout.dtype,
            forms=build.forms,
        )
        kept = (k.astype(layout.dtype), v.astype(layout.dtype))
        kept = to_storage(kept, build.forms.integers)
        out = Linear(c.width, c.out_bias, c.quantized, axis, name="out")
        return out(mixed.reshape(R, L, -1)), kept


class Mlp(nn.Module):
    config: DecoderConfig
    inner_width: int
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x):
        c, build = self.config, self.build
        act = ACTIVATIONS[c.activation]

        def inward(name):
            return Linear(self.inner_width // build.shards, c.mlp_bias, c.quantized, name=name)(x)

        up = inward("up")
        inner = act(inward("gate")) * up if c.gated else act(up)
        return Linear(c.width, c.mlp_bias, c.quantized, build.axis, name="down")(inner)


class AttentionHalf(nn.Module):
    """What attention adds to the residual stream."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x, layout, own):
        c = self.config
        read = Norm(c, name="attention_norm")(x) if c.norm_place in NORMS_BEFORE else x
        mixed, kept = Attention(c, self.build, name="attention")(read, layout, own)
        if c.norm_place in NORMS_AFTER:
            mixed = Norm(c, name="attention_after_norm")(mixed)
        return mixed, kept


class Mixture(nn.Module):
    """A token's experts, weighed by a softmax over all, and the MLP that all tokens share."""

    config: DecoderConfig
    experts: Experts
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x, run):
        c, experts = self.config, self.experts
        share = jax.nn.softmax(Linear(experts.count, False, name="router")(x), axis=-1)
        share, chosen = lax.top_k(share, experts.per_token)
        if experts.renormalised:
            share = share / share.sum(axis=-1, keepdims=True)
        y = run(x, share, chosen)
        if experts.shared_width:
            gate = jax.nn.sigmoid(Linear(1, False, name="shared_gate")(x))
            y += gate * Mlp(c, experts.shared_width, self.build, name="shared")(x)
        return y


class MlpHalf(nn.Module):
    """What the MLP adds to the residual stream; `run` is what its experts do, if it has any."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(self, x, run=None):
        c = self.config
        name = "attention_norm" if c.parallel == "shared" else "mlp_norm"
        x = Norm(c, name=name)(x) if c.norm_place in NORMS_BEFORE else x
        if c.experts is None:
            y = Mlp(c, c.mlp_width, self.build, name="mlp")(x)
        else:
            y = Mixture(c, c.experts, self.build, name="mlp")(x, run)
        return Norm(c, name="mlp_after_norm")(y) if c.norm_place in NORMS_AFTER else y
