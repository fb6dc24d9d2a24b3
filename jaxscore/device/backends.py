"""Implementations of each operation per platform, as data, and compiler options.

The platform of a program is an argument, not read from JAX during tracing, so that programs can be
compiled for an absent platform.
"""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
from jax import Array, lax

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MODEL

Platform = Literal["cpu", "tpu", "gpu"]
AttentionName = Literal[
    "blocked", "blocked_cpu", "kernel_gpu", "kernel_sm90", "kernel_sm100", "kernel_tpu"
]
ExpertsName = Literal["blocked", "kernel_gpu", "kernel_tpu"]
LMHeadName = Literal["buckets", "kernel_tpu", "position_blocks"]


@dataclasses.dataclass(frozen=True)
class Backend:
    """Implementations and block sizes of one platform.

    Attributes:
        attention: attention within rows, see `attention.interval`.
        cache_by_head: if True, attention to a KV cache runs one head at a time, so that its scores
            stay in the processor's cache; otherwise all heads in one product.
        experts: the matrix products of a mixture, see `experts`.
        mlp_tokens: maximum tokens of a device that an MLP processes at once, to bound the memory of
            inner activations; None is unlimited.
        lm_head: the LM head at scored positions, see `device.lm_head`.
        lm_head_columns: vocabulary columns per step of the LM head, if it runs as XLA operations.
        position_blocks: scored positions per pass of the LM head `position_blocks`: the first
            number while that many are left, then the second.
        gradient_positions, gradient_columns: positions and maximum columns per step of the LM
            head's backward pass; positions as in `position_blocks`. Each step adds to a block of
            the unembedding's gradient, so larger blocks of positions cause less memory traffic.
        exits_per_step: exit states of recurrent layers computed per step.
        chunks_at_once: chunks of recurrent layers computed in parallel; None is all.
        convolves_by_products: if True, convolutions run as matrix products, see
            `recurrence.paths.convolve_chunks`.
        integers: if True, bfloat16 arrays are stored as uint16, see `dots.as_integers`.
        interpreted: if True, kernels run in interpret mode, for tests on other platforms.
    """

    attention: AttentionName
    cache_by_head: bool
    experts: ExpertsName
    mlp_tokens: int | None
    lm_head: LMHeadName
    lm_head_columns: int
    position_blocks: tuple[int, int]
    gradient_positions: tuple[int, int]
    gradient_columns: int
    exits_per_step: int
    chunks_at_once: int | None
    convolves_by_products: bool
    integers: bool
    interpreted: bool = False


BACKENDS: dict[Platform, Backend] = {
    "cpu": Backend(
        attention="blocked_cpu",
        cache_by_head=True,
        experts="blocked",
        mlp_tokens=512,
        lm_head="position_blocks",
        lm_head_columns=2048,  # best of 512 to 4096, measured
        position_blocks=(512, 128),
        gradient_positions=(512, 128),
        gradient_columns=2048,
        exits_per_step=1,
        chunks_at_once=16,
        convolves_by_products=False,
        integers=True,
    ),
    "tpu": Backend(
        attention="kernel_tpu",
        cache_by_head=False,
        experts="kernel_tpu",
        mlp_tokens=16384,
        lm_head="kernel_tpu",
        lm_head_columns=8192,
        position_blocks=(512, 128),
        gradient_positions=(2048, 512),  # by the compiler's estimates
        gradient_columns=4096,
        exits_per_step=8,
        chunks_at_once=None,
        convolves_by_products=True,  # estimated: 2.8 ms per layer of Qwen3.5-4B, gathers 9.7 ms
        integers=False,
    ),
    "gpu": Backend(
        attention="kernel_gpu",
        cache_by_head=False,
        experts="kernel_gpu",
        mlp_tokens=16384,
        lm_head="buckets",
        lm_head_columns=8192,
        position_blocks=(512, 128),
        gradient_positions=(2048, 512),
        gradient_columns=4096,
        exits_per_step=8,
        chunks_at_once=None,
        convolves_by_products=False,
        integers=False,
    ),
}


def lazy(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports its module when called: Pallas takes 0.2 s to import."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def current_platform(device: jax.Device | None = None) -> Platform:
    """Return the platform of a device, or of JAX's default device if it is None.

    Raises:
        ValueError: the platform is not cpu, tpu or gpu.
    """
    name = jax.default_backend() if device is None else device.platform
    for platform in get_args(Platform):
        if platform == name:
            return platform
    raise ValueError(f"JAX runs on {name!r}, expected cpu, gpu or tpu; give --device cpu")


def current_backend(device: jax.Device | None = None) -> Backend:
    """Return the backend of a device, with its unsupported kernels replaced.

    Args:
        device: a present or absent device; None is JAX's default device.

    Raises:
        ValueError: see `current_platform`.
    """
    replacements: dict[str, Any] = {
        field: replaced.instead for field, replaced in replaced_kernels(device).items()
    }
    return dataclasses.replace(BACKENDS[current_platform(device)], **replacements)


class Replaced(NamedTuple):
    """The implementation that replaces a kernel, and the reason."""

    instead: str
    why: str


def replaced_kernels(device: jax.Device | None = None) -> dict[str, Replaced]:
    """Return the fields of `Backend` whose kernels the GPU or this JAX version cannot run.

    Args:
        device: see `current_backend`.
    """
    if current_platform(device) != "gpu":
        return {}
    device = device or jax.devices()[0]
    capability = getattr(device, "compute_capability", "")
    unsupported = None
    if not supports_kernels(capability):
        unsupported = f"compute capability {capability!r}, expected at least 8.0"
    replaced = {}
    for field, kernel in (("attention", "kernel_gpu"), ("experts", "grouped_gpu")):
        if (reason := unsupported or lowering_failure(kernel, device)) is not None:
            replaced[field] = Replaced("blocked", reason)
    mosaic_kernel = MOSAIC_KERNELS.get(capability)
    if (
        mosaic_kernel
        and "attention" in replaced
        and lowering_failure(mosaic_kernel, device) is None
    ):
        replaced["attention"] = replaced["attention"]._replace(instead=mosaic_kernel)
    return replaced


# Attention kernels without Triton, by compute capability: H100 and H200 (9.0), B200 (10.0).
MOSAIC_KERNELS: dict[str, AttentionName] = {"9.0": "kernel_sm90", "10.0": "kernel_sm100"}
SMALL_CASES: dict[str, Callable[[], None]] = {
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "lower_small"),
    "kernel_sm90": lazy("jaxscore.device.attention.kernel_mosaic", "lower_small_sm90"),
    "kernel_sm100": lazy("jaxscore.device.attention.kernel_mosaic", "lower_small_sm100"),
    "grouped_gpu": lazy("jaxscore.device.grouped_matmul", "lower_small_gpu"),
}


@functools.cache
def lowering_failure(kernel: str, device: jax.Device) -> str | None:
    """Lower a small case of a kernel for a GPU; return the error message, or None if it lowers.

    JAX 0.11 deprecates the Triton backend of Pallas and plans to remove it.
    """
    try:
        with jax.default_device(device):
            SMALL_CASES[kernel]()
    except Exception as problem:  # the type depends on the JAX version
        return f"{type(problem).__name__}: {problem}".partition("\n")[0]
    return None


def supports_kernels(compute_capability: str) -> bool:
    """Return True if a GPU runs Triton kernels: an NVIDIA GPU, A100 ("8.0") or later."""
    major = compute_capability.partition(".")[0]
    return major.isdigit() and int(major) >= 8


@dataclasses.dataclass(frozen=True)
class Build:
    """Backend and sharding of a decoder's program; `DecoderConfig` defines the function itself.

    On a mesh the decoder's functions run inside `jax.shard_map`, on parameters sharded by
    `device.sharding`. The sizes of a `DecoderConfig` are those of the unsharded model.

    Attributes:
        backend: the implementations for the platform that the program is compiled for.
        shards: number of devices along the mesh axis MODEL, over which heads, MLP channels, experts
            and vocabulary are split; 1 on one device.
        tokens: dtype in which a layer gathers its normed input under sequence parallelism (arXiv
            2205.05198, section 4.2.2); None without. Each shard then has the residual stream of
            its own tokens, [1, T / shards, D] instead of [R, L, D]. A sum over shards moves half
            as many bytes, and each norm is computed once.
    """

    backend: Backend = BACKENDS["cpu"]
    shards: int = 1
    tokens: Any = None

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError(f"shards is {self.shards}, expected at least 1")

    @property
    def axis(self) -> str | None:
        """The mesh axis to sum over, or None on one device."""
        return MODEL if self.shards > 1 else None

    def splitting_tokens(self, shape: tuple[int, ...], dtype: Any) -> "Build":
        """Return the build for rows [R, L], with tokens split over shards where possible.

        Generation steps of one token are not split, nor token counts that `shards` does not divide.
        """
        splits = self.shards > 1 and shape[1] > 1 and math.prod(shape) % self.shards == 0
        return dataclasses.replace(self, tokens=dtype if splits else None)

    def gathered(self, x: Array, dtype: Any = None) -> Array:
        """Gather values [1, T / shards, ...] of all shards to [1, T, ...]; no-op if not split.

        Args:
            dtype: the dtype of the transfer; None is `tokens`.
        """
        if self.tokens is None:
            return x
        return lax.all_gather(x[0].astype(dtype or self.tokens), MODEL, tiled=True)[None]

    def own_tokens(self, x: Array) -> Array:
        """Return this shard's slice [1, T / shards, ...] of values [R, L, ...]."""
        if self.tokens is None:
            return x
        n = x.shape[0] * x.shape[1] // self.shards
        flat = x.reshape(-1, *x.shape[2:])
        return lax.dynamic_slice_in_dim(flat, lax.axis_index(MODEL) * n, n)[None]

    def summed(self, x: Array) -> Array:
        """Sum values [R, L, D] over shards; return those of this shard's tokens if split."""
        if self.axis is None:
            return x
        if self.tokens is None:
            return lax.psum(x, self.axis)
        # The TPU compiler reduce-scatters along the first axis only; it all-reduces other axes.
        return lax.psum_scatter(x.reshape(-1, x.shape[-1]), self.axis, tiled=True)[None]

    def vocabulary_axis(self, config: DecoderConfig) -> str | None:
        """Return `axis` for embedding and unembedding, or None if `shards` does not divide them."""
        return self.axis if not config.vocab_size % self.shards else None

    def whole_kv(self, config: DecoderConfig) -> bool:
        """Return True if each shard computes all key heads and selects the one its queries use."""
        return config.attention.n_kv_heads % self.shards != 0


ON_CPU = Build()


def deterministic_options() -> dict[str, bool]:
    """Return compiler options that make results reproducible bit for bit.

    On a GPU, XLA otherwise autotunes kernels, and some of them add with atomics in any order. CPU
    and TPU need no option.
    """
    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else {}
