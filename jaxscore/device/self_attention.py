"""The attention half of a decoder layer, plain or latent (MLA), as Flax modules.

Latent attention is multi-query attention whose keys and values are the latent itself. For head n,
with the latent c_j and the rotary key r_j of token j,

    key_nj = [r_j, K_n c_j]        score = q_n . key_nj = [qr_n, K_n^T qu_n] . [r_j, c_j]
    value_nj = V_n c_j             sum_j w_j value_nj = V_n (sum_j w_j c_j)

A KV cache stores one vector [r_j, c_j] per token for all heads (arXiv 2405.04434, section 2.1.2),
and each head has a query of that width. Attention to a cache and generation use this absorbed form.
Within rows, keys and values are expanded per head: the expansion costs as much as K_n^T and V_n
above, and products of two tokens have fewer channels (for DeepSeek-V3, 192 and 128 instead of 576
and 576).
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
    """A weight [N * rows, columns], applied as one matrix per head.

    Attributes:
        along: the contracted axis: "rows" maps [..., N, rows] to [..., N, columns], "columns" the
            reverse.
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
        """Return the matrices [N, rows, columns], and scales [N, rows] if they are quantized."""
        weight = self.weight.reshape(self.heads, self.rows, self.columns)
        if self.scale is None:
            return weight, None
        return weight.astype(self.quantized), self.scale.reshape(self.heads, self.rows)

    def expand(self, x: Array) -> Array:
        """Map an input [..., columns] that all heads share to [..., N, rows]."""
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
        # Move heads first, since XLA:CPU cannot batch a bfloat16 product along a middle axis.
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
    """Latent attention with all its projections but the output projection."""

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
        gather_rows: Callable[..., Array],
        inputs: PerLayer,
        factors: Array | float,
        attend: Callable[..., Array],
    ) -> tuple[Array, KeyValue]:
        """Return attention's output [R, L, N, value] before projection, and keys and values.

        Projections that all heads share are computed for the shard's tokens only, and their few
        channels are gathered.

        Args:
            x: the normed input [R, L, D], of the shard's tokens if tokens are split.
            gather_rows: function that gathers values of all tokens, [R, L, channels].
            inputs: the layer's inputs.
            factors: factors on queries, broadcast to [R, L, N, H].
            attend: `attention` with its other arguments bound.
        """
        latent, interleaved = self.latent, self.config.positions.interleaved
        q_input = x
        if latent.query_rank:
            c_q = self.query_in(x)
            q_input = self.query_norm(c_q)
            q_input = jnp.concatenate([q_input, c_q], axis=-1) if latent.gated else q_input
        q_input = gather_rows(
            q_input if latent.query_factor == 1.0 else q_input * latent.query_factor
        )
        q = (
            self.q(q_input).reshape(*q_input.shape[:2], -1, latent.nope_width + latent.rope_width)
            * factors
        )
        q_nope, q_rope = jnp.split(q, [latent.nope_width], axis=-1)
        c_kv, k_rope = jnp.split(self.key_value(x), [latent.rank], axis=-1)
        c_kv = self.norm(c_kv)
        c_kv = c_kv if latent.factor == 1.0 else c_kv * latent.factor
        c_kv, k_rope = (gather_rows(y, jnp.float32)[:, :, None] for y in (c_kv, k_rope))
        q_rope, k_rope = (
            apply_rotary(y, inputs.cos, inputs.sin, interleaved) for y in (q_rope, k_rope)
        )
        k = jnp.concatenate([k_rope, c_kv], axis=-1)
        keys_values = isolate_nonfinite(k, k)
        absorbed = None
        if inputs.caches or q.shape[1] == 1:
            absorbed = jnp.concatenate([q_rope, self.key_up(q_nope)], axis=-1)
        if q.shape[1] == 1:  # a generation step
            return self._gated(self._values(attend(absorbed, *keys_values)), q_input), keys_values
        out = attend(
            self._pad(jnp.concatenate([q_rope, q_nope], axis=-1)),
            *isolate_nonfinite(*self._expand(k)),
            cache_q=absorbed,
            from_cache=lambda out: self._pad(self._values(out)),
        )
        return self._gated(out[..., : latent.value], q_input), keys_values

    def _gated(self, out: Array, q_input: Array) -> Array:
        """Multiply attention's output by its gates, if there are any."""
        if not self.latent.gated:
            return out
        return out * jax.nn.sigmoid(self.gate(q_input)).reshape(out.shape)

    def _expand(self, k: Array) -> KeyValue:
        """Expand latent keys to keys and values [R, L, N, H] of all heads."""
        rope_key, c_kv = jnp.split(k[:, :, 0], [self.latent.rope_width], axis=-1)
        k_nope, value = self.key_up.expand(c_kv), self.value_up.expand(c_kv)
        k_rope = jnp.broadcast_to(rope_key[:, :, None], (*k_nope.shape[:3], rope_key.shape[-1]))
        return self._pad(jnp.concatenate([k_rope, k_nope], axis=-1)), self._pad(value)

    def _values(self, latents: Array) -> Array:
        """Map averaged latent keys [R, L, N, rope_width + rank] to values [R, L, N, value]."""
        return self.value_up(latents[..., self.latent.rope_width :])

    def _pad(self, x: Array) -> Array:
        """Pad channels with zeros to the larger width of expanded keys and values."""
        width = max(self.latent.rope_width + self.latent.nope_width, self.latent.value)
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])))


class Attention(nn.Module):
    """Attention with its projections."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, inputs: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        """Return the output [R, L, D], and keys and values [R, L, K, H], float32.

        Args:
            x: the normed input [R, L, D]; input and output are of the shard's tokens if tokens are
                split.
            layout, inputs: positions, and this layer's inputs.
            shared: keys and values of another layer that this layer reuses, or None.
        """
        c, build = self.config, self.build
        n_heads = c.attention.n_heads // build.shards
        attend = functools.partial(
            attention,
            position_RL=layout.position,
            subtree_end_RL=layout.subtree_end,
            window=inputs.window,
            caches=inputs.caches,
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

        def gather_rows(y: Array, dtype: Any = None) -> Array:
            return build.gathered(y, dtype).reshape(*layout.position.shape, -1)

        factors: Array | float = 1.0
        if c.attention.scores.query_growth is not None:
            factors = query_factors(
                c.attention.scores.query_growth, inputs.growth, layout.position
            )[:, :, None, None]
        if c.attention.latent is not None:
            latent = LatentProducts(c, c.attention.latent, build, name="latent")
            out, (k, v) = latent.attend(x, gather_rows, inputs, factors, attend)
        else:
            x = gather_rows(x)
            q, k, v = self.heads(x, inputs, shared is not None)
            k, v = isolate_nonfinite(k, v) if shared is None else shared
            out = attend(q * factors, k, v)
            if c.attention.values.width:
                out = out[..., : c.attention.values.width]
        if c.attention.query_gate and c.attention.latent is not None:
            x = gather_rows(x)
        if c.attention.query_gate and c.attention.gate_per_head:
            gate = Linear(n_heads, False, c.quantized, name="gate")(x)
            out *= jax.nn.sigmoid(gate)[..., None]
        out = out.reshape(*layout.position.shape, -1)
        if c.attention.query_gate and not c.attention.gate_per_head:
            gate = Linear(out.shape[-1], c.attention.qkv_bias, c.quantized, name="gate")(x)
            out *= jax.nn.sigmoid(gate)
        return Linear(c.width, c.attention.out_bias, c.quantized, build.summed, name="out")(out), (
            k,
            v,
        )

    def heads(self, x: Array, inputs: PerLayer, only_queries: bool) -> tuple[Array, Any, Any]:
        """Return queries, keys and values of this shard's heads; keys and values may be None.

        Args:
            x: the normed input of all tokens.
            inputs: the layer's inputs.
            only_queries: if True, keys and values are not computed.
        """
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
            return norm(y) if inputs.qk_normed is None else jnp.where(inputs.qk_normed, norm(y), y)

        def rotated(y: Array) -> Array:
            return (
                y
                if inputs.cos is None
                else apply_rotary(y, inputs.cos, inputs.sin, c.positions.interleaved)
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
        if value_width < c.attention.head_width:  # pad, so that keys and values have equal shapes
            v = jnp.pad(v, ((0, 0), (0, 0), (0, 0), (0, c.attention.head_width - value_width)))
        if c.attention.values.norm:
            v = Norm(c, use_bias=False, use_scale=False)(v)
        k = norm_and_rotate("k", k)
        if whole_kv:
            kv_head = (
                lax.axis_index(axis) * n_heads // (c.attention.n_heads // c.attention.n_kv_heads)
            )
            k, v = (lax.dynamic_slice_in_dim(y, kv_head, 1, axis=2) for y in (k, v))
        return q, k, v


def clip_qkv(config: DecoderConfig, y: Array) -> Array:
    """Clip queries, keys or values to `qkv_limit`, if the config has one."""
    return (
        y
        if config.attention.qkv_limit is None
        else jnp.clip(y, -config.attention.qkv_limit, config.attention.qkv_limit)
    )


def query_factors(growth: QueryGrowth, share: Any, position_RL: Array) -> Array:
    """Return the factors [R, L] of `QueryGrowth` for one layer's share."""
    n_lengths = jnp.floor((position_RL + growth.ahead).astype(jnp.float32) / growth.length)
    return 1.0 + share * jnp.log1p(n_lengths)


class Laurel(nn.Module):
    """LAuReL: the norm of a low-rank projection (arXiv 2411.07501)."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        inner = Linear(c.residual.laurel_rank, False, c.quantized, name="left")(x)
        return Norm(c, name="norm")(Linear(c.width, False, c.quantized, name="right")(inner))


class AttentionHalf(nn.Module):
    """The attention half of a layer: attention with its norms; see `Attention`."""

    config: DecoderConfig
    build: Build = ON_CPU

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, inputs: PerLayer, shared: KeyValue | None = None
    ) -> tuple[Array, KeyValue]:
        c = self.config
        normed = Norm(c, name="attention_norm")(x) if c.norm.place in NORMS_BEFORE else x
        if c.norm.gate_rank:
            normed = LowRankGate(c.norm.gate_rank, c.quantized, name="attention_norm_gate")(normed)
        factors = None if c.recurrent is None else c.recurrent.beside
        if factors is not None:
            normed *= factors.attention_in
        out, keys_values = Attention(c, self.build, name="attention")(
            normed, layout, inputs, shared
        )
        if factors is not None:
            out *= factors.attention_out
        if c.norm.place in NORMS_AFTER:
            out = Norm(c, name="attention_after_norm")(out)
        elif c.norm.place == "mixed":
            out = Norm(c, name="attention_norm")(out)
        if c.residual.laurel_rank:
            out += normed + Laurel(c, name="laurel")(normed)
        return out, keys_values
