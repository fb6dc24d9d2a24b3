"""Latent attention (MLA) as attention to one key head, whose keys and values are the latent itself.

For head n, with the latent c_j and the rotary key r_j of token j,

    key_nj = [r_j, K_n c_j]        score = q_n . key_nj = [qr_n, K_n^T qu_n] . [r_j, c_j]
    value_nj = V_n c_j             sum_j w_j value_nj = V_n (sum_j w_j c_j)

so that a token's keys and values are one vector [r_j, c_j] for all heads, which is what a KV cache
holds (arXiv 2405.04434, section 2.1.2), and each head has a query of that width.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from jaxscore.device.build import ON_CPU, Build
from jaxscore.device.decoder_config import DecoderConfig, Latent
from jaxscore.device.layers import SCALE, Linear, Norm, rotate


class PerHead(nn.Module):
    """A weight [N * rows, columns] as a matrix for each head, read along its rows or columns.

    `along` "rows" gives `x[..., N, rows] -> [..., N, columns]`, "columns" the other way.
    """

    heads: int
    rows: int
    columns: int
    along: str
    quantized: str = ""

    @nn.compact
    def __call__(self, x):
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
    """Queries [R, L, N, turned + rank] and the key head [R, L, 1, turned + rank] of attention."""

    config: DecoderConfig
    latent: Latent
    build: Build = ON_CPU

    def setup(self):
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

    def __call__(self, x, own):
        latent, interleaved = self.latent, self.config.interleaved
        read = self.query_norm(self.query_in(x)) if latent.query_rank else x
        q = self.q(read).reshape(*x.shape[:2], -1, latent.unturned + latent.turned)
        unturned, turned = jnp.split(q, [latent.unturned], axis=-1)
        shared, key = jnp.split(self.key_value(x)[:, :, None], [latent.rank], axis=-1)
        turned, key = (rotate(y, own.cos, own.sin, interleaved) for y in (turned, key))
        k = jnp.concatenate([key, self.norm(shared)], axis=-1)
        return jnp.concatenate([turned, self.key_up(unturned)], axis=-1), k, k

    def values(self, mixed):
        """What attention makes of values that are keys, [R, L, N, turned + rank], as each head's
        own value [R, L, N, value]."""
        return self.value_up(mixed[..., self.latent.turned :])
