"""The attention half of a decoder layer, plain or latent (MLA), as Flax modules.

Latent attention is attention to one key head, whose keys and values are the latent itself. For
head n, with the latent c_j and the rotary key r_j of token j,

    key_nj = [r_j, K_n c_j]        score = q_n . key_nj = [qr_n, K_n^T qu_n] . [r_j, c_j]
    value_nj = V_n c_j             sum_j w_j value_nj = V_n (sum_j w_j c_j)

so a token's keys and values are one vector [r_j, c_j] for all heads, which is what a KV cache
holds (arXiv 2405.04434, section 2.1.2), and each head has a query of that width. Attention to a
cache and generation use this absorbed form. Within rows each head has its keys and values
expanded: the expansion multiplies as often as K_n^T and V_n above, and a product of two tokens has
fewer channels (of DeepSeek-V3 192 and 128 in place of 576 and 576).
"""

import functools
from collections.abc import Callable
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
from jaxscore.device.layers import (
    SCALE,
    Layout,
    Linear,
    LowRankGate,
    Norm,
    PerLayer,
    apply_rotary,
)

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

    def setup(self) -> None:
        shape = self.heads * self.rows, self.columns
        self.weight = self.param("weight", nn.initializers.normal(0.02), shape)
        self.scale = self.param(SCALE, nn.initializers.ones, shape[:1]) if self.quantized else None

    def _matrices(self) -> tuple[Array, Array | None]:
        """Matrix [N, rows, columns] of each head, and scales [N, rows] of quantized ones."""
        weight = self.weight.reshape(self.heads, self.rows, self.columns)
        if self.scale is None:
            return weight, None
        return weight.astype(self.quantized), self.scale.reshape(self.heads, self.rows)

    def expand(self, x: Array) -> Array:
        """Rows [..., N, rows] of all heads from an input [..., columns] that they share."""
        weight, scale = self._matrices()
        y = jnp.einsum(
            "...c,nrc->...nr",
            x.astype(weight.dtype),
            weight,
            precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )
        return y if scale is None else y * scale

    def __call__(self, x: Array) -> Array:
        weight, scale = self._matrices()
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
    """Latent attention with its projections, but the last one."""

    config: DecoderConfig
    latent: Latent
    build: Build = ON_CPU

    def setup(self) -> None:
        c, latent = self.config, self.latent
        n_heads = c.attention.n_heads // self.build.shards
        if latent.query_rank:
            self.query_in = Linear(latent.query_rank, c.attention.qkv_bias, c.quantized)
            self.query_norm = Norm(c, eps=latent.norm_eps)
        self.q = Linear(n_heads * (latent.rope_width + latent.nope_width), False, c.quantized)
        if latent.gated:
            self.gate = Linear(n_heads * latent.value, False, c.quantized)
        self.key_value = Linear(latent.rank + latent.rope_width, c.attention.qkv_bias, c.quantized)
        self.norm = Norm(c, eps=latent.norm_eps)
        self.key_up = PerHead(n_heads, latent.nope_width, latent.rank, "rows", c.quantized)
        self.value_up = PerHead(n_heads, latent.value, latent.rank, "columns", c.quantized)

    def attend(
        self,
        x: Array,
        rows: Callable[..., Array],
        own: PerLayer,
        factors: Array | float,
        attend: Callable[..., Array],
    ) -> tuple[Array, KeyValue]:
        """Mixed values [R, L, N, value] of the tokens' heads, and keys and values for a cache.

        Products that all heads share are of the shard's tokens alone, and their few channels are
        gathered.

        Args:
            x: normed input [R, L, D], of the shard's tokens if they are split.
            rows: gathers values of all tokens, [R, L, channels].
            factors: on queries, broadcast to [R, L, N, H].
            attend: `attention` with all other arguments.
        """
        latent, interleaved = self.latent, self.config.positions.interleaved
        read = x
        if latent.query_rank:
            short = self.query_in(x)
            read = self.query_norm(short)
            read = jnp.concatenate([read, short], axis=-1) if latent.gated else read
        read = rows(read if latent.query_factor == 1.0 else read * latent.query_factor)
        q = (
            self.q(read).reshape(*read.shape[:2], -1, latent.nope_width + latent.rope_width)
            * factors
        )
        unturned, turned = jnp.split(q, [latent.nope_width], axis=-1)
        shared, key = jnp.split(self.key_value(x), [latent.rank], axis=-1)
        shared = self.norm(shared)
        shared = shared if latent.factor == 1.0 else shared * latent.factor
        shared, key = (rows(y, jnp.float32)[:, :, None] for y in (shared, key))
        turned, key = (apply_rotary(y, own.cos, own.sin, interleaved) for y in (turned, key))
        k = jnp.concatenate([key, shared], axis=-1)
        keys_values = isolate_nonfinite(k, k)
        absorbed = None
        if own.caches or q.shape[1] == 1:
            absorbed = jnp.concatenate([turned, self.key_up(unturned)], axis=-1)
        if q.shape[1] == 1:  # a generation step
            return self._gated(self._values(attend(absorbed, *keys_values)), read), keys_values
        mixed = attend(
            self._pad(jnp.concatenate([turned, unturned], axis=-1)),
            *isolate_nonfinite(*self._expand(k)),
            cache_q=absorbed,
            from_cache=lambda mixed: self._pad(self._values(mixed)),
        )
        return self._gated(mixed[..., : latent.value], read), keys_values

    def _gated(self, mixed: Array, read: Array) -> Array:
        """Mixed values times their gates, if there are any."""
        if not self.latent.gated:
            return mixed
        return mixed * jax.nn.sigmoid(self.gate(read)).reshape(mixed.shape)

    def _expand(self, k: Array) -> KeyValue:
        """Keys and values [R, L, N, H] of all heads from latent keys."""
        key, shared = jnp.split(k[:, :, 0], [self.latent.rope_width], axis=-1)
        unturned, value = self.key_up.expand(shared), self.value_up.expand(shared)
        turned = jnp.broadcast_to(key[:, :, None], (*unturned.shape[:3], key.shape[-1]))
        return self._pad(jnp.concatenate([turned, unturned], axis=-1)), self._pad(value)

    def _values(self, mixed: Array) -> Array:
        """Each head's value [R, L, N, value] from mixed latents [R, L, N, turned + rank]."""
        return self.value_up(mixed[..., self.latent.rope_width :])

    def _pad(self, x: Array) -> Array:
        """Channels padded with zeros to the width of expanded keys or values, the larger one."""
        width = max(self.latent.rope_width + self.latent.nope_width, self.latent.value)
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])))


class Attention(nn.Module):
    """Attention with its projections."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, own: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        """Output [R, L, D], of the shard's tokens if they are split, and keys and values
        [R, L, K, H], float32.

        Args:
            x: normed input [R, L, D], of the shard's tokens if they are split.
            layout, own: positions, and this layer's inputs.
            shared: keys and values of another layer, used instead of its own.
        """
        c, build = self.config, self.build
        n_heads = c.attention.n_heads // build.shards
        attend = functools.partial(
            attention,
            position_RL=layout.position,
            subtree_end_RL=layout.subtree_end,
            window=own.window,
            caches=own.caches,
            rule=ScoreRule(
                c.attention.scores.score_scale,
                c.attention.scores.score_softcap,
                c.attention.scores.alibi,
                build.axis,
            ),
            dtype=layout.dtype,
            backend=build.backend,
            sinks_N=self.param("sinks", nn.initializers.zeros, (n_heads,))
            if c.attention.scores.sinks
            else None,
            chunked=c.attention.scores.chunked,
        )

        def rows(y: Array, dtype: Any = None) -> Array:
            return build.gathered(y, dtype).reshape(*layout.position.shape, -1)

        factors: Array | float = 1.0
        if c.attention.scores.query_growth is not None:
            factors = query_factors(c.attention.scores.query_growth, own.growth, layout.position)[
                :, :, None, None
            ]
        if c.attention.latent is not None:
            latent = LatentProducts(c, c.attention.latent, build, name="latent")
            mixed, (k, v) = latent.attend(x, rows, own, factors, attend)
        else:
            x = rows(x)
            q, k, v = self.heads(x, own, shared is not None)
            k, v = isolate_nonfinite(k, v) if shared is None else shared
            mixed = attend(q * factors, k, v)
            if c.attention.values.width:
                mixed = mixed[..., : c.attention.values.width]
        if c.attention.query_gate and c.attention.latent is not None:
            x = rows(x)
        if c.attention.query_gate and c.attention.gate_per_head:
            gate = Linear(n_heads, False, c.quantized, name="gate")(x)
            mixed *= jax.nn.sigmoid(gate)[..., None]
        mixed = mixed.reshape(*layout.position.shape, -1)
        if c.attention.query_gate and not c.attention.gate_per_head:
            gate = Linear(mixed.shape[-1], c.attention.qkv_bias, c.quantized, name="gate")(x)
            mixed *= jax.nn.sigmoid(gate)
        return Linear(c.width, c.attention.out_bias, c.quantized, build.summed, name="out")(
            mixed
        ), (k, v)

    def heads(self, x: Array, own: PerLayer, only_queries: bool) -> tuple[Array, Any, Any]:
        """Queries, and keys and values unless `only_queries`, of this shard's heads."""
        c, axis = self.config, self.build.axis
        whole_kv = self.build.whole_kv(c)
        n_heads = c.attention.n_heads // self.build.shards
        n_kv_heads = (
            c.attention.n_kv_heads if whole_kv else c.attention.n_kv_heads // self.build.shards
        )

        def project(name: str, count: int, width: int = c.attention.head_width) -> Array:
            y = Linear(count * width, c.attention.qkv_bias, c.quantized, name=name)(x)
            if c.attention.qkv_rank:
                low = Linear(c.attention.qkv_rank, False, c.quantized, name=f"{name}_low_in")(x)
                y += Linear(count * width, False, c.quantized, name=f"{name}_low")(low)
            return y.reshape(*x.shape[:2], count, width)

        def normed(name: str, y: Array) -> Array:
            if not c.attention.qk_norm.kind:
                return y
            flat, shape = c.attention.qk_norm.kind == "flat", y.shape[-2:]
            split = axis if flat and not (name == "k" and whole_kv) else None
            shape = shape[1:] if c.attention.qk_norm.kind == "head" else shape
            axes, scale = 2 if flat else 1, c.attention.qk_norm.scale
            norm = Norm(
                c, axes, shape, c.attention.qk_norm.bias, scale, split=split, name=f"{name}_norm"
            )
            return norm(y) if own.qk_normed is None else jnp.where(own.qk_normed, norm(y), y)

        def rotated(y: Array) -> Array:
            return (
                y if own.cos is None else apply_rotary(y, own.cos, own.sin, c.positions.interleaved)
            )

        def norm_and_rotate(name: str, y: Array) -> Array:
            if c.attention.qk_norm.after_rotary:
                return normed(name, rotated(y))
            return rotated(clip_qkv(c, normed(name, y)))

        q = norm_and_rotate("q", project("q", n_heads))
        if only_queries:
            return q, None, None
        k = project("k", n_kv_heads)
        value_width = c.attention.values.width or c.attention.head_width
        v = clip_qkv(c, k if c.attention.values.are_keys else project("v", n_kv_heads, value_width))
        if c.attention.values.factor != 1.0:
            v *= c.attention.values.factor
        if value_width < c.attention.head_width:  # zeros, so that keys and values have one shape
            v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, c.attention.head_width - value_width)))
        if c.attention.values.norm:
            v = Norm(c, use_bias=False, use_scale=False)(v)
        k = norm_and_rotate("k", k)
        if whole_kv:
            mine = lax.axis_index(axis) * n_heads // (c.attention.n_heads // c.attention.n_kv_heads)
            k, v = (lax.dynamic_slice_in_dim(y, mine, 1, axis=2) for y in (k, v))
        return q, k, v


def clip_qkv(config: DecoderConfig, y: Array) -> Array:
    """Clips to `qkv_limit`."""
    return (
        y
        if config.attention.qkv_limit is None
        else jnp.clip(y, -config.attention.qkv_limit, config.attention.qkv_limit)
    )


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
        inner = Linear(c.residual.laurel_rank, False, c.quantized, name="left")(x)
        return Norm(c, name="norm")(Linear(c.width, False, c.quantized, name="right")(inner))


class AttentionHalf(nn.Module):
    """What attention adds to the residual stream of the shard's tokens, and all keys and values;
    see `Attention`."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, own: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        c = self.config
        read = Norm(c, name="attention_norm")(x) if c.norm.place in NORMS_BEFORE else x
        if c.norm.gate_rank:
            read = LowRankGate(c.norm.gate_rank, c.quantized, name="attention_norm_gate")(read)
        beside = None if c.recurrent is None else c.recurrent.beside
        if beside is not None:
            read *= beside.attention_in
        mixed, keys_values = Attention(c, self.build, name="attention")(read, layout, own, shared)
        if beside is not None:
            mixed *= beside.attention_out
        if c.norm.place in NORMS_AFTER:
            mixed = Norm(c, name="attention_after_norm")(mixed)
        elif c.norm.place == "mixed":
            mixed = Norm(c, name="attention_norm")(mixed)
        if c.residual.laurel_rank:
            mixed += read + Laurel(c, name="laurel")(read)
        return mixed, keys_values
