"""`--mesh auto`: the mesh with the most tokens per second, by an estimate, of those that fit.

Nothing is compiled or measured. A batch takes the time of its products, or of reading the weights
if that is longer, and then that of its exchanges, which nothing overlaps:

    products     useful FLOPs / (model * peak * EFFICIENCY)
    weights      bytes of the parameters on a device / memory bandwidth
    exchanges    two sums of float32 [tokens, width] per layer, of which each of `model` devices
                 in a ring keeps its tokens, and two such arrays gathered in the products' dtype;
                 with `fsdp` also the weights that a device does not store

Larger batches read the weights less often, so the room beside the parameters counts too. A step of
generated text has few tokens, and a token runs few of a mixture's experts, so both take `fsdp` only
if nothing else fits: it is fast with full batches alone.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.experts import BLOCK
from jaxscore.device.mesh_shape import MODEL, MeshShape
from jaxscore.device.sharding import divides
from jaxscore.engine import AUTO
from jaxscore.errors import InputError, format_bytes
from jaxscore.models import costs

WORKING = 0.2  # share of a device's memory for batches, keys and values of generated text
FIXED = 128 << 20  # bytes of a program that do not grow with its tokens: constants, LM head
LEAST, MOST = 4096, 32768  # tokens of a batch; most texts are shorter than the first
EFFICIENCY = 0.7  # of the peak in products, by the TPU compiler's estimate of 8B
DEPTH = 1024  # tokens of a text


class Rates(NamedTuple):
    """One device: bfloat16 FLOP, bytes of memory, and bytes to its neighbours, per second."""

    flops: float
    memory: float
    links: float


# By JAX's `device_kind`, from docs.cloud.google.com/tpu/docs and NVIDIA's data sheets. A ring of
# TPUs uses two links of a chip, one of GPUs the whole NVLink in one direction.
RATES = {
    "TPU v4": Rates(275e12, 1.2e12, 90e9),
    "TPU v5 lite": Rates(197e12, 0.82e12, 90e9),
    "TPU v5": Rates(459e12, 2.8e12, 180e9),
    "TPU v6 lite": Rates(918e12, 1.6e12, 180e9),
    "TPU7x": Rates(2307e12, 7.4e12, 180e9),
    "NVIDIA A100": Rates(312e12, 2.0e12, 300e9),
    "NVIDIA H100": Rates(989e12, 3.35e12, 450e9),
    "NVIDIA H200": Rates(989e12, 4.8e12, 450e9),
    "NVIDIA B200": Rates(2250e12, 7.7e12, 900e9),
}


def rates_of(device_kind: str) -> Rates:
    """Rates of a kind of device; of an A100 if it is unknown."""
    known = [name for name in RATES if device_kind.startswith(name)]
    return RATES[max(known, key=len, default="NVIDIA A100")]


class MeshEstimate(NamedTuple):
    """What a mesh would do.

    Attributes:
        parameter_bytes: on each device.
        batch_tokens: tokens of the largest batch that fits, for each share of `data`; 0 if none
            does.
        tokens_per_second: of all devices; 0 if no batch fits.
    """

    mesh: MeshShape
    parameter_bytes: int
    batch_tokens: int
    tokens_per_second: float


def mesh_estimates(
    shapes: Any,
    config: DecoderConfig,
    n_devices: int,
    memory: int,
    rates: Rates,
    *,
    working: int | None = None,
    generates: bool = False,
    spans_hosts: bool = False,
    least: int = LEAST,
) -> list[MeshEstimate]:
    """Estimates of all meshes whose `model` is a power of two, those with `fsdp` last.

    Args:
        shapes: the tree of `init_params`, arrays or their shapes.
        memory: bytes of each device.
        working: bytes of a batch of any size, if they are known.
        least: tokens of a batch for which there must be room, if the model has as many positions.
        generates: leave `WORKING` of the memory for the KV caches of generated text.
        spans_hosts: `rates` do not hold between all devices, so `fsdp` is for what fits no other
            way.
    """
    powers = (2**power for power in range(n_devices.bit_length()))
    models = [n for n in powers if n_devices % n == 0 and divides(config, n)]
    if working is None and (generates or not _is_bounded(config)):
        working = int(WORKING * memory)

    def estimate(mesh: MeshShape) -> MeshEstimate:
        n_bytes = costs.parameter_bytes(shapes, config, mesh)
        received, kept = costs.gathered_bytes(shapes, config, mesh)
        room = memory - n_bytes - kept
        if working is None:
            tokens = _most_tokens(config, mesh.model, room, min(least, config.max_positions))
        else:
            tokens = MOST if working <= room else 0
        speed = 0.0
        if tokens:
            seconds = _seconds(shapes, config, mesh.model, n_bytes + received, tokens, rates)
            speed = mesh.data * tokens / (seconds + received / rates.links)
        return MeshEstimate(mesh, n_bytes, tokens, speed)

    found = [estimate(MeshShape(n_devices // n, n)) for n in models]
    is_slow = generates or spans_hosts or config.experts is not None
    if is_slow and any(one.batch_tokens for one in found):
        return found
    fsdp = (MeshShape(n_devices // n, n, fsdp=True) for n in models if n < n_devices)
    return [*found, *map(estimate, fsdp)]


def _is_bounded(config: DecoderConfig) -> bool:
    """Whether `token_bytes` holds: recurrent layers and shared blocks have further buffers."""
    return config.recurrent is None and config.shared_blocks is None


def token_bytes(config: DecoderConfig, model: int) -> int:
    """Upper bound of a program's temporary memory per token, in float32: the residual stream twice,
    and gate and up of the MLP or queries, keys and values; of a mixture also the input and output
    of its experts, and a shard's (token, expert) pairs."""
    attention = (
        config.attention.n_heads + 2 * config.attention.n_kv_heads
    ) * config.attention.head_width
    if config.experts is None:
        return 4 * (2 * config.width + 2 * max(config.mlp.width, attention) // model)
    plain = 0 if config.mlp.other is None else config.mlp.other.width
    pairs = _pair_bytes(config, model) * config.experts.per_token
    return 4 * (5 * config.width + 2 * max(plain, attention) // model) + pairs


def _pair_bytes(config: DecoderConfig, model: int) -> int:
    """A shard's bytes of a (token, expert) pair in a chunk: input, output, and twice gate and up.

    Shards have some of the pairs, or of all pairs some of the channels.
    """
    assert config.experts is not None
    if config.experts.count % model:
        return 4 * (3 * config.width + 4 * config.mlp.width // model)
    return 4 * (3 * config.width + 4 * config.mlp.width) // model


def _most_tokens(config: DecoderConfig, model: int, room: int, least: int) -> int:
    fixed = FIXED
    if config.experts is not None:  # incomplete blocks
        fixed += BLOCK * config.experts.count * _pair_bytes(config, model)
    tokens = (room - fixed) // token_bytes(config, model)
    return min(MOST, 1 << (tokens.bit_length() - 1)) if tokens >= least else 0


def _seconds(
    shapes: Any, config: DecoderConfig, model: int, n_bytes: int, tokens: int, rates: Rates
) -> float:
    depth = min(DEPTH, config.max_positions)
    flops = costs.linear_flops(shapes, config) + costs.attention_flops(config, depth // 2 + 1)
    flops += costs.unembedding_flops(config)
    products = tokens * flops / (model * rates.flops * EFFICIENCY)
    dtype = jnp.promote_types(shapes["embed"]["token"].dtype, config.quantized or jnp.bfloat16)
    exchanged = 2 * config.n_layers * tokens * config.width * (4 + dtype.itemsize)
    ring = (model - 1) / model * exchanged / rates.links
    return max(products, n_bytes / rates.memory) + ring


def auto_mesh(estimates: list[MeshEstimate], memory: int, working: int | None = None) -> MeshShape:
    """The fastest mesh of those that fit; among equals the one with the smallest `model`.

    Args:
        estimates: of at least one mesh.
        memory, working: as in `mesh_estimates`, for the message.

    Raises:
        InputError: none fits.
    """
    best = max(estimates, key=lambda estimate: estimate.tokens_per_second)
    if best.batch_tokens:
        return best.mesh
    tried = ", ".join(
        f"{format_bytes(one.parameter_bytes)} with "
        + (str(one.mesh) if one.mesh.fsdp else f"{MODEL}={one.mesh.model}")
        for one in estimates
    )
    batch = "" if working is None else f", and a batch {format_bytes(working)}"
    raise InputError(
        f"mesh {AUTO}: no mesh of {best.mesh.size} devices fits {format_bytes(memory)} per device; "
        f"parameters take {tried} per device{batch}; give more devices or memory"
    )
