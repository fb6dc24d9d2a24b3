"""One decoder for every model family; `DecoderConfig` holds the differences between families.

The parameters of layers are stacked along a leading axis and scanned, so that 80 layers compile as
fast as two.
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
    """Keys, values and states of rows, which later tokens read.

    Attributes:
        key, value: keys and values of the N layers with attention, as stored.
        states: the states of all recurrent layers at the kept tokens, see `KVCache`.
    """

    key: Num[Array, "N R K L H"]
    value: Num[Array, "N R K L H"]
    states: Any = ()


# `extend` with its static arguments bound, or the equivalent function of another model
Extend = Callable[..., tuple[Float[Array, "R L D"], KeysValues]]


def map_token_blocks(
    function: Callable[[Array], Array], x: Float[Array, "R L D"], max_tokens: int | None
) -> Array:
    """Map a function over blocks of at most `max_tokens` tokens to bound the memory of wide MLPs.

    The three inner arrays of 4096 tokens of width 18944 take 310 MB each. Blocks also stay in the
    processor's cache.
    """
    n_tokens = x.shape[0] * x.shape[1]
    if max_tokens is None or n_tokens <= max_tokens:
        return function(x)
    block = next(n for n in range(max_tokens, 0, -1) if n_tokens % n == 0)
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
    """Return the final normed hidden state of every token, float32.

    Args:
        params: the parameters of one shard, see `init_params`.
        ids, position, subtree_end: see `rows.Rows`; positions include the tokens of `caches`.
        caches: keys and values of the preceding tokens, all layers, and states of recurrent layers.
        build: backend and mesh.
        paths: see `rows.Paths`; required by recurrent layers for rows of several tokens.

    Raises:
        ValueError: the decoder has recurrent layers, and `paths` is None.
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
    """Return `hidden_states`, and keys, values and states for later tokens.

    Args:
        kept: the tokens whose states are returned, indices of the flattened rows. Without `paths`,
            rows have one token; each row continues its own state, and all states are returned.
    """
    rows = ids, position, subtree_end
    return _run(params, config, *rows, caches, build, paths, kept, keep_kv=True)


def _embed(
    embed: Params, config: DecoderConfig, ids: Array, position: Array, build: Build
) -> Array:
    """Return the shard's embeddings [R, L, D], with learned or sinusoidal positions added."""
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
    """Inputs that all layers of a forward pass share.

    Attributes:
        caches: the keys and values of all layers.
        rotary: see `_rotary_tables`.
        states: the start states of all recurrent layers.
        ngrams: see `ngrams.NgramRun`; None without n-grams.
        scans_caches: True if every layer has keys and values; the caches are then scanned together
            with the parameters.
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
    ngram_run, ids_after = None, None
    if config.recurrent is not None:
        states = caches[-1].states if caches else ()
        index = _path_index(config, build, paths, subtree_end, states, kept)
        layout = dataclasses.replace(layout, paths=index)
    if config.ngrams is not None:
        states, ngram_states = _split_ngram_states(states)
        ngram_index = _path_index(
            config, build, paths, subtree_end, states, kept, config.ngrams.reach
        )
        ngram_run, ids_after = _run_ngrams(embed, config, ids, ngram_index, ngram_states, build)
    rotary = _rotary_tables(config, position)
    scans_caches = len(attention_kinds.cached_layers(config)) == config.n_layers
    run = _Run(params, config, build, layout, caches, rotary, states, ngram_run, scans_caches)
    per_layer = _per_layer_embeddings(embed, config, ids, x, build)
    sources = attention_kinds.empty_sources(ids.shape, config, build)
    if config.residual.streams is not None:
        x = residual_streams.expand(config, params.get("streams"), x)

    def step(carry: Any, layer: Any) -> Any:
        carry, layer_output = _layer(run, carry, *layer)
        return carry, layer_output if keep_kv else None

    cached = tuple((cache.key, cache.value) for cache in caches) if scans_caches else ()
    layers = jnp.arange(config.n_layers)
    stacked = params["layers"], cached, layers, _layer_inputs(config), per_layer
    initial_carry: Any = x, sources, jnp.zeros_like(x) if has_late else ()
    (x, *_), layer_outputs = lax.scan(step, initial_carry, stacked)
    if config.residual.streams is not None:
        x = residual_streams.merge(config, params["streams"], x)
    if config.head.norm:
        x = Norm(config).apply({"params": params["final_norm"]}, x)
    if config.embedding.width:
        x = dot_last(x, from_storage(params["out_of"]["weight"]))
    x = build.gathered(x, x.dtype).reshape(*ids.shape, -1)
    if not keep_kv:
        return x, None
    keys_values, states_after = layer_outputs
    return x, _select_outputs(config, keys_values, states_after, ids_after)


def _layer(
    run: _Run,
    carry: Any,
    weights: Params,
    cached: Any,
    layer: Array,
    layer_inputs: Any,
    embedding: Any,
) -> Any:
    """Run one layer: attention or a recurrence, then the MLP.

    Args:
        carry: the residual stream or streams; shared keys and values; the output of the previous
            layer's late mixture, which is added after this layer.
        cached: the layer's keys and values in each cache, or ().
        layer_inputs: the layer's slice of `_layer_inputs`.
        embedding: the layer's slice of `_per_layer_embeddings`.

    Returns:
        The carry of the next layer; and the layer's keys and values as stored, and its states.
    """
    config, build = run.config, run.build
    x, sources, late = carry
    weights, streams = from_storage(weights), x
    factors, cutoff = layer_inputs.pop("factors", None), layer_inputs.pop("cutoff", None)
    inputs = _attention_inputs(run, cached, layer_inputs)

    def attend(x: Array) -> tuple[Array, Any]:
        call = attention_kinds.LayerCall(
            run.params, config, build, weights, layer, x, run.layout, inputs, sources, run.states
        )
        added, *mlp_output = call.attention_half()
        return added, mlp_output

    def feed_forward(mlp_input: Array) -> tuple[Array, Any]:
        return _mlp_half(run.params, config, build, weights, layer, mlp_input, cutoff)

    if isinstance(config.residual.streams, HyperConnections):
        connections = weights["streams"]
        x, ngram_states = _add_ngrams(run, layer, x)
        x, attention_outputs = residual_streams.around(config, connections["attention"], x, attend)
        keys_values, sources, states = attention_outputs
        states = {**states, "ngrams": ngram_states} if ngram_states else states
        x, later = residual_streams.around(config, connections["mlp"], x, feed_forward)
        return (x, sources, later), (keys_values, states)
    if isinstance(config.residual.streams, AltUp):
        update = residual_streams.AlternatingUpdate(config).bind({"params": weights["streams"]})
        streams = update.predict(x)
        x = streams[config.residual.streams.active]
    added, (keys_values, sources, states) = attend(x)
    added = added * config.residual.branch_scale
    if factors is not None:
        x, added = x * factors[0], added * factors[1]
    mlp_input = (
        x
        if config.residual.parallel != "no"
        else _add_residual(config, weights, "attention", x, added)
    )
    mlp_output, later = feed_forward(mlp_input)
    mlp_output *= config.residual.branch_scale
    if factors is not None:
        mlp_input, mlp_output = mlp_input * factors[2], mlp_output * factors[3]
    if config.residual.parallel != "no":
        x = x + added + mlp_output
    else:
        x = _add_residual(config, weights, "mlp", mlp_input, mlp_output)
    if config.experts is not None and config.experts.late:
        x += late
    gated = x
    if config.residual.streams is not None:
        x, gated = update.correct(streams, x)
    if config.embedding.per_layer_width:
        half = PerLayerInput(config)
        mlp_output = half.apply({"params": weights["per_layer"]}, gated, embedding)
        x = x + mlp_output if config.residual.streams is None else x.at[1:].add(mlp_output)
    if config.residual.layer_scale:
        x *= weights["layer_scale"]
    return (x, sources, later), (keys_values, states)


def _split_ngram_states(states: Any) -> tuple[Any, Any]:
    """Split states into those of recurrences and those of n-grams; () each if there are none."""
    if not states:
        return (), ()
    recurrent_states = {name: state for name, state in states.items() if name != "ngrams"}
    return recurrent_states, states.get("ngrams", {})


def _empty_ngram_states(config: DecoderConfig, *n: int) -> Any:
    """Return zero states [*n, channels, tokens] for the convolutions of n-grams."""
    ngram_config, streams = config.ngrams, config.residual.streams
    assert ngram_config is not None
    assert streams is not None
    if ngram_config.taps == 1:
        return {}
    return {
        "conv": {"inputs": jnp.zeros((*n, streams.n_streams * config.width, ngram_config.reach))}
    }


def _run_ngrams(
    embed: Params,
    config: DecoderConfig,
    ids: Array,
    index: PathIndex | None,
    states_before: Any,
    build: Build,
) -> tuple[ngrams.NgramRun, Array | None]:
    """Return the inputs of layers with n-grams, and the token ids from `ngrams.kept_ids`."""
    ngram_config = config.ngrams
    assert ngram_config is not None
    assert index is not None
    ids_before = states_before["ids"][0] if states_before else None
    size = len(ngram_config.tables[0].multipliers)
    tokens = ngrams.path_tokens(ids, size, ngram_config.separator, index, ids_before)
    n_rows, embeddings = math.gcd(*(table.rows for table in ngram_config.tables)), []
    for k, table in enumerate(ngram_config.tables):
        rows = ngrams.hashed_rows(tokens, table).reshape(*ids.shape, -1)
        stored = embed["ngrams"][str(k)]["token"]
        embeddings.append(_lookup(stored, rows, build, n_rows))
    states = (
        {name: ngram_config for name, ngram_config in states_before.items() if name != "ids"}
        if states_before
        else ()
    )
    run = ngrams.NgramRun(jnp.stack(embeddings), index, states)
    return run, ngrams.kept_ids(ids, index, ids_before)


def _add_ngrams(run: _Run, layer: Array, x: Array) -> tuple[Array, Any]:
    """Add n-grams to the streams if the layer has them; return streams and n-gram states."""
    config, ngram_run = run.config, run.ngrams
    if ngram_run is None:
        return x, ()
    assert config.ngrams is not None
    half, layers = ngrams.NgramHalf(config, run.build), config.ngrams.layers
    nth = jnp.asarray([sum(n < k for n in layers) for k in range(config.n_layers)])[layer]
    kept = ngram_run.paths.kept
    mutable = [] if kept is None else ["states"]

    def add() -> tuple[Array, Any]:
        stacked = run.params["ngrams"], ngram_run.embedding, ngram_run.states
        params, embedding, states = jax.tree.map(lambda leaf: leaf[nth], stacked)
        variables = {"params": from_storage(params)} | ({"states": states} if states else {})
        added, updated = half.apply(variables, x, embedding, ngram_run.paths, mutable=mutable)
        return x + added, updated.get("states", {})

    no_states = {} if kept is None else _empty_ngram_states(config, len(kept))
    has_ngrams = jnp.asarray([n in layers for n in range(config.n_layers)])[layer]
    added: tuple[Array, Any] = lax.cond(has_ngrams, add, lambda: (x, no_states))
    return added


def _attention_inputs(run: _Run, cached: Any, layer_inputs: dict[str, Array]) -> PerLayer:
    """Return the inputs of the layer's attention; `cached` is its slice of the scanned caches."""
    caches = run.caches
    if run.scans_caches:  # otherwise each layer type selects its own
        caches = tuple(
            cache._replace(key=key, value=value)
            for cache, (key, value) in zip(caches, cached, strict=True)
        )
    table = layer_inputs.pop("table", None)
    angles = {} if table is None else {"cos": run.rotary[0][table], "sin": run.rotary[1][table]}
    return PerLayer(layer_inputs.pop("window", None), caches, **angles, **layer_inputs)


def _per_layer_embeddings(
    embed: Params, config: DecoderConfig, ids: Array, x: Array, build: Build
) -> Any:
    """Return `feed_forward.per_layer_inputs`, or () without per-layer embeddings."""
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
    """Return the path index of rows.

    Args:
        states: the start states of the rows, or ().
        n_ancestors: number of ancestors per token, for an index without chunks; None is the number
            that recurrent layers read, with chunks.
    """
    assert config.recurrent is not None
    R, L = subtree_end.shape
    if paths is None:
        if L > 1:
            raise ValueError(
                "paths is None: recurrent layers need paths for rows of several tokens"
            )
        return mixers.single_tokens(config, R, n_ancestors)
    n_starts = max((leaf.shape[1] for leaf in jax.tree.leaves(states)), default=1)
    if n_ancestors is None:
        n_ancestors = config.recurrent.mixer.taps - 1
    else:
        paths = paths._replace(chunks=None)
    options = build.backend.chunks_at_once, build.backend.convolves_by_products
    return path_index(paths, subtree_end, n_ancestors, n_starts, kept, *options)


def empty_states(config: DecoderConfig, n_rows: int, build: Build = ON_CPU) -> Any:
    """Return zero states of all recurrent layers for `n_rows` tokens, on one shard."""
    if config.recurrent is None:
        return ()
    n_layers = len(config.recurrent.layers)
    layer_states = mixers.empty_states(config, n_rows, build)
    states = jax.tree.map(lambda leaf: jnp.zeros((n_layers, *leaf.shape)), layer_states)
    if (ngram_config := config.ngrams) is None:
        return states
    ngram_states = _empty_ngram_states(config, len(ngram_config.layers), n_rows)
    ids = jnp.zeros((1, n_rows, 1, ngram_config.reach))
    return states | {"ngrams": ngram_states | {"ids": ids}}


def _select_outputs(
    config: DecoderConfig,
    keys_values: tuple[Array, Array],
    states: Any,
    ids: Array | None,
) -> KeysValues:
    """Select the outputs of scanned layers: keys and values of attention, states of recurrences,
    and states and `ids` of n-grams."""
    cached = np.array(attention_kinds.cached_layers(config), np.int32)
    if config.recurrent is None and len(cached) == config.n_layers:
        return KeysValues(*keys_values)
    key, value = (leaf[cached] for leaf in keys_values)
    if config.recurrent is None:
        return KeysValues(key, value)
    layers = config.recurrent.layers
    ngram_states = None
    if ids is not None:
        states, ngram_states = _split_ngram_states(states)
    states = jax.tree.map(lambda leaf: leaf[np.array(layers, np.int32)], states)
    if ids is not None and config.ngrams is not None:
        layers = config.ngrams.layers
        ngram_states = jax.tree.map(lambda leaf: leaf[np.array(layers, np.int32)], ngram_states)
        states |= {"ngrams": {**ngram_states, "ids": ids[None]}}
    return KeysValues(key, value, states)


def _layer_inputs(config: DecoderConfig) -> dict[str, Array]:
    """Return per-layer inputs stacked over layers, without features that no layer uses."""
    inputs = {}
    if any(config.attention.scores.windows):
        inputs["window"] = jnp.asarray(config.attention.scores.windows, jnp.int32)
    if config.positions.rotary:
        inputs["table"] = jnp.asarray(config.positions.rotary_of, jnp.int32)
    if config.residual.sum_factors:
        inputs["factors"] = jnp.asarray(config.residual.sum_factors, jnp.float32)
    if config.mlp.cutoffs:
        cutoffs = [math.nan if cutoff is None else cutoff for cutoff in config.mlp.cutoffs]
        inputs["cutoff"] = jnp.asarray(cutoffs, jnp.float32)
    if config.attention.qk_norm.layers:
        inputs["qk_normed"] = jnp.asarray(config.attention.qk_norm.layers)
    if config.attention.scores.query_growth is not None:
        inputs["growth"] = jnp.asarray(config.attention.scores.query_growth.shares, jnp.float32)
    return inputs


def _mlp_half(
    params: Params,
    config: DecoderConfig,
    build: Build,
    weights: Params,
    layer: Array,
    x: Array,
    cutoff: Array | None,
) -> tuple[Array, Any]:
    """Return the output of a layer's MLP or mixture, and the output to add after the next layer.

    If the model has several MLP types, parameters are stacked per type and the program branches.
    """
    is_recurrent = None
    if config.norm.place == "mixed":
        assert config.recurrent is not None
        is_recurrent_layer = [n in config.recurrent.layers for n in range(config.n_layers)]
        is_recurrent = jnp.asarray(is_recurrent_layer)[layer]

    def without_late(added: Array) -> tuple[Array, Any]:
        has_late = config.experts is not None and config.experts.late
        return added, jnp.zeros_like(added) if has_late else ()

    def plain(layer_weights: Params, width: int | None = None) -> tuple[Array, Any]:
        half = MlpHalf(config, build, width)

        def apply_block(block: Array) -> Array:
            added: Array = half.apply({"params": layer_weights}, block, None, is_recurrent, cutoff)[
                0
            ]
            return added

        return without_late(map_token_blocks(apply_block, x, build.backend.mlp_tokens))

    def main(layer_weights: Params, nth: Array) -> tuple[Array, Any]:
        if config.experts is None:
            return plain(layer_weights)
        run = _bind_mixture(params["experts"], config, config.experts, build, nth)
        return MlpHalf(config, build).apply({"params": layer_weights}, x, run, is_recurrent)

    if not config.mlps_by_kind:
        return main(weights, layer)
    type_of = {n: mlp_type for mlp_type, layers in config.mlp_kinds().items() for n in layers}
    mlp_types = [type_of.get(n, "") for n in range(config.n_layers)]
    nth = [mlp_types[:n].count(mlp_types[n]) for n in range(config.n_layers)]  # index in type
    index_in_type = jnp.asarray(nth, jnp.int32)[layer]

    def branch(mlp_type: str) -> tuple[Array, Any]:
        if not mlp_type:
            return without_late(jnp.zeros_like(x))
        mlp = jax.tree.map(lambda leaf: leaf[index_in_type], params["mlps"][mlp_type])
        layer_weights, other = weights | {"mlp": from_storage(mlp)}, config.mlp.other
        if mlp_type == "main":
            return main(layer_weights, index_in_type)
        assert other is not None
        return plain(layer_weights, other.width)

    present = sorted(set(mlp_types))
    branch_index = jnp.asarray([present.index(mlp_type) for mlp_type in mlp_types], jnp.int32)[
        layer
    ]
    branches = [functools.partial(branch, mlp_type) for mlp_type in present]
    added: tuple[Array, Any] = lax.switch(branch_index, branches)
    return added


def _bind_mixture(
    weights: Params, config: DecoderConfig, experts: Experts, build: Build, nth: Array
) -> Callable[..., Any]:
    """Bind `mixture` to the experts of the nth layer that has experts."""
    if has_shards(weights):
        # Gather outside the loops of `mixture`, whose trip count differs between shards.
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
    """Return sinusoidal embeddings: sines, then cosines, of wavelengths 2 pi to 10,000 * 2 pi
    (arXiv 1706.03762)."""
    half = width // 2
    frequency = jnp.exp(jnp.arange(half, dtype=jnp.float32) * -(math.log(10_000) / (half - 1)))
    angle = position[..., None].astype(jnp.float32) * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def _lookup(table: Array, ids: Array, build: Build, n_rows: int) -> Array:
    """Look up float32 rows of the shard's tokens; of several ids per token [R, L, H], concatenate
    the rows. If the embedding's `n_rows` are split over shards, sum over shards."""
    if build.axis is None or n_rows % build.shards:
        rows = from_storage(table[build.own_tokens(ids)]).astype(jnp.float32)
        return rows.reshape(*rows.shape[:2], -1)
    local_ids = ids - lax.axis_index(build.axis) * table.shape[0]
    is_local = (local_ids >= 0) & (local_ids < table.shape[0])
    rows = from_storage(table[jnp.where(is_local, local_ids, 0)]).astype(jnp.float32)
    rows = jnp.where(is_local[..., None], rows, 0.0)
    return build.summed(rows.reshape(*ids.shape[:2], -1))


def _rotary_tables(config: DecoderConfig, position: Array) -> tuple[Array, ...]:
    """Return cosines and sines of all rotary tables [tables, R, L, 1, pairs], or ()."""
    if not config.positions.rotary:
        return ()
    frequencies = jnp.asarray([table.frequencies for table in config.positions.rotary], jnp.float32)
    factor = jnp.asarray([table.factor for table in config.positions.rotary], jnp.float32)
    angle = position[None, :, :, None, None] * frequencies[:, None, None, None]
    return tuple(f(angle) * factor[:, None, None, None, None] for f in (jnp.cos, jnp.sin))


def _add_residual(
    config: DecoderConfig, weights: Params, half: str, x: Array, added: Array
) -> Array:
    """Add the output of a half to the residual stream, and norm the sum if the model does."""
    x = x + added
    if config.norm.place != "residual":
        return x
    return Norm(config).apply({"params": weights[f"{half}_norm"]}, x)


def unembedding(params: Params, config: DecoderConfig, build: Build = ON_CPU) -> Unembedding:
    """Return the LM head of a decoder on one shard."""
    weight = gathered(params["embed"]["token"] if config.head.tied else params["unembed"]["weight"])
    bias = params["unembed"]["bias"] if config.head.bias else None
    scale, softcap = config.head.scale, config.head.softcap
    axis = build.vocabulary_axis(config)
    return Unembedding(weight, bias, scale, softcap, axis, build.backend)
