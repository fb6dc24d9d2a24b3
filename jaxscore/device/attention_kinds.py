"""Layers of several kinds: attention of two sizes, of shared keys and values, and recurrences.

One program has all kinds of layers and branches in each layer. Parameters are stacked per kind;
keys and values leave a layer in arrays as large as the largest kind's.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.backends import Build
from jaxscore.device.decoder_config import NO_MIXER, RECURRENT, DecoderConfig
from jaxscore.device.dots import from_storage, to_storage
from jaxscore.device.feed_forward import MlpHalf
from jaxscore.device.layers import Layout, Linear, PerLayer
from jaxscore.device.recurrence.mixers import RecurrentHalf, empty_states
from jaxscore.device.self_attention import AttentionHalf, KeyValue

KINDS = ("main", "other")
KEY_PARAMETERS = ("k", "v", "k_norm")  # absent in a layer that shares another's keys


def stacked_by_kind(config: DecoderConfig) -> bool:
    """Whether the parameters of attention are stacked per kind, outside `layers`."""
    recurrent = config.recurrent
    several = config.attention.other_heads is not None or (
        recurrent is not None and not recurrent.beside
    )
    return several or bool(config.attention.keys_of) or config.mlp.layers is not None


def trim_rotary(own: PerLayer, here: DecoderConfig) -> PerLayer:
    """Inputs of a layer with cosines and sines cut to the head width of its kind."""
    if own.cos is None or own.sin is None or here.attention.latent is not None:
        return own
    pairs = here.attention.head_width // 2
    return own._replace(cos=own.cos[..., :pairs], sin=own.sin[..., :pairs])


def layers_of(config: DecoderConfig, kind: int) -> tuple[list[int], list[int]]:
    """Layers of a kind, and which of them compute their own keys and values."""
    mine = [i for i in range(config.n_layers) if config.kind_of(i) == kind]
    return mine, [
        i for i in mine if not config.attention.keys_of or config.attention.keys_of[i] == i
    ]


def cached_layers(config: DecoderConfig) -> list[int]:
    """Layers with keys and values, in the order of a KV cache."""
    return [i for i in range(config.n_layers) if config.has_attention(i)]


def _own_shape(here: DecoderConfig, build: Build) -> tuple[int, int]:
    """Key heads and channels of layers of one kind on one shard."""
    return 1 if build.whole_kv(
        here
    ) else here.attention.n_kv_heads // build.shards, here.attention.head_width


def cache_head_shape(config: DecoderConfig, build: Build) -> tuple[int, int]:
    """Key heads and channels of a KV cache on one shard: the largest kind's."""
    heads, widths = zip(
        *(_own_shape(kind, build) for kind in config.attention_configs()), strict=True
    )
    return max(heads), max(widths)


def to_cache(keys_values: KeyValue, config: DecoderConfig, build: Build, dtype: Any) -> Any:
    """Keys and values [R, L, K, H] as stored in a KV cache, [R, K, L, H]."""
    heads, width = cache_head_shape(config, build)

    def cache_layout(x: Array) -> Array:
        x = x.astype(dtype).swapaxes(1, 2)
        return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, 0), (0, width - x.shape[3])))

    return to_storage(tuple(map(cache_layout, keys_values)), build.backend.integers)


def sources_of(config: DecoderConfig, kind: int) -> list[int]:
    """Layers of a kind whose keys and values another layer shares."""
    used = {source for layer, source in enumerate(config.attention.keys_of) if source != layer}
    return [layer for layer in layers_of(config, kind)[1] if layer in used]


def empty_sources(shape: tuple[int, ...], config: DecoderConfig, build: Build) -> Any:
    """Zeros for shared keys and values of rows [R, L]: for each kind two arrays
    [sources, R, L, K, H]."""
    if not config.attention.keys_of:
        return ()
    shapes = [
        (len(sources_of(config, kind)), *shape, *_own_shape(here, build))
        for kind, here in enumerate(config.attention_configs())
    ]
    return tuple((jnp.zeros(one), jnp.zeros(one)) for one in shapes)


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """What the attention half of one layer takes.

    Attributes:
        params: of the decoder.
        weights: the layer's parameters that do not depend on its kind.
        layer: its index, which is data.
        x: the residual stream [R, L, D], of the shard's tokens if `build.tokens`.
        own: with caches of all layers if some layers have none.
        sources: shared keys and values so far, see `empty_sources`.
        states: of all recurrent layers before the rows; empty without.
    """

    params: Any
    config: DecoderConfig
    build: Build
    weights: Any
    layer: Array
    x: Array
    layout: Layout
    own: PerLayer
    sources: Any
    states: Any

    def attention_half(self) -> tuple[Array, Any, Any, Any]:
        """Attention, with a recurrence beside it or in its place, or nothing.

        Returns:
            What it adds, its keys and values as stored, `sources` for later layers, and the
            layer's states at `layout.paths.kept`.
        """
        config = self.config
        if stacked_by_kind(config):
            return self._of_kind()
        half = AttentionHalf(config, self.build)
        added, keys_values = half.apply({"params": self.weights}, self.x, self.layout, self.own)
        stored = self._stored(keys_values)
        if config.recurrent is None:
            return added, stored, self.sources, ()
        beside, after = self._recurrence(self.layer, self.x)
        return added + beside, stored, self.sources, after

    def _of_kind(self) -> Any:
        """Branches to the layer's kind."""
        config, (places, kind_of) = self.config, _places(self.config)
        here = {name: place[self.layer] for name, place in places.items()}
        kept = None if self.layout.paths is None else self.layout.paths.kept
        no_states = () if kept is None else empty_states(config, len(kept), self.build)

        def branch(kind: int, shares: bool) -> Any:
            if kind == RECURRENT:
                return self._without_keys(*self._recurrence(here["recurrent"], self.x))
            if kind == NO_MIXER:
                return self._without_keys(jnp.zeros_like(self.x), no_states)
            if config.shared_blocks is not None:
                return self._with_block(here)
            return *self._attention(here, kind, shares=shares), no_states

        combinations = sorted(set(kind_of))
        branches = [functools.partial(branch, *pair) for pair in combinations]
        index = jnp.asarray([combinations.index(pair) for pair in kind_of], jnp.int32)[self.layer]
        return lax.switch(index, branches)

    def _attention(
        self, here: Mapping[str, Array], kind: int, *, shares: bool
    ) -> tuple[Array, Any, Any]:
        """What attention of a kind adds, its keys and values as stored, and sources."""
        config, stack = (
            self.config.attention_configs()[kind],
            self.params["attentions"][KINDS[kind]],
        )

        def of_layer(name: str) -> Any:
            nth = here["keys" if name in KEY_PARAMETERS else "all"]
            return from_storage(jax.tree.map(lambda leaf: leaf[nth], stack[name]))

        names = [name for name in stack if not (shares and name in KEY_PARAMETERS)]
        tree = {"params": self.weights | {"attention": {name: of_layer(name) for name in names}}}
        slot, sources = here["source"], list(self.sources)
        shared = tuple(array[slot] for array in sources[kind]) if shares else None
        half, own = AttentionHalf(config, self.build), self._inputs_of(config, here)
        added, keys_values = half.apply(tree, self.x, self.layout, own, shared)
        if sources_of(self.config, kind) and not shares:
            # A layer without sharers has an out-of-bounds slot, which `drop` ignores.
            sources[kind] = tuple(
                room.at[slot].set(array, mode="drop")
                for room, array in zip(sources[kind], keys_values, strict=True)
            )
        return added, self._stored(keys_values), tuple(sources)

    def _with_block(self, here: Mapping[str, Array]) -> Any:
        """A shared block, and the recurrence that reads what it gives."""
        given, keys_values = self._block(here["all"], self._inputs_of(self.config, here))
        added, after = self._recurrence(here["recurrent"], self.x + given)
        return added, self._stored(keys_values), tuple(self.sources), after

    def _block(self, nth: Array, own: PerLayer) -> tuple[Array, KeyValue]:
        """Output of the shared block of the `nth` layer that uses one, and its keys and values."""
        blocks, layout = self.config.shared_blocks, self.layout
        assert blocks is not None
        assert layout.embedded is not None
        config, at = block_config(self.config), nth % blocks.n_blocks
        block = from_storage(jax.tree.map(lambda leaf: leaf[at], self.params["blocks"]))
        mine = from_storage(jax.tree.map(lambda leaf: leaf[nth], self.params["block_uses"]))
        tree = {"params": {name: part | mine.get(name, {}) for name, part in block.items()}}
        both = jnp.concatenate([self.x, layout.embedded], axis=-1)
        mixed, keys_values = AttentionHalf(config, self.build).apply(tree, both, layout, own)
        given, _ = MlpHalf(config, self.build).apply(tree, mixed)
        into = Linear(config.width, False, config.quantized)
        return into.apply({"params": mine["into"]}, given), keys_values

    def _recurrence(self, nth: Array, x: Array) -> tuple[Array, Any]:
        """What the `nth` recurrence adds to x, and its states at `layout.paths.kept`."""
        stacked = self.params["recurrent"], self.states
        mixer, states = jax.tree.map(lambda leaf: leaf[nth], stacked)
        variables = {"params": self.weights | {"mixer": from_storage(mixer)}}
        if states:
            variables["states"] = states
        is_kept, recurrent = self.layout.paths.kept is not None, self.config.recurrent
        half = RecurrentHalf(self.config, self.build)
        mutable = ["states"] if is_kept else []
        added, after = half.apply(variables, x, self.layout, mutable=mutable)
        if not is_kept:
            return added, ()
        kept = after.get("states", {})
        assert recurrent is not None
        if recurrent.has_state and "state" not in kept.get("mixer", {}):
            raise NotImplementedError(f"{recurrent.mixer} does not return its state")
        return added, kept

    def _inputs_of(self, config: DecoderConfig, here: Mapping[str, Array]) -> PerLayer:
        """Inputs of a layer with attention, cut to the sizes of its kind."""
        caches = self.own.caches
        if len(cached_layers(self.config)) < self.config.n_layers:
            nth = here["cached"]
            caches = tuple(c._replace(key=c.key[nth], value=c.value[nth]) for c in caches)
        caches = tuple(_trim_cache(cache, config, self.build) for cache in caches)
        return trim_rotary(self.own._replace(caches=caches), config)

    def _without_keys(self, added: Array, after: Any) -> Any:
        heads, width = cache_head_shape(self.config, self.build)
        none = jnp.zeros((*self.layout.position.shape, heads, width))
        return added, self._stored((none, none)), tuple(self.sources), after

    def _stored(self, keys_values: KeyValue) -> Any:
        return to_cache(keys_values, self.config, self.build, self.layout.dtype)


def block_config(config: DecoderConfig) -> DecoderConfig:
    """Config of the halves of `SharedBlocks`."""
    return config.replace(recurrent=None, mlp_layers=None)


def _trim_cache(cache: KVCache, here: DecoderConfig, build: Build) -> KVCache:
    """A layer's cache cut to the sizes of its kind."""
    heads, width = _own_shape(here, build)
    key, value = (x[:, :heads, :, :width] for x in (cache.key, cache.value))
    return cache._replace(key=key, value=value)


def _places(config: DecoderConfig) -> tuple[dict[str, Array], list[tuple[int, bool]]]:
    """Per layer: its index within its kind, its index among layers of that kind with own keys, its
    slot in `empty_sources`, its indices in KV caches and among recurrent layers, its kind, and
    whether it shares keys."""
    n = config.n_layers
    shares = [bool(config.attention.keys_of) and config.attention.keys_of[i] != i for i in range(n)]
    kinds = [config.kind_of(i) for i in range(n)]
    everyone = [kinds[:i].count(kinds[i]) for i in range(n)]
    cached = [sum(kind >= 0 for kind in kinds[:i]) for i in range(n)]
    with_keys = [sum(kinds[j] == kinds[i] and not shares[j] for j in range(i)) for i in range(n)]
    slots = {kind: sources_of(config, kind) for kind in set(kinds)}
    used = [config.attention.keys_of[i] if config.attention.keys_of else i for i in range(n)]
    source = [
        slots[kinds[i]].index(used[i]) if used[i] in slots[kinds[i]] else len(slots[kinds[i]])
        for i in range(n)
    ]
    recurrent = () if config.recurrent is None else config.recurrent.layers
    places = {
        "all": everyone,
        "keys": with_keys,
        "source": source,
        "cached": cached,
        "recurrent": [sum(j in recurrent for j in range(i)) for i in range(n)],
    }
    in_order = {name: jnp.asarray(values, jnp.int32) for name, values in places.items()}
    return in_order, list(zip(kinds, shares, strict=True))
