"""Latent attention against the heads written out: every key and value of every head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import reference
from jaxscore.device.attention.score_rule import ScoreRule
from jaxscore.device.decoder_config import Latent, Rotary
from jaxscore.device.layers import Layout, PerLayer, apply_rotary
from jaxscore.device.self_attention import Attention
from tests.device.configs import llamalike

R, L, N = 2, 24, 4


@pytest.mark.slow
@pytest.mark.parametrize("query_rank", [0, 6])
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_heads_written_out(query_rank, interleaved):
    latent = Latent(12, query_rank, rope_width=4, nope_width=8, value=6, norm_eps=1e-6)
    config = llamalike(
        n_kv_heads=1, head_width=16, latent=latent, rotary=(Rotary((1.0, 0.2)),),
        score_scale=0.3, qkv_bias=False, interleaved=interleaved,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.normal(size=(R, L, config.width)), jnp.float32)
    position = jnp.tile(jnp.arange(L, dtype=jnp.int32), (R, 1))
    end = jnp.full((R, L), L, jnp.int32)
    angle = position[:, :, None, None] * jnp.asarray([1.0, 0.2])
    layout = Layout(position, end, jnp.float32)
    own = PerLayer(None, (), jnp.cos(angle), jnp.sin(angle))
    module = Attention(config)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0.4, 0.4, leaf.shape), jnp.float32),
        module.init(jax.random.key(0), x, layout, own)["params"],
    )
    got, (key, value) = module.apply({"params": params}, x, layout, own)
    assert key.shape == value.shape == (R, L, 1, 16)

    p = params["latent"]

    def normed(y, scale):
        return y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1e-6) * scale

    def times(y, name):
        return jnp.matmul(y, p[name]["weight"].T, precision="highest")

    read = normed(times(x, "query_in"), p["query_norm"]["scale"]) if query_rank else x
    q = times(read, "q").reshape(R, L, N, 12)
    both = times(x, "key_value")
    shared, turned = normed(both[..., :12], p["norm"]["scale"]), both[:, :, None, 12:]
    k = times(shared, "key_up").reshape(R, L, N, 8)
    v = times(shared, "value_up").reshape(R, L, N, 6)
    q = jnp.concatenate([q[..., :8], apply_rotary(q[..., 8:], own.cos, own.sin, interleaved)], -1)
    turned = jnp.broadcast_to(apply_rotary(turned, own.cos, own.sin, interleaved), (R, L, N, 4))
    mixed = reference.attention(
        q, jnp.concatenate([k, turned], -1), jnp.pad(v, [(0, 0)] * 3 + [(0, 6)]), position, end,
        0, rule=ScoreRule(0.3), dtype=jnp.float32,
    )[..., :6]  # fmt: skip
    want = jnp.matmul(mixed.reshape(R, L, -1), params["out"]["weight"].T, precision="highest")
    np.testing.assert_allclose(got, want, atol=2e-5 * float(jnp.abs(want).max()), rtol=0)
