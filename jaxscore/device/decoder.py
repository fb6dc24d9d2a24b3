"""One decoder for every family: what differs between them is `DecoderConfig`, data.

The layers' parameters are stacked along a leading axis and scanned, so that a program of 80
layers compiles as fast as one of two.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.build import ON_CPU, Build
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import compute_dtype, dot_last, from_storage
from jaxscore.device.experts import mixture
from jaxscore.device.layers import ACTIVATIONS, AttentionHalf, Layout, MlpHalf, Norm, PerLayer
from jaxscore.device.rows import Unembedding

Params = dict[str, Any]
KeysValues = tuple[Num[Array, "N R L K H"], Num[Array, "N R L K H"]]  # of all N layers, as stored


def by_tokens(
    function: Callable[[Array], Array], x: Float[Array, "R L D"], most: int | None
) -> Array:
    """`function` of at most so many tokens at a time, where a wide MLP would fill the memory.

    4096 tokens of a width of 18944 are 310 MB, three times over; blocks also stay in cache.
    """
    n_tokens = x.shape[0] * x.shape[1]
    if most is None or n_tokens <= most:
        return function(x)
    block = next(n for n in range(most, 0, -1) if n_tokens % n == 0)
    blocks = x.reshape(n_tokens // block, 1, block, x.shape[2])
    return lax.map(function, blocks).reshape(x.shape)


def hidden_states(
    params: Params,
    config: DecoderConfig,
    ids: Int[Array, "R L"],
    position: Int[Array, "R L"],
    subtree_end: Int[Array, "R L"],
    caches: tuple[KVCache, ...] = (),
    build: Build = ON_CPU,
) -> Float[Array, "R L D"]:
    """Final normed hidden state of every token, float32.

    Args:
        position: a token's depth in its trie, the tokens of `caches` counted.
        caches: keys and values before the rows, of all layers.
        build: forms and mesh; `params` are those of one shard.
    """
    return _run(params, config, ids, position, subtree_end, caches, build, keep=False)[0]


def extend(
    params: Params,
    config: DecoderConfig,
    ids: Int[Array, "R L"],
    position: Int[Array, "R L"],
    subtree_end: Int[Array, "R L"],
    caches: tuple[KVCache, ...] = (),
    build: Build = ON_CPU,
) -> tuple[Float[Array, "R L D"], KeysValues]:
    """`hidden_states`, and every layer's keys and values [layers, R, L, K, H] as stored."""
    return _run(params, config, ids, position, subtree_end, caches, build, keep=True)


def _run(params, config, ids, position, subtree_end, caches, build, *, keep):
    embed = params["embed"]
    x = _looked_up(embed["token"], ids, build.vocabulary_axis(config)) * config.embedding_scale
    if config.embedding_width:
        x = dot_last(x, from_storage(embed["into"]["weight"]))
    if config.learned_positions:
        x += from_storage(embed["position"][position]).astype(jnp.float32)
    if config.embedding_norm:
        x = Norm(config).apply({"params": embed["norm"]}, x)
    layout = Layout(position, subtree_end, compute_dtype(embed["token"]))
    turns, most = _turns(config, position), build.forms.mlp_tokens

    def step(x, layer):
        weights, window, before, index, table = layer
        weights = {"params": from_storage(weights)}
        own = PerLayer(
            window,
            tuple(
                one._replace(key=key, value=value)
                for one, (key, value) in zip(caches, before, strict=True)
            ),
            *(turn[table] for turn in turns),
        )
        added, kept = AttentionHalf(config, build).apply(weights, x, layout, own)
        added = added * config.residual_scale
        read = x if config.parallel != "no" else _joined(config, weights, "attention", x, added)
        if config.experts is None:
            more = by_tokens(lambda part: MlpHalf(config, build).apply(weights, part), read, most)
        else:
            act = ACTIVATIONS[config.activation]
            run = functools.partial(
                mixture,
                params["experts"],
                index,
                act,
                quantized=config.quantized,
                build=build,
            )
            more = MlpHalf(config, build).apply(weights, read, run)
        more = more * config.residual_scale
        if config.parallel != "no":
            x = x + added + more
        else:
            x = _joined(config, weights, "mlp", read, more)
        return x, kept if keep else None

    layers = jnp.arange(config.n_layers)
    windows = jnp.asarray(config.windows, jnp.int32) if any(config.windows) else None
    tables = jnp.asarray(config.rotary_of, jnp.int32) if config.rotary else layers
    before = tuple((one.key, one.value) for one in caches)
    x, kept = lax.scan(step, x, (params["layers"], windows, before, layers, tables))
    if config.final_norm:
        x = Norm(config).apply({"params": params["final_norm"]}, x)
    if config.embedding_width:
        x = dot_last(x, from_storage(params["out_of"]["weight"]))
    return x, kept


def _looked_up(table, ids, axis):
    """float32 rows of the embedding; of a split one each shard adds those that it has."""
    if axis is None:
        return from_storage(table[ids]).astype(jnp.float32)
    own = ids - lax.axis_index(axis) * table.shape[0]
    here = (own >= 0) & (own < table.shape[0])
    rows = from_storage(table[jnp.where(here, own, 0)]).astype(jnp.float32)
    return lax.psum(jnp.where(here[..., None], rows, 0.0), axis)


def _turns(config, position):
    """Cosines and sines of every table, [tables, R, L, 1, pairs]; nothing without tables."""
    if not config.rotary:
        return ()
    frequencies = jnp.asarray([one.frequencies for one in config.rotary], jnp.float32)
    factor = jnp.asarray([one.factor for one in config.rotary], jnp.float32)
    angle = position[None, :, :, None, None] * frequencies[:, None, None, None]
    return tuple(f(angle) * factor[:, None, None, None, None] for f in (jnp.cos, jnp.sin))


def _joined(config, weights, half, x, added):
    """The residual stream after one half, normed where that is this model's place for it."""
    x = x + added
    if config.norm_place != "residual":
        return x
    return Norm(config).apply({"params": weights["params"][f"{half}_norm"]}, x)


def unembedding(params: Params, config: DecoderConfig, build: Build = ON_CPU) -> Unembedding:
    """What turns a hidden state into logits."""
    weight = params["embed"]["token"] if config.tied else params["unembed"]["weight"]
    bias = params["unembed"]["bias"] if config.head_bias else None
    scale, softcap = config.logit_scale, config.logit_softcap
    axis = build.vocabulary_axis(config)
    return Unembedding(weight, bias, scale, softcap, axis, build.forms)


def init_params(key: jax.Array, config: DecoderConfig) -> Params:
    """Random float32 parameters; under `jax.eval_shape` the shapes that a checkpoint must have."""
    c = config
    keys = iter(jax.random.split(key, 12))
    normal = nn.initializers.normal(0.02)
    embedding_width = c.embedding_width or c.width
    x = jnp.zeros((1, 1, c.width))
    at = jnp.zeros((1, 1), jnp.int32)
    turn = jnp.zeros((1, 1, 1, len(c.rotary[0].frequencies))) if c.rotary else None
    layout, own = Layout(at, at + 1, jnp.float32), PerLayer(jnp.int32(0), (), turn, turn)

    def norm(key):
        return Norm(c).init(key, x)["params"]

    def layer(key):
        half = AttentionHalf(c).init(key, x, layout, own)["params"]
        half |= MlpHalf(c).init(jax.random.fold_in(key, 1), x, lambda x, *_: x)["params"]
        if c.norm_place == "residual":
            half |= {"attention_norm": norm(key), "mlp_norm": norm(key)}
        return half

    embed: Params = {"token": normal(next(keys), (c.vocab_size, embedding_width))}
    params: Params = {
        "embed": embed,
        "layers": jax.vmap(layer)(jax.random.split(next(keys), c.n_layers)),
    }
    if c.final_norm:
        params["final_norm"] = norm(next(keys))
    if c.embedding_norm:
        embed["norm"] = norm(next(keys))
    if c.learned_positions:
        embed["position"] = normal(next(keys), (c.max_positions, c.width))
    if c.embedding_width:
        embed["into"] = {"weight": normal(next(keys), (c.width, embedding_width))}
        params["out_of"] = {"weight": normal(next(keys), (embedding_width, c.width))}
    if c.experts is not None:
        inward = (c.n_layers, c.experts.count, c.mlp_width, c.width)
        outward = (*inward[:2], c.width, c.mlp_width)
        names = {"gate": inward, "up": inward, "down": outward}
        params["experts"] = {
            name: {"weight": normal(next(keys), shape)} for name, shape in names.items()
        }
        if c.quantized:
            for name, shape in names.items():
                params["experts"][name]["channel_scale"] = jnp.ones(shape[:-1])
    unembed = {}
    if not c.tied:
        unembed["weight"] = normal(next(keys), (c.vocab_size, embedding_width))
    if c.head_bias:
        unembed["bias"] = jnp.zeros(c.vocab_size)
    if unembed:
        params["unembed"] = unembed
    return params
