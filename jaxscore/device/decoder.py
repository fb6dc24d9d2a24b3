"""One decoder for every model family; `DecoderConfig` holds the differences between families.

The layers' parameters are stacked along a leading axis and scanned, so that a program of 80 layers
compiles as fast as one of two.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num

from jaxscore.device import attention_kinds, ngrams
from jaxscore.device import streams as residual_streams
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.backends import ON_CPU, Build
from jaxscore.device.decoder_config import AltUp, DecoderConfig, Experts, HyperConnections
from jaxscore.device.dots import compute_dtype, dot_last, from_storage, gathered, has_shards
from jaxscore.device.experts import mixture
from jaxscore.device.feed_forward import MlpHalf, PerLayerInput, gate_function, per_layer_inputs
from jaxscore.device.layers import Layout, Norm, PerLayer
from jaxscore.device.recurrence import mixers
from jaxscore.device.recurrence.paths import PathIndex, path_index
from jaxscore.device.rows import Paths, Unembedding

Params = dict[str, Any]


class KeysValues(NamedTuple):
    """What later tokens need of some rows.

    Attributes:
        key, value: of the N layers with attention, as stored.
        states: of all recurrent layers at some tokens, see `KVCache`.
    """

    key: Num[Array, "N R K L H"]
    value: Num[Array, "N R K L H"]
    states: Any = ()


# `extend` after a build, or the same of another model
Extend = Callable[..., tuple[Float[Array, "R L D"], KeysValues]]


def map_token_blocks(
    function: Callable[[Array], Array], x: Float[Array, "R L D"], most: int | None
) -> Array:
    """Maps a function over blocks of at most `most` tokens, which bounds the memory of wide MLPs.

    4096 tokens of width 18944 take three times 310 MB; blocks also stay in the processor's cache.
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
    paths: Paths | None = None,
) -> Float[Array, "R L D"]:
    """Final normed hidden state of every token, float32.

    Args:
        params: of one shard, as from `init_params`.
        ids, position, subtree_end: see `rows.Rows`; `position` counts the tokens of `caches`.
        caches: keys and values before the rows, of all layers, and states of recurrent layers.
        build: backend and mesh.
        paths: see `rows.Paths`; recurrent layers need them for rows of several tokens.

    Raises:
        ValueError: recurrent layers without `paths`.
    """
    rows = ids, position, subtree_end
    return _run(params, config, *rows, caches, build, paths, None, keep_kv=False)[0]


def extend(
    params: Params,
    config: DecoderConfig,
    ids: Int[Array, "R L"],
    position: Int[Array, "R L"],
    subtree_end: Int[Array, "R L"],
    caches: tuple[KVCache, ...] = (),
    build: Build = ON_CPU,
    paths: Paths | None = None,
    kept: Int[Array, " E"] | None = None,
) -> tuple[Float[Array, "R L D"], KeysValues]:
    """`hidden_states`, and what later tokens need.

    Args:
        kept: tokens at which states are returned, indices of the flattened rows. Rows of one token
            without `paths` each continue a state of their own and return all.
    """
    rows = ids, position, subtree_end
    return _run(params, config, *rows, caches, build, paths, kept, keep_kv=True)


def _embed(
    embed: Params, config: DecoderConfig, ids: Array, position: Array, build: Build
) -> Array:
    """Embeddings [R, L, D], of the shard's tokens, with learned or sinusoidal positions."""
    x = _lookup(embed["token"], ids, build, config.vocab_size) * config.embedding.scale
    position = build.own_tokens(position)
    if config.embedding.width:
        x = dot_last(x, from_storage(embed["into"]["weight"]))
    if config.positions.learned_positions:
        x += from_storage(embed["position"][position]).astype(jnp.float32)
    if config.positions.sinusoidal_from is not None:
        x += _sinusoidal(position + config.positions.sinusoidal_from, config.width)
    if config.embedding.norm:
        x = Norm(config).apply({"params": embed["norm"]}, x)
    return x


class _Run(NamedTuple):
    """What all layers of a run share.

    Attributes:
        caches: keys and values of all layers.
        rotary: see `_rotary_tables`.
        states: of all recurrent layers before the rows.
        ngrams: see `ngrams.NgramRun`; None without.
        scans_caches: each layer has keys and values, which are scanned beside its parameters.
    """

    params: Params
    config: DecoderConfig
    build: Build
    layout: Layout
    caches: tuple[KVCache, ...]
    rotary: tuple[Array, ...]
    states: Any
    ngrams: ngrams.NgramRun | None
    scans_caches: bool


def _run(
    params: Params,
    config: DecoderConfig,
    ids: Array,
    position: Array,
    subtree_end: Array,
    caches: tuple[KVCache, ...],
    build: Build,
    paths: Paths | None,
    kept: Array | None,
    *,
    keep_kv: bool,
) -> tuple[Array, Any]:
    embed, has_late = gathered(params["embed"]), config.experts is not None and config.experts.late
    dtype = compute_dtype(embed["token"])
    build = build.splitting_tokens(ids.shape, jnp.promote_types(dtype, config.quantized or dtype))
    x = _embed(embed, config, ids, position, build)
    layout = Layout(position, subtree_end, dtype, embedded=x)
    states: Any = ()
    of_ngrams, ids_after = None, None
    if config.recurrent is not None:
        states = caches[-1].states if caches else ()
        index = _path_index(config, build, paths, subtree_end, states, kept)
        layout = dataclasses.replace(layout, paths=index)
    if config.ngrams is not None:
        states, before = _without_ngrams(states)
        far = _path_index(config, build, paths, subtree_end, states, kept, config.ngrams.reach)
        of_ngrams, ids_after = _run_ngrams(embed, config, ids, far, before, build)
    rotary = _rotary_tables(config, position)
    scans_caches = len(attention_kinds.cached_layers(config)) == config.n_layers
    run = _Run(params, config, build, layout, caches, rotary, states, of_ngrams, scans_caches)
    per_layer = _per_layer_embeddings(embed, config, ids, x, build)
    sources = attention_kinds.empty_sources(ids.shape, config, build)
    if config.residual.streams is not None:
        x = residual_streams.expand(config, params.get("streams"), x)

    def step(carry: Any, layer: Any) -> Any:
        carry, made = _layer(run, carry, *layer)
        return carry, made if keep_kv else None

    cached = tuple((cache.key, cache.value) for cache in caches) if scans_caches else ()
    layers = jnp.arange(config.n_layers)
    stacked = params["layers"], cached, layers, _layer_inputs(config), per_layer
    start: Any = x, sources, jnp.zeros_like(x) if has_late else ()
    (x, *_), kept_of = lax.scan(step, start, stacked)
    if config.residual.streams is not None:
        x = residual_streams.merge(config, params["streams"], x)
    if config.head.norm:
        x = Norm(config).apply({"params": params["final_norm"]}, x)
    if config.embedding.width:
        x = dot_last(x, from_storage(params["out_of"]["weight"]))
    x = build.gathered(x, x.dtype).reshape(*ids.shape, -1)
    if not keep_kv:
        return x, None
    keys_values, after = kept_of
    return x, _of_kinds(config, keys_values, after, ids_after)


def _layer(
    run: _Run, carry: Any, weights: Params, cached: Any, layer: Array, own: Any, embedding: Any
) -> Any:
    """Attention or a recurrence, then the MLP.

    Args:
        carry: the residual stream, or several; shared keys and values; what the mixture of the
            layer before adds after this one.
        cached: the layer's keys and values of each cache, or ().
        own: the layer's part of `_layer_inputs`.
        embedding: the layer's part of `_per_layer_embeddings`.

    Returns:
        The carry of the next layer; keys and values as stored, and states.
    """
    config, build = run.config, run.build
    x, sources, late = carry
    weights, streams = from_storage(weights), x
    factors, cutoff = own.pop("factors", None), own.pop("cutoff", None)
    inputs = _attention_inputs(run, cached, own)

    def attend(x: Array) -> tuple[Array, Any]:
        call = attention_kinds.LayerCall(
            run.params, config, build, weights, layer, x, run.layout, inputs, sources, run.states
        )
        added, *more = call.attention_half()
        return added, more

    def feed_forward(read: Array) -> tuple[Array, Any]:
        return _mlp_half(run.params, config, build, weights, layer, read, cutoff)

    if isinstance(config.residual.streams, HyperConnections):
        around = weights["streams"]
        x, of_ngrams = _add_ngrams(run, layer, x)
        x, of_keys = residual_streams.around(config, around["attention"], x, attend)
        keys_values, sources, after = of_keys
        after = {**after, "ngrams": of_ngrams} if of_ngrams else after
        x, later = residual_streams.around(config, around["mlp"], x, feed_forward)
        return (x, sources, later), (keys_values, after)
    if isinstance(config.residual.streams, AltUp):
        update = residual_streams.AlternatingUpdate(config).bind({"params": weights["streams"]})
        streams = update.predict(x)
        x = streams[config.residual.streams.active]
    added, (keys_values, sources, after) = attend(x)
    added = added * config.residual.branch_scale
    if factors is not None:
        x, added = x * factors[0], added * factors[1]
    read = (
        x
        if config.residual.parallel != "no"
        else _add_residual(config, weights, "attention", x, added)
    )
    more, later = feed_forward(read)
    more *= config.residual.branch_scale
    if factors is not None:
        read, more = read * factors[2], more * factors[3]
    if config.residual.parallel != "no":
        x = x + added + more
    else:
        x = _add_residual(config, weights, "mlp", read, more)
    if config.experts is not None and config.experts.late:
        x += late
    gated = x
    if config.residual.streams is not None:
        x, gated = update.correct(streams, x)
    if config.embedding.per_layer_width:
        half = PerLayerInput(config)
        more = half.apply({"params": weights["per_layer"]}, gated, embedding)
        x = x + more if config.residual.streams is None else x.at[1:].add(more)
    if config.residual.layer_scale:
        x *= weights["layer_scale"]
    return (x, sources, later), (keys_values, after)


def _without_ngrams(states: Any) -> tuple[Any, Any]:
    """States of recurrences, and of n-grams, or () each."""
    if not states:
        return (), ()
    others = {name: own for name, own in states.items() if name != "ngrams"}
    return others, states.get("ngrams", {})


def _empty_ngram_states(config: DecoderConfig, *n: int) -> Any:
    """Zero states [*n, channels, tokens] of the convolutions of n-grams."""
    own, streams = config.ngrams, config.residual.streams
    assert own is not None
    assert streams is not None
    if own.taps == 1:
        return {}
    return {"conv": {"inputs": jnp.zeros((*n, streams.n_streams * config.width, own.reach))}}


def _run_ngrams(
    embed: Params,
    config: DecoderConfig,
    ids: Array,
    index: PathIndex | None,
    before: Any,
    build: Build,
) -> tuple[ngrams.NgramRun, Array | None]:
    """What layers with n-grams share, and the tokens that later ones need, see `kept_ids`."""
    own = config.ngrams
    assert own is not None
    assert index is not None
    ids_before = before["ids"][0] if before else None
    size = len(own.tables[0].multipliers)
    tokens = ngrams.path_tokens(ids, size, own.separator, index, ids_before)
    n_rows, made = math.gcd(*(table.rows for table in own.tables)), []
    for k, table in enumerate(own.tables):
        rows = ngrams.hashed_rows(tokens, table).reshape(*ids.shape, -1)
        stored = embed["ngrams"][str(k)]["token"]
        made.append(_lookup(stored, rows, build, n_rows))
    states = {name: own for name, own in before.items() if name != "ids"} if before else ()
    run = ngrams.NgramRun(jnp.stack(made), index, states)
    return run, ngrams.kept_ids(ids, index, ids_before)


def _add_ngrams(run: _Run, layer: Array, x: Array) -> tuple[Array, Any]:
    """The streams, with n-grams if the layer has them, and their states at the kept tokens."""
    config, own = run.config, run.ngrams
    if own is None:
        return x, ()
    assert config.ngrams is not None
    half, layers = ngrams.NgramHalf(config, run.build), config.ngrams.layers
    nth = jnp.asarray([sum(n < k for n in layers) for k in range(config.n_layers)])[layer]
    kept = own.paths.kept
    mutable = [] if kept is None else ["states"]

    def add() -> tuple[Array, Any]:
        stacked = run.params["ngrams"], own.embedding, own.states
        params, embedding, states = jax.tree.map(lambda leaf: leaf[nth], stacked)
        variables = {"params": from_storage(params)} | ({"states": states} if states else {})
        added, after = half.apply(variables, x, embedding, own.paths, mutable=mutable)
        return x + added, after.get("states", {})

    none = {} if kept is None else _empty_ngram_states(config, len(kept))
    has_ngrams = jnp.asarray([n in layers for n in range(config.n_layers)])[layer]
    added: tuple[Array, Any] = lax.cond(has_ngrams, add, lambda: (x, none))
    return added


def _attention_inputs(run: _Run, cached: Any, own: dict[str, Array]) -> PerLayer:
    """Inputs of the layer's attention; `cached` is its part of the caches that are scanned."""
    caches = run.caches
    if run.scans_caches:  # otherwise each kind of layer takes its own
        caches = tuple(
            cache._replace(key=key, value=value)
            for cache, (key, value) in zip(caches, cached, strict=True)
        )
    table = own.pop("table", None)
    angles = {} if table is None else {"cos": run.rotary[0][table], "sin": run.rotary[1][table]}
    return PerLayer(own.pop("window", None), caches, **angles, **own)


def _per_layer_embeddings(
    embed: Params, config: DecoderConfig, ids: Array, x: Array, build: Build
) -> Any:
    """See `feed_forward.per_layer_inputs`; () without."""
    if not config.embedding.per_layer_width:
        return ()
    n_rows = config.embedding.per_layer_rows or config.vocab_size
    rows = _lookup(embed["per_layer"]["token"], jnp.where(ids < n_rows, ids, 0), build, n_rows)
    return per_layer_inputs(embed, config, x, rows)


def _path_index(
    config: DecoderConfig,
    build: Build,
    paths: Paths | None,
    subtree_end: Array,
    states: Any,
    kept: Array | None,
    n_ancestors: int | None = None,
) -> PathIndex | None:
    """Index of rows that continue some states, with ancestors for the recurrent layers, or with
    so many and without chunks."""
    assert config.recurrent is not None
    R, L = subtree_end.shape
    if paths is None:
        if L > 1:
            raise ValueError("recurrent layers take paths for rows of several tokens")
        return mixers.single_tokens(config, R, n_ancestors)
    n_starts = max((leaf.shape[1] for leaf in jax.tree.leaves(states)), default=1)
    if n_ancestors is None:
        n_ancestors = config.recurrent.mixer.taps - 1
    else:
        paths = paths._replace(chunks=None)
    options = build.backend.chunks_at_once, build.backend.convolves_by_products
    return path_index(paths, subtree_end, n_ancestors, n_starts, kept, *options)


def empty_states(config: DecoderConfig, n_rows: int, build: Build = ON_CPU) -> Any:
    """Zero states of all recurrent layers at `n_rows` tokens, on one shard."""
    if config.recurrent is None:
        return ()
    n_layers = len(config.recurrent.layers)
    one = mixers.empty_states(config, n_rows, build)
    states = jax.tree.map(lambda leaf: jnp.zeros((n_layers, *leaf.shape)), one)
    if (own := config.ngrams) is None:
        return states
    of_ngrams = _empty_ngram_states(config, len(own.layers), n_rows)
    ids = jnp.zeros((1, n_rows, 1, own.reach))
    return states | {"ngrams": of_ngrams | {"ids": ids}}


def _of_kinds(
    config: DecoderConfig,
    keys_values: tuple[Array, Array],
    states: Any,
    ids: Array | None,
) -> KeysValues:
    """Keys and values of the layers that have them, states of recurrent ones, and what those with
    n-grams need: states and `ids`."""
    cached = np.array(attention_kinds.cached_layers(config), np.int32)
    if config.recurrent is None and len(cached) == config.n_layers:
        return KeysValues(*keys_values)
    key, value = (leaf[cached] for leaf in keys_values)
    if config.recurrent is None:
        return KeysValues(key, value)
    layers = config.recurrent.layers
    of_ngrams = None
    if ids is not None:
        states, of_ngrams = _without_ngrams(states)
    states = jax.tree.map(lambda leaf: leaf[np.array(layers, np.int32)], states)
    if ids is not None and config.ngrams is not None:
        layers = config.ngrams.layers
        of_ngrams = jax.tree.map(lambda leaf: leaf[np.array(layers, np.int32)], of_ngrams)
        states |= {"ngrams": {**of_ngrams, "ids": ids[None]}}
    return KeysValues(key, value, states)


def _layer_inputs(config: DecoderConfig) -> dict[str, Array]:
    """Per-layer inputs stacked over layers. Omits features that no layer uses."""
    own = {}
    if any(config.attention.scores.windows):
        own["window"] = jnp.asarray(config.attention.scores.windows, jnp.int32)
    if config.positions.rotary:
        own["table"] = jnp.asarray(config.positions.rotary_of, jnp.int32)
    if config.residual.sum_factors:
        own["factors"] = jnp.asarray(config.residual.sum_factors, jnp.float32)
    if config.mlp.cutoffs:
        cutoffs = [math.nan if one is None else one for one in config.mlp.cutoffs]
        own["cutoff"] = jnp.asarray(cutoffs, jnp.float32)
    if config.attention.qk_norm.layers:
        own["qk_normed"] = jnp.asarray(config.attention.qk_norm.layers)
    if config.attention.scores.query_growth is not None:
        own["growth"] = jnp.asarray(config.attention.scores.query_growth.shares, jnp.float32)
    return own


def _mlp_half(
    params: Params,
    config: DecoderConfig,
    build: Build,
    weights: Params,
    layer: Array,
    x: Array,
    cutoff: Array | None,
) -> tuple[Array, Any]:
    """What the layer's MLP or mixture adds to the residual stream, now and after the next layer.

    If layers have several kinds of MLP, parameters are stacked per kind and the program branches.
    """
    is_recurrent = None
    if config.norm.place == "mixed":
        assert config.recurrent is not None
        recurrent = [n in config.recurrent.layers for n in range(config.n_layers)]
        is_recurrent = jnp.asarray(recurrent)[layer]

    def now(added: Array) -> tuple[Array, Any]:
        has_late = config.experts is not None and config.experts.late
        return added, jnp.zeros_like(added) if has_late else ()

    def plain(own: Params, width: int | None = None) -> tuple[Array, Any]:
        half = MlpHalf(config, build, width)

        def of_block(part: Array) -> Array:
            added: Array = half.apply({"params": own}, part, None, is_recurrent, cutoff)[0]
            return added

        return now(map_token_blocks(of_block, x, build.backend.mlp_tokens))

    def main(own: Params, nth: Array) -> tuple[Array, Any]:
        if config.experts is None:
            return plain(own)
        run = _mixture_of(params["experts"], config, config.experts, build, nth)
        return MlpHalf(config, build).apply({"params": own}, x, run, is_recurrent)

    if not config.mlps_by_kind:
        return main(weights, layer)
    kind_of = {n: kind for kind, layers in config.mlp_kinds().items() for n in layers}
    kinds = [kind_of.get(n, "") for n in range(config.n_layers)]
    nth = [kinds[:n].count(kinds[n]) for n in range(config.n_layers)]  # within its kind
    here = jnp.asarray(nth, jnp.int32)[layer]

    def branch(kind: str) -> tuple[Array, Any]:
        if not kind:
            return now(jnp.zeros_like(x))
        mlp = jax.tree.map(lambda leaf: leaf[here], params["mlps"][kind])
        own, other = weights | {"mlp": from_storage(mlp)}, config.mlp.other
        if kind == "main":
            return main(own, here)
        assert other is not None
        return plain(own, other.width)

    present = sorted(set(kinds))
    index = jnp.asarray([present.index(kind) for kind in kinds], jnp.int32)[layer]
    branches = [functools.partial(branch, kind) for kind in present]
    added: tuple[Array, Any] = lax.switch(index, branches)
    return added


def _mixture_of(
    weights: Params, config: DecoderConfig, experts: Experts, build: Build, nth: Array
) -> Callable[..., Any]:
    """`mixture` with the experts of one layer, the nth that has any."""
    if has_shards(weights):
        # Gathered here, outside the loops of `mixture`, which run as often as a shard needs.
        weights, nth = gathered(jax.tree.map(lambda leaf: leaf[nth][None], weights)), jnp.int32(0)
    return functools.partial(
        mixture,
        weights,
        nth,
        gate_function(config),
        quantized=config.quantized,
        build=build,
        weighs_input=experts.weighs_input,
        count=experts.count,
    )


def _sinusoidal(position: Array, width: int) -> Array:
    """Sines, then cosines, of wavelengths from 2 pi to 10,000 * 2 pi (arXiv 1706.03762)."""
    half = width // 2
    frequency = jnp.exp(jnp.arange(half, dtype=jnp.float32) * -(math.log(10_000) / (half - 1)))
    angle = position[..., None].astype(jnp.float32) * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def _lookup(table: Array, ids: Array, build: Build, n_rows: int) -> Array:
    """float32 rows of the shard's tokens, joined if a token has several ids [R, L, H]; shards of a
    split embedding of n_rows add up theirs."""
    if build.axis is None or n_rows % build.shards:
        rows = from_storage(table[build.own_tokens(ids)]).astype(jnp.float32)
        return rows.reshape(*rows.shape[:2], -1)
    own = ids - lax.axis_index(build.axis) * table.shape[0]
    here = (own >= 0) & (own < table.shape[0])
    rows = from_storage(table[jnp.where(here, own, 0)]).astype(jnp.float32)
    rows = jnp.where(here[..., None], rows, 0.0)
    return build.summed(rows.reshape(*ids.shape[:2], -1))


def _rotary_tables(config: DecoderConfig, position: Array) -> tuple[Array, ...]:
    """Cosines and sines of every rotary table, [tables, R, L, 1, pairs]; () without tables."""
    if not config.positions.rotary:
        return ()
    frequencies = jnp.asarray([table.frequencies for table in config.positions.rotary], jnp.float32)
    factor = jnp.asarray([table.factor for table in config.positions.rotary], jnp.float32)
    angle = position[None, :, :, None, None] * frequencies[:, None, None, None]
    return tuple(f(angle) * factor[:, None, None, None, None] for f in (jnp.cos, jnp.sin))


def _add_residual(
    config: DecoderConfig, weights: Params, half: str, x: Array, added: Array
) -> Array:
    """The residual stream after one half of a layer, normed if the model norms there."""
    x = x + added
    if config.norm.place != "residual":
        return x
    return Norm(config).apply({"params": weights[f"{half}_norm"]}, x)


def unembedding(params: Params, config: DecoderConfig, build: Build = ON_CPU) -> Unembedding:
    """The LM head of a decoder, on one shard."""
    weight = gathered(params["embed"]["token"] if config.head.tied else params["unembed"]["weight"])
    bias = params["unembed"]["bias"] if config.head.bias else None
    scale, softcap = config.head.scale, config.head.softcap
    axis = build.vocabulary_axis(config)
    return Unembedding(weight, bias, scale, softcap, axis, build.backend)
