"""`--mesh auto`: the mesh with the most tokens per second, by an estimate, of those that fit.

Nothing is compiled or measured. The estimated time of a batch is that of its matrix products, or of
reading the weights if that is longer, plus that of its collectives, which do not overlap:

    products     useful FLOPs / (model * peak * EFFICIENCY)
    weights      bytes of the parameters on a device / memory bandwidth
    collectives  per layer two reduce-scatters of float32 [tokens, width] and two all-gathers of
                 such arrays in the products' dtype, in a ring of `model` devices; with `fsdp` also
                 an all-gather of the weights that a device does not store

Larger batches read the weights less often, so the memory that the parameters leave matters too.
`fsdp` is fast only with full batches. A step of generated text has few tokens, and a token runs few
of a mixture's experts, so both use `fsdp` only if nothing else fits.
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

WORKING = 0.2  # share of a device's memory for batches, and for keys and values of generated text
FIXED = 128 << 20  # bytes of a program independent of its tokens: constants, LM head
LEAST, MOST = 4096, 32768  # bounds of a batch's tokens; most texts are shorter than the lower one
EFFICIENCY = 0.7  # share of peak FLOPs in products, by the TPU compiler's estimate for an 8B model
DEPTH = 1024  # assumed tokens of a text


class Rates(NamedTuple):
    """Rates of one device, per second.

    Attributes:
        flops: peak bfloat16 FLOPs.
        memory: bytes read from its memory.
        links: bytes sent to its neighbours.
    """

    flops: float
    memory: float
    links: float


# Rates by JAX's `device_kind`, from docs.cloud.google.com/tpu/docs and NVIDIA's data sheets. A ring
# of TPUs uses two links of a chip; a ring of GPUs uses the full NVLink bandwidth in one direction.
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
    """Return the rates of a device by JAX's `device_kind`; those of an A100 if it is unknown."""
    names = [name for name in RATES if device_kind.startswith(name)]
    return RATES[max(names, key=len, default="NVIDIA A100")]


class MeshEstimate(NamedTuple):
    """Estimated memory and speed of a mesh.

    Attributes:
        parameter_bytes: bytes of the parameters on each device.
        batch_tokens: tokens of the largest batch that fits, for each share of `data`; 0 if no batch
            fits.
        tokens_per_second: tokens per second of all devices together; 0 if no batch fits.
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
    """Estimate all meshes whose `model` is a power of two; those with `fsdp` come last.

    Args:
        shapes: the parameter tree of `init_params`, as arrays or shapes.
        memory: bytes of each device.
        working: bytes of a batch of any size, or None to compute them from its tokens.
        least: tokens of a batch that must fit, if the model has that many positions.
        generates: if True, `WORKING` of the memory is left for the KV caches of generated text.
        spans_hosts: if True, some devices have slower links than `rates`, so `fsdp` is used only if
            nothing else fits.
    """
    powers = (2**power for power in range(n_devices.bit_length()))
    models = [n for n in powers if n_devices % n == 0 and divides(config, n)]
    # Recurrent layers and shared blocks need more memory than `token_bytes`.
    is_bounded = config.recurrent is None and config.shared_blocks is None
    if working is None and (generates or not is_bounded):
        working = int(WORKING * memory)

    def estimate_mesh(mesh: MeshShape) -> MeshEstimate:
        n_bytes = costs.parameter_bytes(shapes, config, mesh)
        received, kept = costs.gathered_bytes(shapes, config, mesh)
        room = memory - n_bytes - kept
        if working is None:
            tokens = _max_tokens(config, mesh.model, room, min(least, config.max_positions))
        else:
            tokens = MOST if working <= room else 0
        speed = 0.0
        if tokens:
            seconds = _seconds(shapes, config, mesh.model, n_bytes + received, tokens, rates)
            speed = mesh.data * tokens / (seconds + received / rates.links)
        return MeshEstimate(mesh, n_bytes, tokens, speed)

    estimates = [estimate_mesh(MeshShape(n_devices // n, n)) for n in models]
    fsdp_is_slow = generates or spans_hosts or config.experts is not None
    if fsdp_is_slow and any(estimate.batch_tokens for estimate in estimates):
        return estimates
    fsdp = (MeshShape(n_devices // n, n, fsdp=True) for n in models if n < n_devices)
    return [*estimates, *map(estimate_mesh, fsdp)]


def token_bytes(config: DecoderConfig, model: int) -> int:
    """Compute an upper bound of a program's temporary memory per token, in bytes.

    It counts float32 values: the residual stream twice, and gate and up of the MLP or queries, keys
    and values; for a mixture also the input and output of its experts, and a shard's (token,
    expert) pairs.
    """
    attention = (
        config.attention.n_heads + 2 * config.attention.n_kv_heads
    ) * config.attention.head_width
    if config.experts is None:
        return 4 * (2 * config.width + 2 * max(config.mlp.width, attention) // model)
    plain = 0 if config.mlp.other is None else config.mlp.other.width
    pairs = _pair_bytes(config, model) * config.experts.per_token
    return 4 * (5 * config.width + 2 * max(plain, attention) // model) + pairs


def _pair_bytes(config: DecoderConfig, model: int) -> int:
    """Compute a shard's bytes per (token, expert) pair of a chunk.

    These are the input, the output, and twice gate and up. A shard has a part of the
    pairs, or a part of the channels of all pairs.
    """
    assert config.experts is not None
    if config.experts.count % model:
        return 4 * (3 * config.width + 4 * config.mlp.width // model)
    return 4 * (3 * config.width + 4 * config.mlp.width) // model


def _max_tokens(config: DecoderConfig, model: int, room: int, least: int) -> int:
    fixed = FIXED
    if config.experts is not None:  # the last block of each expert may be incomplete
        fixed += BLOCK * config.experts.count * _pair_bytes(config, model)
    tokens = (room - fixed) // token_bytes(config, model)
    return min(MOST, 1 << (tokens.bit_length() - 1)) if tokens >= least else 0


def _seconds(
    shapes: Any, config: DecoderConfig, model: int, n_bytes: int, tokens: int, rates: Rates
) -> float:
    depth = min(DEPTH, config.max_positions)
    flops = costs.linear_flops(shapes, config) + costs.attention_flops(config, depth // 2 + 1)
    flops += costs.unembedding_flops(config)
    product_seconds = tokens * flops / (model * rates.flops * EFFICIENCY)
    dtype = jnp.promote_types(shapes["embed"]["token"].dtype, config.quantized or jnp.bfloat16)
    collective_bytes = 2 * config.n_layers * tokens * config.width * (4 + dtype.itemsize)
    collective_seconds = (model - 1) / model * collective_bytes / rates.links
    return max(product_seconds, n_bytes / rates.memory) + collective_seconds


def auto_mesh(estimates: list[MeshEstimate], memory: int, working: int | None = None) -> MeshShape:
    """Choose the fastest mesh that fits; of equally fast ones the one with the smallest `model`.

    Args:
        estimates: estimates of at least one mesh.
        memory, working: see `mesh_estimates`; for the error message.

    Raises:
        InputError: no mesh fits.
    """
    best = max(estimates, key=lambda estimate: estimate.tokens_per_second)
    if best.batch_tokens:
        return best.mesh
    tried = ", ".join(
        f"{format_bytes(estimate.parameter_bytes)} with "
        + (str(estimate.mesh) if estimate.mesh.fsdp else f"{MODEL}={estimate.mesh.model}")
        for estimate in estimates
    )
    batch = "" if working is None else f", and a batch {format_bytes(working)}"
    raise InputError(
        f"mesh {AUTO}: no mesh of {best.mesh.size} devices fits {format_bytes(memory)} per device; "
        f"parameters take {tried} per device{batch}; give more devices or memory"
    )
