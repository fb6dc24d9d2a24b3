"""Costs of a decoder, from its config: parameters, bytes, and FLOPs per token.

Multiplying a token by n parameters takes 2n FLOPs: n multiplications and n additions.
"""

import functools
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxscore.device.backends import Build
from jaxscore.device.decoder import empty_states
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import is_blocks
from jaxscore.device.layers import SCALE
from jaxscore.device.mesh_shape import MODEL, MeshShape
from jaxscore.device.sharding import bytes_a_device, parameter_specs

EMBEDDING, LAYERS, EXPERTS, UNEMBEDDING = "embedding", "layers", "experts", "unembedding"
PART_OF = {  # first key of a parameter's path -> part of the model
    "embed": EMBEDDING,
    "layers": LAYERS,
    "attentions": LAYERS,
    "mlps": LAYERS,
    "blocks": LAYERS,
    "block_uses": LAYERS,
    "recurrent": LAYERS,
    "streams": LAYERS,
    "ngrams": LAYERS,
    "experts": EXPERTS,
    "final_norm": UNEMBEDDING,
    "out_of": UNEMBEDDING,
    "unembed": UNEMBEDDING,
}


class Part(NamedTuple):
    """The number of parameters in a part of a model, and their bytes in total and per device."""

    name: str
    parameters: int
    bytes: int
    bytes_a_device: int


def parts(shapes: Any, bytes_a_device: Any) -> list[Part]:
    """Return the costs by part of the model; a tied unembedding counts as embedding.

    Args:
        shapes: the tree of `init_params`, with arrays or their shapes.
        bytes_a_device: the tree of bytes per device, see `device.sharding.bytes_a_device`.
    """
    numbers = _sizes(shapes)
    costs: dict[str, Part] = {}
    for key in shapes:
        name = PART_OF[key]
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes[key]))
        increments = numbers[key], size, sum(jax.tree.leaves(bytes_a_device[key]))
        before = costs.get(name, Part(name, 0, 0, 0))
        costs[name] = Part(name, *(a + b for a, b in zip(before[1:], increments, strict=True)))
    return [costs[name] for name in dict.fromkeys(PART_OF.values()) if name in costs]


def active_parameters(shapes: Any, config: DecoderConfig) -> int:
    """Return the number of parameters that a token uses; of the experts, only its own."""
    return _active(_sizes(shapes), config)


def linear_flops(shapes: Any, config: DecoderConfig) -> int:
    """Return the FLOPs per token of all products with weights except the unembedding."""
    weights = _sizes(shapes, only="weight")
    weights.pop("unembed", None)
    if (blocks := config.shared_blocks) is not None:  # each use is a separate product
        weights["blocks"] = weights["blocks"] // blocks.n_blocks * len(blocks.layers)
    return 2 * _active(weights, config)


def _sizes(shapes: Any, only: str = "") -> dict[str, int]:
    """Return the number of parameters by first key, without the scales of int8 weights.

    Args:
        only: the last key of the parameters to count; empty for all.
    """
    out = dict.fromkeys(shapes, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes, is_leaf=is_blocks):
        if path[-1].key == only if only else path[-1].key != SCALE:
            out[path[0].key] += leaf.size
    return out


def _active(sizes: dict[str, int], config: DecoderConfig) -> int:
    """Return the number of parameters that a token uses, given the sizes by first key."""
    if config.experts is None:
        return sum(sizes.values())
    of_experts = sizes["experts"] // config.experts.count * config.experts.per_token
    return sum(sizes.values()) - sizes["experts"] + of_experts


def attention_flops(config: DecoderConfig, depth: int) -> int:
    """Return the attention FLOPs of a token that is the `depth`-th of its path.

    Layers with a window count fewer FLOPs, and layers without attention none.
    """
    attention_configs = config.attention_configs()
    kind_of = [config.kind_of(n) for n in range(config.n_layers)]
    channels = [0 if index < 0 else _channels(attention_configs[index]) for index in kind_of]

    def reach(window: int) -> int:
        if config.attention.scores.chunked and window:
            return (depth - 1) % window + 1
        return min(depth, window) if window else depth

    seen = sum(
        n * reach(window)
        for n, window in zip(channels, config.attention.scores.windows, strict=True)
    )
    return 2 * config.attention.n_heads * seen


def _channels(config: DecoderConfig) -> int:
    """Return the channels of a head's key and value together, expanded if latent."""
    if latent := config.attention.latent:
        return latent.rope_width + latent.nope_width + latent.value
    return config.attention.head_width + (
        config.attention.values.width or config.attention.head_width
    )


def unembedding_flops(config: DecoderConfig) -> int:
    """Return the FLOPs of the unembedding per scored position."""
    return 2 * config.vocab_size * (config.embedding.width or config.width)


def state_bytes(config: DecoderConfig, model: int) -> int:
    """Return the bytes of recurrent states in a prefix cache or slot, on one of `model` shards."""
    run = functools.partial(empty_states, config, 1, Build(shards=model))
    if model > 1:
        mesh = AbstractMesh((model,), (MODEL,))
        run = jax.shard_map(run, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), check_vma=False)
    states = jax.eval_shape(run)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states))


def key_value_bytes(config: DecoderConfig, itemsize: int, model: int) -> int:
    """Return the bytes per token of the KV cache of all layers on one of `model` shards.

    With fewer KV heads than shards, each shard stores the head that it uses.
    """
    heads = max(
        max(1, config_of_kind.attention.n_kv_heads // model)
        for config_of_kind in config.attention_configs()
    )
    width = max(
        config_of_kind.attention.head_width for config_of_kind in config.attention_configs()
    )
    n_layers = sum(map(config.has_attention, range(config.n_layers)))
    return 2 * n_layers * heads * width * itemsize


def parameter_bytes(shapes: Any, config: DecoderConfig, mesh: MeshShape) -> int:
    """Return the bytes of all parameters on one device.

    Args:
        shapes: the tree of `init_params`, with arrays or their shapes.

    Raises:
        ValueError: the mesh does not split this decoder, see
            `device.sharding.check_divisible`.
    """
    return sum(jax.tree.leaves(bytes_a_device(shapes, parameter_specs(shapes, config, mesh), mesh)))


def gathered_bytes(shapes: Any, config: DecoderConfig, mesh: MeshShape) -> tuple[int, int]:
    """Return the bytes that each device receives per batch with `fsdp`, and their peak.

    The peak is two layers, of which one is gathered while the other is in use, or all embeddings.

    Args:
        shapes: see `parameter_bytes`.
    """
    if not mesh.fsdp:
        return 0, 0
    gathered, stored = (
        bytes_a_device(shapes, parameter_specs(shapes, config, shape), shape)
        for shape in (MeshShape(1, mesh.model), mesh)
    )
    received = sum(jax.tree.leaves(gathered)) - sum(jax.tree.leaves(stored))
    embeddings = sum(
        full
        for full, shard in zip(
            jax.tree.leaves(gathered["embed"]), jax.tree.leaves(stored["embed"]), strict=True
        )
        if shard < full
    )
    return received, max(2 * received // config.n_layers, embeddings)
