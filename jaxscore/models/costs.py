"""What a decoder takes by its config alone: parameters, bytes, and FLOPs per token.

A product of n parameters with a token takes 2n FLOPs, a multiplication and an addition each.
"""

from typing import Any, NamedTuple

import jax

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.layers import SCALE

EMBEDDING, LAYERS, EXPERTS, UNEMBEDDING = "embedding", "layers", "experts", "unembedding"
PART_OF = {  # first key of a parameter's path
    "embed": EMBEDDING,
    "layers": LAYERS,
    "attentions": LAYERS,
    "mlps": LAYERS,
    "experts": EXPERTS,
    "final_norm": UNEMBEDDING,
    "out_of": UNEMBEDDING,
    "unembed": UNEMBEDDING,
}


class Part(NamedTuple):
    """Some of a model: how many parameters, and their bytes in all and on one device."""

    name: str
    parameters: int
    bytes: int
    bytes_a_device: int


def parts(shapes: Any, bytes_a_device: Any) -> list[Part]:
    """The model part by part; what is tied counts where it is embedded.

    Args:
        shapes: the tree of `init_params`, arrays or their shapes.
        bytes_a_device: a number for each, see `device.sharding.bytes_a_device`.
    """
    numbers = _sizes(shapes)
    found: dict[str, Part] = {}
    for key in shapes:
        name = PART_OF[key]
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes[key]))
        own = numbers[key], size, sum(jax.tree.leaves(bytes_a_device[key]))
        before = found.get(name, Part(name, 0, 0, 0))
        found[name] = Part(name, *(a + b for a, b in zip(before[1:], own, strict=True)))
    return [found[name] for name in dict.fromkeys(PART_OF.values()) if name in found]


def active_parameters(shapes: Any, config: DecoderConfig) -> int:
    """Parameters that a token meets: of the experts, those that it runs."""
    return _met(_sizes(shapes), config)


def linear_flops(shapes: Any, config: DecoderConfig) -> int:
    """FLOPs per token of all products with weights, the unembedding left out."""
    weights = _sizes(shapes, only="weight")
    weights.pop("unembed", None)
    return 2 * _met(weights, config)


def _sizes(shapes: Any, only: str = "") -> dict[str, int]:
    """Parameters below each first key; the scales of int8 weights are none of the model's own.

    Args:
        only: the last key of what counts.
    """
    out = dict.fromkeys(shapes, 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if path[-1].key == only if only else path[-1].key != SCALE:
            out[path[0].key] += leaf.size
    return out


def _met(sizes: dict[str, int], config: DecoderConfig) -> int:
    """Of the experts, only those that a token runs."""
    if config.experts is None:
        return sum(sizes.values())
    of_experts = sizes["experts"] // config.experts.count * config.experts.per_token
    return sum(sizes.values()) - sizes["experts"] + of_experts


def attention_flops(config: DecoderConfig, depth: int) -> int:
    """FLOPs of a token that sees `depth` tokens, itself counted: a query head's product with each
    key and each value, fewer where a layer has a window."""
    kinds = config.kinds()
    widths = [kinds[config.kind_of(n)].head_width for n in range(config.n_layers)]

    def reach(window: int) -> int:
        if config.chunked and window:
            return (depth - 1) % window + 1
        return min(depth, window) if window else depth

    seen = sum(width * reach(window) for width, window in zip(widths, config.windows, strict=True))
    return 2 * 2 * config.n_heads * seen


def unembedding_flops(config: DecoderConfig) -> int:
    """FLOPs per query."""
    return 2 * config.vocab_size * (config.embedding_width or config.width)


def key_value_bytes(config: DecoderConfig, itemsize: int, model: int) -> int:
    """Bytes per token of the keys and values of all layers on one of `model` shards.

    A shard of a model with fewer key heads than shards keeps the one that it uses.
    """
    heads = max(max(1, one.n_kv_heads // model) for one in config.kinds())
    width = max(one.head_width for one in config.kinds())
    return 2 * config.n_layers * heads * width * itemsize
