"""Decoders with layers of several types: two attention sizes, shared keys and values, recurrences.

The program contains all layer types and branches in each layer. Parameters are stacked per type.
Keys and values are padded to the largest attention size of the model.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

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
    """Return True if attention parameters are stacked per layer type, outside `layers`."""
    recurrent = config.recurrent
    has_several_types = config.attention.other_heads is not None or (
        recurrent is not None and not recurrent.beside
    )
    return has_several_types or bool(config.attention.keys_of) or config.mlp.layers is not None


def trim_rotary(inputs: PerLayer, config: DecoderConfig) -> PerLayer:
    """Truncate the cosines and sines of a layer's inputs to its head width."""
    if inputs.cos is None or inputs.sin is None or config.attention.latent is not None:
        return inputs
    pairs = config.attention.head_width // 2
    return inputs._replace(cos=inputs.cos[..., :pairs], sin=inputs.sin[..., :pairs])


def layers_of(config: DecoderConfig, layer_type: int) -> tuple[list[int], list[int]]:
    """Return the layers of a type, and those of them that compute their own keys and values."""
    layers = [i for i in range(config.n_layers) if config.kind_of(i) == layer_type]
    return layers, [
        i for i in layers if not config.attention.keys_of or config.attention.keys_of[i] == i
    ]


def cached_layers(config: DecoderConfig) -> list[int]:
    """Return the layers with keys and values, in the order of a KV cache."""
    return [i for i in range(config.n_layers) if config.has_attention(i)]


def _head_shape(config: DecoderConfig, build: Build) -> tuple[int, int]:
    """Return the number of key heads and channels of one attention size on one shard."""
    return 1 if build.whole_kv(
        config
    ) else config.attention.n_kv_heads // build.shards, config.attention.head_width


def cache_head_shape(config: DecoderConfig, build: Build) -> tuple[int, int]:
    """Return the key heads and channels of a KV cache on one shard: the maxima over layers."""
    heads, widths = zip(
        *(_head_shape(attention_config, build) for attention_config in config.attention_configs()),
        strict=True,
    )
    return max(heads), max(widths)


def sources_of(config: DecoderConfig, layer_type: int) -> list[int]:
    """Return the layers of a type whose keys and values other layers reuse."""
    used = {source for layer, source in enumerate(config.attention.keys_of) if source != layer}
    return [layer for layer in layers_of(config, layer_type)[1] if layer in used]


def empty_sources(shape: tuple[int, ...], config: DecoderConfig, build: Build) -> Any:
    """Return zeros for the shared keys and values of rows [R, L].

    Returns:
        Two arrays [sources, R, L, K, H] for each attention size, or () if no layers share.
    """
    if not config.attention.keys_of:
        return ()
    shapes = [
        (len(sources_of(config, index)), *shape, *_head_shape(kind_config, build))
        for index, kind_config in enumerate(config.attention_configs())
    ]
    return tuple((jnp.zeros(shape_of_kind), jnp.zeros(shape_of_kind)) for shape_of_kind in shapes)


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """Inputs of the attention half of one layer.

    Attributes:
        params: the decoder's parameters.
        weights: the layer's parameters that every layer type has.
        layer: the layer's index, a traced value.
        x: the residual stream [R, L, D], of the shard's tokens if `build.tokens`.
        inputs: the layer's inputs; if some layers have no keys and values, with the caches of all
            layers.
        sources: shared keys and values of earlier layers, see `empty_sources`.
        states: the start states of all recurrent layers; empty if there are none.
    """

    params: Any
    config: DecoderConfig
    build: Build
    weights: Any
    layer: Array
    x: Array
    layout: Layout
    inputs: PerLayer
    sources: Any
    states: Any

    def attention_half(self) -> tuple[Array, Any, Any, Any]:
        """Run attention, a recurrence, or both in parallel, or neither.

        Returns:
            The output, the keys and values as stored, the `sources` of later layers, and the
            layer's states at `layout.paths.kept`.
        """
        config = self.config
        if stacked_by_kind(config):
            return self._branch_by_type()
        half = AttentionHalf(config, self.build)
        added, keys_values = half.apply({"params": self.weights}, self.x, self.layout, self.inputs)
        stored = self._stored(keys_values)
        if config.recurrent is None:
            return added, stored, self.sources, ()
        recurrent_output, states = self._recurrence(self.layer, self.x)
        return added + recurrent_output, stored, self.sources, states

    def _branch_by_type(self) -> Any:
        """Run the branch of the layer's type."""
        config, (indices, layer_types) = self.config, _layer_indices(self.config)
        layer_indices = {name: index[self.layer] for name, index in indices.items()}
        kept_tokens = None if self.layout.paths is None else self.layout.paths.kept
        no_states = (
            () if kept_tokens is None else empty_states(config, len(kept_tokens), self.build)
        )

        def branch(layer_type: int, shares: bool) -> Any:
            if layer_type == RECURRENT:
                return self._without_keys(*self._recurrence(layer_indices["recurrent"], self.x))
            if layer_type == NO_MIXER:
                return self._without_keys(jnp.zeros_like(self.x), no_states)
            if config.shared_blocks is not None:
                return self._with_block(layer_indices)
            return *self._attention(layer_indices, layer_type, shares=shares), no_states

        combinations = sorted(set(layer_types))
        branches = [functools.partial(branch, *pair) for pair in combinations]
        branch_index = jnp.asarray([combinations.index(pair) for pair in layer_types], jnp.int32)[
            self.layer
        ]
        return lax.switch(branch_index, branches)

    def _attention(
        self, layer_indices: Mapping[str, Array], layer_type: int, *, shares: bool
    ) -> tuple[Array, Any, Any]:
        """Return the output of attention, its keys and values as stored, and the sources."""
        config, stack = (
            self.config.attention_configs()[layer_type],
            self.params["attentions"][KINDS[layer_type]],
        )

        def weights_of(name: str) -> Any:
            index = layer_indices["keys" if name in KEY_PARAMETERS else "all"]
            return from_storage(jax.tree.map(lambda leaf: leaf[index], stack[name]))

        names = [name for name in stack if not (shares and name in KEY_PARAMETERS)]
        tree = {"params": self.weights | {"attention": {name: weights_of(name) for name in names}}}
        slot, sources = layer_indices["source"], list(self.sources)
        shared = tuple(array[slot] for array in sources[layer_type]) if shares else None
        half, inputs = AttentionHalf(config, self.build), self._inputs_of(config, layer_indices)
        added, keys_values = half.apply(tree, self.x, self.layout, inputs, shared)
        if sources_of(self.config, layer_type) and not shares:
            # If no other layer reuses these keys, the slot is out of bounds, and `drop` ignores it.
            sources[layer_type] = tuple(
                room.at[slot].set(array, mode="drop")
                for room, array in zip(sources[layer_type], keys_values, strict=True)
            )
        return added, self._stored(keys_values), tuple(sources)

    def _with_block(self, layer_indices: Mapping[str, Array]) -> Any:
        """Run a shared block, then the recurrence that reads its output."""
        block_output, keys_values = self._block(
            layer_indices["all"], self._inputs_of(self.config, layer_indices)
        )
        added, states = self._recurrence(layer_indices["recurrent"], self.x + block_output)
        return added, self._stored(keys_values), tuple(self.sources), states

    def _block(self, nth: Array, inputs: PerLayer) -> tuple[Array, KeyValue]:
        """Run the shared block of the `nth` layer that uses one; return output, keys and values."""
        blocks, layout = self.config.shared_blocks, self.layout
        assert blocks is not None
        assert layout.embedded is not None
        config, block_index = block_config(self.config), nth % blocks.n_blocks
        block = from_storage(jax.tree.map(lambda leaf: leaf[block_index], self.params["blocks"]))
        layer_weights = from_storage(
            jax.tree.map(lambda leaf: leaf[nth], self.params["block_uses"])
        )
        tree = {
            "params": {
                name: weights | layer_weights.get(name, {}) for name, weights in block.items()
            }
        }
        block_input = jnp.concatenate([self.x, layout.embedded], axis=-1)
        attention_output, keys_values = AttentionHalf(config, self.build).apply(
            tree, block_input, layout, inputs
        )
        mlp_output, _ = MlpHalf(config, self.build).apply(tree, attention_output)
        into = Linear(config.width, False, config.quantized)
        return into.apply({"params": layer_weights["into"]}, mlp_output), keys_values

    def _recurrence(self, nth: Array, x: Array) -> tuple[Array, Any]:
        """Run the `nth` recurrence on x; return its output and states at `layout.paths.kept`."""
        stacked = self.params["recurrent"], self.states
        mixer, states = jax.tree.map(lambda leaf: leaf[nth], stacked)
        variables = {"params": self.weights | {"mixer": from_storage(mixer)}}
        if states:
            variables["states"] = states
        is_kept, recurrent = self.layout.paths.kept is not None, self.config.recurrent
        half = RecurrentHalf(self.config, self.build)
        mutable = ["states"] if is_kept else []
        added, updated = half.apply(variables, x, self.layout, mutable=mutable)
        if not is_kept:
            return added, ()
        kept = updated.get("states", {})
        assert recurrent is not None
        if recurrent.has_state and "state" not in kept.get("mixer", {}):
            raise NotImplementedError(f"{recurrent.mixer} does not return its state")
        return added, kept

    def _inputs_of(self, config: DecoderConfig, layer_indices: Mapping[str, Array]) -> PerLayer:
        """Return the inputs of an attention layer, truncated to its sizes."""
        caches = self.inputs.caches
        if len(cached_layers(self.config)) < self.config.n_layers:
            index = layer_indices["cached"]
            caches = tuple(c._replace(key=c.key[index], value=c.value[index]) for c in caches)
        heads, width = _head_shape(config, self.build)
        caches = tuple(
            c._replace(key=c.key[:, :heads, :, :width], value=c.value[:, :heads, :, :width])
            for c in caches
        )
        return trim_rotary(self.inputs._replace(caches=caches), config)

    def _without_keys(self, added: Array, states: Any) -> Any:
        heads, width = cache_head_shape(self.config, self.build)
        zeros = jnp.zeros((*self.layout.position.shape, heads, width))
        return added, self._stored((zeros, zeros)), tuple(self.sources), states

    def _stored(self, keys_values: KeyValue) -> Any:
        """Convert keys and values [R, L, K, H] to the layout of a KV cache, [R, K, L, H]."""
        heads, width = cache_head_shape(self.config, self.build)

        def cache_layout(x: Array) -> Array:
            x = x.astype(self.layout.dtype).swapaxes(1, 2)
            return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, 0), (0, width - x.shape[3])))

        return to_storage(tuple(map(cache_layout, keys_values)), self.build.backend.integers)


def block_config(config: DecoderConfig) -> DecoderConfig:
    """Return the config of the halves of `SharedBlocks`."""
    return config.replace(recurrent=None, mlp_layers=None)


def _layer_indices(config: DecoderConfig) -> tuple[dict[str, Array], list[tuple[int, bool]]]:
    """Return the indices of each layer, and each layer's type.

    Returns:
        Arrays [layers]: the index among all layers of the type ("all"), among those with their own
        keys ("keys"), of the slot in `empty_sources` ("source"), in KV caches ("cached"), and among
        recurrent layers ("recurrent"); and (type, True if it reuses another layer's keys) of each.
    """
    n = config.n_layers
    shares = [bool(config.attention.keys_of) and config.attention.keys_of[i] != i for i in range(n)]
    layer_types = [config.kind_of(i) for i in range(n)]
    index_in_type = [layer_types[:i].count(layer_types[i]) for i in range(n)]
    cached = [sum(layer_type >= 0 for layer_type in layer_types[:i]) for i in range(n)]
    with_keys = [
        sum(layer_types[j] == layer_types[i] and not shares[j] for j in range(i)) for i in range(n)
    ]
    slots = {layer_type: sources_of(config, layer_type) for layer_type in set(layer_types)}
    used = [config.attention.keys_of[i] if config.attention.keys_of else i for i in range(n)]
    source = [
        slots[layer_types[i]].index(used[i])
        if used[i] in slots[layer_types[i]]
        else len(slots[layer_types[i]])
        for i in range(n)
    ]
    recurrent = () if config.recurrent is None else config.recurrent.layers
    indices = {
        "all": index_in_type,
        "keys": with_keys,
        "source": source,
        "cached": cached,
        "recurrent": [sum(j in recurrent for j in range(i)) for i in range(n)],
    }
    in_order = {name: jnp.asarray(values, jnp.int32) for name, values in indices.items()}
    return in_order, list(zip(layer_types, shares, strict=True))
