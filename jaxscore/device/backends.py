"""Implementations of each operation per platform, as data, and compiler options.

A program's platform is an argument, and is not read from JAX while the function is traced, so that
a program can be compiled for a platform that is not present.
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
        attention: of the rows' own tokens, see `attention.interval`.
        cache_by_head: attention to a KV cache takes one head at a time, so that its scores stay
            in the processor's cache; otherwise all heads are one product.
        experts: the products of a mixture, see `experts`.
        mlp_tokens: most tokens of a device that an MLP takes at a time, so that its inner
            activations of long rows do not exist whole; None is unlimited.
        lm_head: at a batch's scored positions, see `device.lm_head`.
        lm_head_columns: vocabulary columns per step of the LM head in XLA's operations.
        position_blocks: scored positions per pass of the implementation of that name: the first
            number while that many are left, then the second.
        gradient_positions, gradient_columns: positions and most columns per step of the LM head's
            backward pass; positions as in `position_blocks`. A step adds to a block of the
            unembedding's gradient, which large blocks of positions read seldom.
        exits_per_step: states of recurrent layers that are computed at once.
        chunks_at_once: chunks of recurrent layers that are computed side by side; None is all.
        convolves_by_products: see `recurrence.paths.convolve_chunks`.
        integers: bfloat16 arrays are stored as uint16, see `dots.as_integers`.
        interpreted: kernels run as JAX's own operations, for tests on another platform.
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
        convolves_by_products=True,  # 2.8 ms of a layer of Qwen3.5-4B, gathers 9.7, by estimates
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
    """A function that imports its module when it is called: Pallas takes 0.2 s to import."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def current_platform(device: jax.Device | None = None) -> Platform:
    """Platform of a device; None for that on which JAX runs programs in this process.

    Raises:
        ValueError: it is not cpu, tpu or gpu.
    """
    found = jax.default_backend() if device is None else device.platform
    for platform in get_args(Platform):
        if platform == found:
            return platform
    raise ValueError(f"JAX runs on {found!r}, expected cpu, gpu or tpu; give --device cpu")


def current_backend(device: jax.Device | None = None) -> Backend:
    """Backend of a device, without the kernels of `replaced_kernels`.

    Args:
        device: present or absent; None is JAX's own.

    Raises:
        ValueError: as `current_platform`.
    """
    instead: dict[str, Any] = {
        field: one.instead for field, one in replaced_kernels(device).items()
    }
    return dataclasses.replace(BACKENDS[current_platform(device)], **instead)


class Replaced(NamedTuple):
    """The implementation that replaces a platform's kernel, and why."""

    instead: str
    why: str


def replaced_kernels(device: jax.Device | None = None) -> dict[str, Replaced]:
    """Fields of `Backend` whose kernel a GPU or JAX itself does not run.

    Args:
        device: as in `current_backend`.
    """
    if current_platform(device) != "gpu":
        return {}
    device = device or jax.devices()[0]
    capability = getattr(device, "compute_capability", "")
    old = None
    if not supports_kernels(capability):
        old = f"compute capability {capability!r}, expected at least 8.0"
    replaced = {}
    for field, kernel in (("attention", "kernel_gpu"), ("experts", "grouped_gpu")):
        if (why := old or lowering_failure(kernel, device)) is not None:
            replaced[field] = Replaced("blocked", why)
    other = MOSAIC_KERNELS.get(capability)
    if other and "attention" in replaced and lowering_failure(other, device) is None:
        replaced["attention"] = replaced["attention"]._replace(instead=other)
    return replaced


# Attention without Triton, by compute capability: of H100 and H200, of B200.
MOSAIC_KERNELS: dict[str, AttentionName] = {"9.0": "kernel_sm90", "10.0": "kernel_sm100"}
SMALL_CASES: dict[str, Callable[[], None]] = {
    "kernel_gpu": lazy("jaxscore.device.attention.kernel_gpu", "lower_small"),
    "kernel_sm90": lazy("jaxscore.device.attention.kernel_mosaic", "lower_small_sm90"),
    "kernel_sm100": lazy("jaxscore.device.attention.kernel_mosaic", "lower_small_sm100"),
    "grouped_gpu": lazy("jaxscore.device.grouped_matmul", "lower_small_gpu"),
}


@functools.cache
def lowering_failure(kernel: str, device: jax.Device) -> str | None:
    """What a small case of a kernel raises when it is lowered for a GPU, or None.

    JAX 0.11 deprecates the Triton backend of Pallas, to remove it in a later version.
    """
    try:
        with jax.default_device(device):
            SMALL_CASES[kernel]()
    except Exception as problem:  # which one depends on the version
        return f"{type(problem).__name__}: {problem}".partition("\n")[0]
    return None


def supports_kernels(compute_capability: str) -> bool:
    """Whether a GPU runs Triton's kernels: NVIDIA's, and at least an A100 ("8.0")."""
    major = compute_capability.partition(".")[0]
    return major.isdigit() and int(major) >= 8


@dataclasses.dataclass(frozen=True)
class Build:
    """How a decoder's program is built, beside the config that says what it computes.

    A split decoder's functions run inside `jax.shard_map`, on parameters as `device.sharding`
    places them; the sizes of a `DecoderConfig` are the whole model's.

    Attributes:
        backend: for the platform that the program is compiled for.
        shards: devices along the mesh axis MODEL, over which heads, MLP channels, experts and
            vocabulary are split; 1 is no split.
        tokens: dtype in which a layer gathers its normed input if each shard has the residual
            stream of its own tokens, [1, T / shards, D] in place of [R, L, D]; None if each has
            all of it. A sum over shards is then half as many bytes, and norms are computed once
            (arXiv 2205.05198, section 4.2.2).
    """

    backend: Backend = BACKENDS["cpu"]
    shards: int = 1
    tokens: Any = None

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError(f"shards is {self.shards}, expected at least 1")

    @property
    def axis(self) -> str | None:
        """Mesh axis to sum over, or None on one device."""
        return MODEL if self.shards > 1 else None

    def splitting_tokens(self, shape: tuple[int, ...], dtype: Any) -> "Build":
        """The build for rows [R, L]; steps of single tokens are not split, nor tokens whose number
        the shards do not divide."""
        splits = self.shards > 1 and shape[1] > 1 and math.prod(shape) % self.shards == 0
        return dataclasses.replace(self, tokens=dtype if splits else None)

    def gathered(self, x: Array, dtype: Any = None) -> Array:
        """Values [1, T, ...] of all shards' tokens [1, T / shards, ...], or what is not split.

        Args:
            dtype: in which they are sent; None is `tokens`.
        """
        if self.tokens is None:
            return x
        return lax.all_gather(x[0].astype(dtype or self.tokens), MODEL, tiled=True)[None]

    def own_tokens(self, x: Array) -> Array:
        """This shard's part [1, T / shards, ...] of values [R, L, ...]."""
        if self.tokens is None:
            return x
        n = x.shape[0] * x.shape[1] // self.shards
        flat = x.reshape(-1, *x.shape[2:])
        return lax.dynamic_slice_in_dim(flat, lax.axis_index(MODEL) * n, n)[None]

    def summed(self, x: Array) -> Array:
        """Sums of all shards' values [R, L, D], of this shard's tokens if these are split."""
        if self.axis is None:
            return x
        if self.tokens is None:
            return lax.psum(x, self.axis)
        # The TPU compiler scatters along the first axis alone; it sums others whole.
        return lax.psum_scatter(x.reshape(-1, x.shape[-1]), self.axis, tiled=True)[None]

    def vocabulary_axis(self, config: DecoderConfig) -> str | None:
        """`axis` of embedding and unembedding, or None if the vocabulary does not divide."""
        return self.axis if not config.vocab_size % self.shards else None

    def whole_kv(self, config: DecoderConfig) -> bool:
        """Whether each shard computes all key heads and selects the one that its queries use."""
        return config.attention.n_kv_heads % self.shards != 0


ON_CPU = Build()


def deterministic_options() -> dict[str, bool]:
    """Compiler options under which equal inputs give equal bits in every run.

    On a GPU XLA otherwise times several kernels and takes the fastest, and some of them add up in
    the order in which threads arrive. A CPU and a TPU need no option.
    """
    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else {}
