"""Attention of layers that differ in their sizes, or that use an earlier layer's keys and values.

One program has all kinds and branches in each layer. Parameters of a kind are stacked on their
own; keys and values leave a layer in arrays as large as the largest kind's.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxscore.device.backends import Build
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import from_storage, to_storage
from jaxscore.device.layers import PerLayer
from jaxscore.device.self_attention import AttentionHalf

KINDS = ("main", "other")
OF_KEYS = ("k", "v", "k_norm")  # what a layer with another's keys does not have


def apart(config: DecoderConfig) -> bool:
    """Whether the parameters of attention stand outside of `layers`."""
    return config.other_heads is not None or bool(config.keys_of)


def turning(own: PerLayer, here: DecoderConfig) -> PerLayer:
    """Cosines and sines of as many pairs as heads of this kind have; tables are filled up to the
    largest kind's. Other decoders turn as many as their tables have."""
    if own.cos is None or own.sin is None or here.latent is not None:
        return own
    pairs = here.head_width // 2
    return own._replace(cos=own.cos[..., :pairs], sin=own.sin[..., :pairs])


def layers_of(config: DecoderConfig, kind: int) -> tuple[list[int], list[int]]:
    """Layers of a kind, and those of them that have keys and values of their own."""
    mine = [i for i in range(config.n_layers) if config.kind_of(i) == kind]
    return mine, [i for i in mine if not config.keys_of or config.keys_of[i] == i]


def _own_shape(here: DecoderConfig, build: Build) -> tuple[int, int]:
    """Heads and channels of a token's keys in layers of one kind, on one shard."""
    return 1 if build.whole_kv(here) else here.n_kv_heads // build.shards, here.head_width


def cache_head_shape(config: DecoderConfig, build: Build) -> tuple[int, int]:
    """Heads and channels of a token's keys as they are stored on one shard: the largest kind's."""
    heads, widths = zip(*(_own_shape(one, build) for one in config.kinds()), strict=True)
    return max(heads), max(widths)


def stored(keys_values, config: DecoderConfig, build: Build, dtype) -> Any:
    """Keys and values [R, L, K, H] as a KV cache has them, [R, K, L, H]."""
    heads, width = cache_head_shape(config, build)

    def one(x):
        x = x.astype(dtype).swapaxes(1, 2)
        return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, 0), (0, width - x.shape[3])))

    return to_storage(tuple(map(one, keys_values)), build.backend.integers)


def sources_of(config: DecoderConfig, kind: int) -> list[int]:
    """Layers of a kind whose keys and values some other layer uses."""
    used = {source for layer, source in enumerate(config.keys_of) if source != layer}
    return [layer for layer in layers_of(config, kind)[1] if layer in used]


def empty_sources(x, config: DecoderConfig, build: Build) -> Any:
    """Room for the keys and values that other layers use: per kind [sources, R, L, K, H], twice."""
    if not config.keys_of:
        return ()
    shapes = [
        (len(sources_of(config, kind)), *x.shape[:2], *_own_shape(here, build))
        for kind, here in enumerate(config.kinds())
    ]
    return tuple((jnp.zeros(shape), jnp.zeros(shape)) for shape in shapes)


def attention_half(params, config, build, weights, layer, x, layout, own: PerLayer, sources):
    """What attention adds, its keys and values as they are stored, and `sources` for later layers.

    Args:
        params: of the decoder.
        weights: those of the layer that do not depend on its kind.
        layer: its index, which is data.
        sources: see `empty_sources`.
    """
    if not apart(config):
        half = AttentionHalf(config, build)
        added, keys_values = half.apply({"params": weights}, x, layout, own)
        return added, stored(keys_values, config, build, layout.dtype), sources
    places, kind_of = _places(config)

    def branch(kind: int, shares: bool):
        here = config.kinds()[kind]
        stack = params["attentions"][KINDS[kind]]

        def taken(name, leaves):
            nth = places["keys" if name in OF_KEYS else "all"][layer]
            return from_storage(jax.tree.map(lambda leaf: leaf[nth], leaves))

        def run():
            names = [name for name in stack if not (shares and name in OF_KEYS)]
            attention = {name: taken(name, stack[name]) for name in names}
            caches = tuple(_of_kind(one, here, build) for one in own.caches)
            mine = turning(own._replace(caches=caches), here)
            half = AttentionHalf(here, build)
            tree = {"params": weights | {"attention": attention}}
            slot = places["source"][layer]
            given = tuple(one[slot] for one in sources[kind]) if shares else None
            added, keys_values = half.apply(tree, x, layout, mine, given)
            after = list(sources)
            if sources_of(config, kind) and not shares:
                # A layer without sharers has an out-of-bounds slot, which `drop` ignores.
                after[kind] = tuple(
                    room.at[slot].set(one, mode="drop")
                    for room, one in zip(sources[kind], keys_values, strict=True)
                )
            return added, stored(keys_values, config, build, layout.dtype), tuple(after)

        return run

    combinations = sorted(set(kind_of))
    index = jnp.asarray([combinations.index(one) for one in kind_of], jnp.int32)[layer]
    return lax.switch(index, [branch(*one) for one in combinations])


def _of_kind(cache, here: DecoderConfig, build: Build):
    """A layer's cache less what is stored beyond its own sizes."""
    heads, width = _own_shape(here, build)
    key, value = (x[:, :heads, :, :width] for x in (cache.key, cache.value))
    return cache._replace(key=key, value=value)


def _places(config):
    """Per layer: its index within its kind, its index among layers of that kind with own keys, its
    slot in `empty_sources`, its kind, and whether it shares keys."""
    n = config.n_layers
    shares = [bool(config.keys_of) and config.keys_of[i] != i for i in range(n)]
    kinds = [config.kind_of(i) for i in range(n)]
    everyone = [kinds[:i].count(kinds[i]) for i in range(n)]
    with_keys = [sum(kinds[j] == kinds[i] and not shares[j] for j in range(i)) for i in range(n)]
    slots = [sources_of(config, kind) for kind in range(len(config.kinds()))]
    used = [config.keys_of[i] if config.keys_of else i for i in range(n)]
    source = [
        slots[kinds[i]].index(used[i]) if used[i] in slots[kinds[i]] else len(slots[kinds[i]])
        for i in range(n)
    ]
    places = {"all": everyone, "keys": with_keys, "source": source}
    in_order = {name: jnp.asarray(values, jnp.int32) for name, values in places.items()}
    return in_order, list(zip(kinds, shares, strict=True))
