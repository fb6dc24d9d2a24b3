"""The attention half of a decoder layer, plain or latent (MLA), as Flax modules.

Latent attention is attention to one key head, whose keys and values are the latent itself. For
head n, with the latent c_j and the rotary key r_j of token j,

    key_nj = [r_j, K_n c_j]        score = q_n . key_nj = [qr_n, K_n^T qu_n] . [r_j, c_j]
    value_nj = V_n c_j             sum_j w_j value_nj = V_n (sum_j w_j c_j)

so a token's keys and values are one vector [r_j, c_j] for all heads, which is what a KV cache
holds (arXiv 2405.04434, section 2.1.2), and each head has a query of that width.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxscore.device.attention.interval import attention, isolate_nonfinite
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.backends import ON_CPU, Build
from jaxscore.device.decoder_config import (
    NORMS_AFTER,
    NORMS_BEFORE,
    DecoderConfig,
    Latent,
    QueryGrowth,
)
from jaxscore.device.layers import SCALE, Layout, Linear, Norm, PerLayer, apply_rotary

KeyValue = tuple[Array, Array]


class PerHead(nn.Module):
    """A weight [N * rows, columns] as one matrix per head.

    Attributes:
        along: "rows" maps [..., N, rows] to [..., N, columns], "columns" the other way.
    """

    heads: int
    rows: int
    columns: int
    along: str
    quantized: str = ""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = self.heads * self.rows, self.columns
        weight = self.param("weight", nn.initializers.normal(0.02), shape)
        weight = weight.reshape(self.heads, self.rows, self.columns)
        scale = None
        if self.quantized:
            weight = weight.astype(self.quantized)
            scale = self.param(SCALE, nn.initializers.ones, shape[:1])
            scale = scale.reshape(self.heads, self.rows)
        if scale is not None and self.along == "rows":
            x = x * scale
        # Heads first: XLA:CPU has no product of bfloat16 along a middle axis.
        R, L, N, _ = x.shape
        by_head = x.astype(weight.dtype).reshape(R * L, N, -1).swapaxes(0, 1)
        y = lax.dot_general(
            by_head,
            weight,
            (((2,), (1 if self.along == "rows" else 2,)), ((0,), (0,))),
            precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        y = y.swapaxes(0, 1).reshape(R, L, N, -1)
        return y * scale if scale is not None and self.along == "columns" else y


class LatentProducts(nn.Module):
    """Queries [R, L, N, turned + rank] and the one key head [R, L, 1, turned + rank] of MLA."""

    config: DecoderConfig
    latent: Latent
    build: Build = ON_CPU

    def setup(self) -> None:
        c, latent = self.config, self.latent
        n_heads = c.n_heads // self.build.shards
        if latent.query_rank:
            self.query_in = Linear(latent.query_rank, c.qkv_bias, c.quantized)
            self.query_norm = Norm(c, eps=latent.norm_eps)
        self.q = Linear(n_heads * (latent.turned + latent.unturned), False, c.quantized)
        self.key_value = Linear(latent.rank + latent.turned, c.qkv_bias, c.quantized)
        self.norm = Norm(c, eps=latent.norm_eps)
        self.key_up = PerHead(n_heads, latent.unturned, latent.rank, "rows", c.quantized)
        self.value_up = PerHead(n_heads, latent.value, latent.rank, "columns", c.quantized)

    def __call__(self, x: Array, own: PerLayer) -> tuple[Array, Array, Array]:
        latent, interleaved = self.latent, self.config.interleaved
        read = self.query_norm(self.query_in(x)) if latent.query_rank else x
        read = read if latent.query_factor == 1.0 else read * latent.query_factor
        q = self.q(read).reshape(*x.shape[:2], -1, latent.unturned + latent.turned)
        unturned, turned = jnp.split(q, [latent.unturned], axis=-1)
        shared, key = jnp.split(self.key_value(x)[:, :, None], [latent.rank], axis=-1)
        turned, key = (apply_rotary(y, own.cos, own.sin, interleaved) for y in (turned, key))
        shared = self.norm(shared)
        shared = shared if latent.factor == 1.0 else shared * latent.factor
        k = jnp.concatenate([key, shared], axis=-1)
        return jnp.concatenate([turned, self.key_up(unturned)], axis=-1), k, k

    def values(self, mixed: Array) -> Array:
        """Each head's value [R, L, N, value] from mixed latents [R, L, N, turned + rank]."""
        return self.value_up(mixed[..., self.latent.turned :])


class Attention(nn.Module):
    """Attention with its projections."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, own: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        """Output [R, L, D], and keys and values [R, L, K, H], float32.

        Args:
            x: normed input [R, L, D].
            layout, own: positions, and this layer's inputs.
            shared: keys and values of another layer, used instead of its own.
        """
        c, build = self.config, self.build
        latent = None if c.latent is None else LatentProducts(c, c.latent, build, name="latent")
        if latent is None:
            q, k, v = self.heads(x, own, shared is not None)
        else:
            q, k, v = latent(x, own)
        if c.query_growth is not None:
            q = q * query_factors(c.query_growth, own.growth, layout.position)[:, :, None, None]
        k, v = isolate_nonfinite(k, v) if shared is None else shared
        n_heads = c.n_heads // build.shards
        sinks = self.param("sinks", nn.initializers.zeros, (n_heads,)) if c.sinks else None
        mixed = attention(
            q,
            k,
            v,
            layout.position,
            layout.subtree_end,
            own.window,
            caches=own.caches,
            rule=ScoreRule(c.attention_scale, c.attention_softcap, c.alibi, build.axis),
            dtype=layout.dtype,
            backend=build.backend,
            sinks_N=sinks,
            chunked=c.chunked,
        )
        if latent is not None:
            mixed = latent.values(mixed)
        elif c.value_width:
            mixed = mixed[..., : c.value_width]
        if c.query_gate and c.gate_per_head:
            gate = Linear(n_heads, False, c.quantized, name="gate")(x)
            mixed *= jax.nn.sigmoid(gate)[..., None]
        mixed = mixed.reshape(*x.shape[:2], -1)
        if c.query_gate and not c.gate_per_head:
            gate = Linear(mixed.shape[-1], c.qkv_bias, c.quantized, name="gate")(x)
            mixed *= jax.nn.sigmoid(gate)
        return Linear(c.width, c.out_bias, c.quantized, build.axis, name="out")(mixed), (k, v)

    def heads(self, x: Array, own: PerLayer, only_queries: bool) -> tuple[Array, Any, Any]:
        """Queries, and keys and values unless `only_queries`, of this shard's heads."""
        c, axis = self.config, self.build.axis
        whole_kv = self.build.whole_kv(c)
        n_heads = c.n_heads // self.build.shards
        n_kv_heads = c.n_kv_heads if whole_kv else c.n_kv_heads // self.build.shards

        def project(name: str, count: int, width: int = c.head_width) -> Array:
            y = Linear(count * width, c.qkv_bias, c.quantized, name=name)(x)
            return y.reshape(*x.shape[:2], count, width)

        def normed(name: str, y: Array) -> Array:
            if not c.qk_norm:
                return y
            flat, shape = c.qk_norm == "flat", y.shape[-2:]
            split = axis if flat and not (name == "k" and whole_kv) else None
            shape = shape[1:] if c.qk_norm == "head" else shape
            axes, scale = 2 if flat else 1, c.qk_norm_scale
            norm = Norm(c, axes, shape, c.qk_norm_bias, scale, split=split, name=f"{name}_norm")
            return norm(y) if own.qk_normed is None else jnp.where(own.qk_normed, norm(y), y)

        def rotated(y: Array) -> Array:
            return y if own.cos is None else apply_rotary(y, own.cos, own.sin, c.interleaved)

        def norm_and_rotate(name: str, y: Array) -> Array:
            if c.qk_norm_turned:
                return normed(name, rotated(y))
            return rotated(clip_qkv(c, normed(name, y)))

        q = norm_and_rotate("q", project("q", n_heads))
        if only_queries:
            return q, None, None
        k = project("k", n_kv_heads)
        value_width = c.value_width or c.head_width
        v = clip_qkv(c, k if c.values_are_keys else project("v", n_kv_heads, value_width))
        if c.value_scale != 1.0:
            v *= c.value_scale
        if value_width < c.head_width:  # zeros, so that keys and values have one shape
            v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, c.head_width - value_width)))
        if c.value_norm:
            v = Norm(c, use_bias=False, use_scale=False)(v)
        k = norm_and_rotate("k", k)
        if whole_kv:
            mine = lax.axis_index(axis) * n_heads // (c.n_heads // c.n_kv_heads)
            k, v = (lax.dynamic_slice_in_dim(y, mine, 1, axis=2) for y in (k, v))
        return q, k, v


def clip_qkv(config: DecoderConfig, y: Array) -> Array:
    """Clips to `qkv_limit`."""
    return y if config.qkv_limit is None else jnp.clip(y, -config.qkv_limit, config.qkv_limit)


def query_factors(growth: QueryGrowth, share: Any, position_RL: Array) -> Array:
    """Factors [R, L] of `QueryGrowth` for one layer's share."""
    stretches = jnp.floor((position_RL + growth.ahead).astype(jnp.float32) / growth.length)
    return 1.0 + share * jnp.log1p(stretches)


class Laurel(nn.Module):
    """Norm of a product of low rank (arXiv 2411.07501)."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        inner = Linear(c.laurel_rank, False, c.quantized, name="left")(x)
        return Norm(c, name="norm")(Linear(c.width, False, c.quantized, name="right")(inner))


class AttentionHalf(nn.Module):
    """What attention adds to the residual stream, and keys and values; see `Attention`."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, own: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        c = self.config
        read = Norm(c, name="attention_norm")(x) if c.norm_place in NORMS_BEFORE else x
        beside = None if c.recurrent is None else c.recurrent.beside
        if beside is not None:
            read *= beside.attention_in
        mixed, keys_values = Attention(c, self.build, name="attention")(read, layout, own, shared)
        if beside is not None:
            mixed *= beside.attention_out
        if c.norm_place in NORMS_AFTER:
            mixed = Norm(c, name="attention_after_norm")(mixed)
        elif c.norm_place == "mixed":
            mixed = Norm(c, name="attention_norm")(mixed)
        if c.laurel_rank:
            mixed += read + Laurel(c, name="laurel")(read)
        return mixed, keys_values
