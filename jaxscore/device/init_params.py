"""Random parameters of a decoder, which also define the parameter shapes of checkpoints."""

import functools
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxscore.device import attention_kinds
from jaxscore.device.decoder import Params
from jaxscore.device.decoder_config import AltUp, DecoderConfig
from jaxscore.device.feed_forward import MlpHalf, PerLayerInput
from jaxscore.device.layers import Layout, Linear, Norm, PerLayer
from jaxscore.device.ngrams import NgramHalf
from jaxscore.device.recurrence.mixers import mixer_module, single_tokens
from jaxscore.device.self_attention import Attention, AttentionHalf
from jaxscore.device.streams import AlternatingUpdate, HyperConnection


def init_params(key: jax.Array, config: DecoderConfig) -> Params:
    """Create random float32 parameters; `jax.eval_shape` gives the shapes of a checkpoint."""
    # Over 60 lines: the only list of all parameters, in the order of their random keys.
    c = config
    n_tables = 0 if c.ngrams is None else len(c.ngrams.tables)
    keys = iter(jax.random.split(key, 20 + n_tables))
    normal = nn.initializers.normal(0.02)
    embedding_width = c.embedding.width or c.width
    x = jnp.zeros((1, 1, c.width))
    position = jnp.zeros((1, 1), jnp.int32)
    angles = (
        jnp.zeros((1, 1, 1, len(c.positions.rotary[0].frequencies))) if c.positions.rotary else None
    )
    normed = jnp.bool_(True) if c.attention.qk_norm.layers else None
    growth = None if c.attention.scores.query_growth is None else jnp.float32(0)
    layout = Layout(position, position + 1, jnp.float32, single_tokens(c, 1))
    inputs = PerLayer(jnp.int32(0), (), angles, angles, normed, growth)

    def norm(key: jax.Array) -> Any:
        return Norm(c).init(key, x).get("params", {})

    def mlp_half(key: jax.Array, width: int | None = None) -> Any:
        half = MlpHalf(c, plain_width=width)
        return half.init(key, x, lambda x, *_: x, jnp.bool_(True)).get("params", {})

    def layer(key: jax.Array) -> Any:
        main = c.attention_configs()[0]
        half = AttentionHalf(main).init(key, x, layout, attention_kinds.trim_rotary(inputs, main))[
            "params"
        ]
        if attention_kinds.stacked_by_kind(c):
            half.pop("attention")  # stacked per layer type instead
        half |= mlp_half(jax.random.fold_in(key, 1))
        if c.mlps_by_kind:
            half.pop("mlp")  # stacked per MLP type instead
        if c.norm.place == "residual":
            half |= {"attention_norm": norm(key), "mlp_norm": norm(key)}
        if c.embedding.per_layer_width:
            embedding = jnp.zeros((1, 1, c.embedding.per_layer_width))
            half["per_layer"] = PerLayerInput(c).init(key, x, embedding)["params"]
        if c.residual.streams is not None:
            streams = jnp.zeros((c.residual.streams.n_streams, *x.shape))
            half["streams"] = _streams_of_layer(key, c, streams)
        if c.residual.layer_scale:
            half["layer_scale"] = jnp.ones(1)
        return half

    embed: Params = {"token": normal(next(keys), (c.vocab_size, embedding_width))}
    params: Params = {
        "embed": embed,
        "layers": jax.vmap(layer)(jax.random.split(next(keys), c.n_layers)),
    }
    if c.head.norm:
        params["final_norm"] = norm(next(keys))
    if c.embedding.norm:
        embed["norm"] = norm(next(keys))
    if c.positions.learned_positions:
        embed["position"] = normal(next(keys), (c.max_positions, c.width))
    if c.embedding.width:
        embed["into"] = {"weight": normal(next(keys), (c.width, embedding_width))}
        params["out_of"] = {"weight": normal(next(keys), (embedding_width, c.width))}
    if c.embedding.per_layer_width:
        columns = c.n_layers * c.embedding.per_layer_width
        n_rows = c.embedding.per_layer_rows or c.vocab_size
        embed["per_layer"] = {"token": normal(next(keys), (n_rows, columns))}
        embed["per_layer_in"] = {"weight": normal(next(keys), (columns, c.width))}
        embed["per_layer_norm"] = {"scale": jnp.ones(c.embedding.per_layer_width)}
    if isinstance(c.residual.streams, AltUp):
        shape = c.residual.streams.n_streams - 1, c.width, c.width
        params["streams"] = {
            name: {"weight": normal(next(keys), shape)} for name in ("into", "out_of")
        }
    elif c.residual.streams is not None:
        streams = jnp.zeros((c.residual.streams.n_streams, *x.shape))
        final_connection = HyperConnection(c, is_last=True)
        params["streams"] = {"out_of": final_connection.init(next(keys), streams)["params"]}
    if c.ngrams is not None:
        heads = len(c.ngrams.tables[0].primes)
        embed["ngrams"] = {
            str(k): {"token": normal(next(keys), (table.rows, c.ngrams.width // heads))}
            for k, table in enumerate(c.ngrams.tables)
        }
        assert c.residual.streams is not None
        params["ngrams"] = _ngrams(
            next(keys), c, jnp.zeros((c.residual.streams.n_streams, *x.shape))
        )
    if c.shared_blocks is not None:
        params |= _blocks(next(keys), c, layout, inputs)
    elif attention_kinds.stacked_by_kind(c):
        params["attentions"] = _attentions(next(keys), c, x, layout, inputs)
    if c.recurrent is not None:
        mixer = functools.partial(mixer_module(c).init, x=x, layout=layout)
        init_mixers = jax.vmap(lambda key: mixer(key)["params"])
        params["recurrent"] = init_mixers(jax.random.split(next(keys), len(c.recurrent.layers)))
    if c.mlps_by_kind:
        width_of = {"main": None, "other": c.mlp.other.width if c.mlp.other else None}
        params["mlps"] = {
            mlp_type: jax.vmap(lambda key, width=width_of[mlp_type]: mlp_half(key, width)["mlp"])(
                jax.random.split(next(keys), len(layers))
            )
            for mlp_type, layers in c.mlp_kinds().items()
            if layers
        }
    if c.experts is not None:
        params["experts"] = _experts(keys, c, len(c.mlp_kinds()["main"]))
    unembed = {}
    if not c.head.tied:
        unembed["weight"] = normal(next(keys), (c.vocab_size, embedding_width))
    if c.head.bias:
        unembed["bias"] = jnp.zeros(c.vocab_size)
    if unembed:
        params["unembed"] = unembed
    return params


def _streams_of_layer(key: jax.Array, c: DecoderConfig, streams: jax.Array) -> Any:
    """Create random parameters of a layer for its residual streams."""
    if isinstance(c.residual.streams, AltUp):
        return AlternatingUpdate(c).init(key, streams, streams[0])["params"]
    halves = zip(("attention", "mlp"), jax.random.split(key), strict=True)
    return {name: HyperConnection(c).init(half_key, streams)["params"] for name, half_key in halves}


def _ngrams(key: jax.Array, c: DecoderConfig, streams: jax.Array) -> Any:
    """Create random parameters of the layers that begin with n-grams."""
    assert c.ngrams is not None
    embedding = jnp.zeros((1, 1, c.ngrams.width))
    index = single_tokens(c, 1, c.ngrams.reach)
    init_half = functools.partial(
        NgramHalf(c).init, streams=streams, embedding=embedding, index=index
    )
    init_layers = jax.vmap(lambda key: init_half(key)["params"])
    return init_layers(jax.random.split(key, len(c.ngrams.layers)))


def _experts(keys: Iterator[jax.Array], c: DecoderConfig, n_layers: int) -> Params:
    """Create random experts for the layers that have experts."""
    assert c.experts is not None
    normal = nn.initializers.normal(0.02)
    width = c.experts.latent_width or c.width
    inward = (n_layers, c.experts.count, c.mlp.width, width)
    outward = (*inward[:2], width, c.mlp.width)
    names = {"gate": inward, "up": inward, "down": outward}
    if not c.mlp.gated:
        del names["gate"]
    projections = {name: {"weight": normal(next(keys), shape)} for name, shape in names.items()}
    for name, shape in names.items():
        if c.experts.bias:
            projections[name]["bias"] = jnp.zeros(shape[:-1])
        if c.quantized:
            projections[name]["channel_scale"] = jnp.ones(shape[:-1])
    return projections


def _blocks(key: jax.Array, c: DecoderConfig, layout: Layout, inputs: PerLayer) -> Params:
    """Create random shared blocks, and the separate parameters of each layer that uses one."""
    assert c.shared_blocks is not None
    config, x = attention_kinds.block_config(c), jnp.zeros((1, 1, c.width))
    block_input = jnp.concatenate([x, x], axis=-1)

    def block(key: jax.Array) -> Params:
        attention = AttentionHalf(config).init(
            key, block_input, layout, attention_kinds.trim_rotary(inputs, config)
        )
        half: Params = attention["params"] | MlpHalf(config).init(key, x)["params"]
        return half

    def init_use(key: jax.Array) -> Params:
        low_rank = {
            half_name: {name: tree for name, tree in half.items() if "low" in name.split("_")}
            for half_name, half in block(key).items()
        }
        into = Linear(c.width, False, c.quantized).init(key, x)["params"]
        return {half_name: half for half_name, half in low_rank.items() if half} | {"into": into}

    def init_shared(key: jax.Array) -> Params:
        return {
            half_name: {name: tree for name, tree in half.items() if "low" not in name.split("_")}
            for half_name, half in block(key).items()
        }

    return {
        "blocks": jax.vmap(init_shared)(jax.random.split(key, c.shared_blocks.n_blocks)),
        "block_uses": jax.vmap(init_use)(jax.random.split(key, len(c.shared_blocks.layers))),
    }


def _attentions(
    key: jax.Array, c: DecoderConfig, x: jax.Array, layout: Layout, inputs: PerLayer
) -> Params:
    """Create random attention of each size, stacked over its layers, or its layers with keys."""
    out = {}
    for index, config in enumerate(c.attention_configs()):
        layer_inputs = attention_kinds.trim_rotary(inputs, config)
        init_layer = functools.partial(
            Attention(config).init, x=x, layout=layout, inputs=layer_inputs
        )
        layers, with_keys = attention_kinds.layers_of(c, index)
        if not layers:
            continue
        stacked = jax.vmap(lambda key, init=init_layer: init(key)["params"])(
            jax.random.split(key, len(layers))
        )
        for name in set(attention_kinds.KEY_PARAMETERS) & set(stacked):
            keep_first = functools.partial(
                lax.slice_in_dim, start_index=0, limit_index=len(with_keys)
            )
            stacked[name] = jax.tree.map(keep_first, stacked[name])
        out[attention_kinds.KINDS[index]] = stacked
    return out
