"""Absent devices as compilation targets: TPU topologies and GPUs.

JAX's compile-only devices replace real ones in shardings and meshes. The compiler reports memory
and out-of-memory errors as for the real device; its times come from a model of the chip.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.errors import JaxRuntimeError
from jax.experimental.topologies import get_topology_desc

from jaxscore.engine import GPU_MEMORY_SHARE, TargetPlatform
from jaxscore.errors import InputError, install_extra

CUDA_PLUGIN = "jax-cuda13-plugin"
HOST = (2, 2, 1)  # chips of a host along each axis, libtpu's default


@dataclasses.dataclass(frozen=True)
class Target:
    """Identical devices and their compiler.

    Attributes:
        name: name of the topology or the GPU, such as "v5e:2x2" or "h100".
        devices: JAX's compile-only devices.
        memory_bytes: memory of one device that programs may use, or None if unknown.
        flops: peak bfloat16 FLOP per second of one device, or None if unknown.
        compiler, version: name and version of the compiler, such as "libtpu" and "0.0.42".
    """

    name: str
    platform: TargetPlatform
    devices: tuple[jax.Device, ...]
    memory_bytes: int | None
    flops: float | None
    compiler: str
    version: str


def tpu(name: str) -> Target:
    """Create the target of a TPU topology such as `v5e:2x2`.

    Raises:
        InputError: libtpu is not installed, or does not know the topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"--topology {name}: the TPU compiler is not installed; "
            f"{install_extra('tpu-compiler')}, which takes JAX's own version"
        )
    advice = "give one that libtpu knows, such as v5e:2x2, v5p:2x2x1 or v6e:2x2"
    match = re.fullmatch(r"\w+:([0-9]{1,3}(?:x[0-9]{1,3}){1,2})", name)
    if match is None:
        raise InputError(f"--topology {name!r}: expected KIND:AxB or KIND:AxBxC; {advice}")
    axes = [int(size) for size in match[1].split("x")]
    # libtpu refuses a fraction of a host, such as v5e:1x1, unless the host is declared that small.
    host = [min(size, limit) for size, limit in zip([*axes, 1], HOST, strict=False)]
    try:
        devices = get_topology_desc(name, "tpu", chips_per_host_bounds=host).devices
    except JaxRuntimeError as problem:
        reason = str(problem).partition("\n")[0]
        raise InputError(f"--topology {name}: libtpu refuses it ({reason}); {advice}") from None
    first: Any = devices[0]
    chip = CHIPS.get(first.device_kind)
    share = first.num_cores / chip.cores if chip is not None else 1.0
    return Target(
        name,
        "tpu",
        tuple(devices),
        chip and int(chip.memory_bytes * share),
        chip and chip.flops * share,
        "libtpu",
        importlib.metadata.version("libtpu"),
    )


def gpu(name: str, n_devices: int) -> Target:
    """Create the target of several identical GPUs.

    Args:
        name: a key of `GPUS`.

    Raises:
        InputError: JAX's CUDA plugin is not installed.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        version = importlib.metadata.version("jax")
        raise InputError(
            f"--gpu-target {name}: the GPU compiler is not installed; pip install "
            f"{CUDA_PLUGIN}=={version} (400 MB; the CUDA libraries are not needed)"
        )
    devices = get_topology_desc(
        platform="cuda", target_config=config_text(name), topology=f"1x1x{n_devices}"
    ).devices
    return Target(
        name,
        "gpu",
        tuple(devices),
        int(GPUS[name].memory_bytes * GPU_MEMORY_SHARE),
        None,  # times are not estimated
        CUDA_PLUGIN,
        importlib.metadata.version(CUDA_PLUGIN),
    )


@contextlib.contextmanager
def compiling_for(device: jax.Device | None) -> Iterator[None]:
    """Let Pallas lower kernels for an absent device; with None, do nothing.

    Pallas' TPU kernels take their target from JAX's default device, which is the CPU when a program
    is compiled for an absent device.
    """
    if device is None:
        yield
        return
    with jax.default_device(device):
        yield


class Chip(NamedTuple):
    """TPU chip.

    Attributes:
        memory_bytes: bytes of high-bandwidth memory.
        flops: peak bfloat16 FLOP per second.
        cores: number of cores, each of which JAX may present as a device.
    """

    memory_bytes: int
    flops: float
    cores: int


# By JAX's `device_kind`, from docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x.
CHIPS = {
    "TPU v4": Chip(32 * 2**30, 275e12, 2),
    "TPU v5 lite": Chip(16 * 2**30, 197e12, 1),
    "TPU v5": Chip(95 * 2**30, 459e12, 2),
    "TPU v6 lite": Chip(32 * 2**30, 918e12, 1),
    "TPU7x": Chip(192 * 2**30, 2307e12, 2),
}


class Gpu(NamedTuple):
    """GPU model, with values from openxla/xla, xla/backends/gpu/target_config/specs.

    A core is a streaming multiprocessor.

    Attributes:
        shared_core, shared_block: bytes of shared memory per core, and maximum per block.
        bandwidth: memory bandwidth, bytes per second.
        compute: major compute capability; the minor one is 0.
        features: architecture-specific features (sm_90a), or "NONE".
    """

    full_name: str
    cores: int
    fpus_a_core: int
    shared_core: int
    shared_block: int
    bandwidth: int
    l2_bytes: int
    clock_ghz: float
    memory_bytes: int
    compute: int
    features: str = "ACCELERATED_FEATURES"


GPUS = {
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", 132, 128, 233472, 232448, 3352320000000, 52428800, 1.98,
        84942979072, 9,
    ),
    "h200": Gpu(
        "NVIDIA H200 141GB HBM3e", 132, 128, 233472, 232448, 4800000000000, 52428800, 1.98,
        151397597184, 9,
    ),
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB", 108, 64, 167936, 166912, 2039040000000, 41943040, 1.41,
        85100068864, 8, "NONE",
    ),
    "b200": Gpu(
        "NVIDIA B200", 148, 128, 233472, 232448, 7672320000000, 132644864, 1.965,
        191514411008, 10,
    ),
}  # fmt: skip


def config_text(name: str) -> str:
    """Return the `GpuTargetConfigProto` of one of `GPUS`, as text."""
    gpu = GPUS[name]
    return f"""\
platform_name: "CUDA"
device_description_str: "{gpu.full_name}"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
gpu_device_info {{
  name: "{gpu.full_name}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {gpu.compute} feature_extension: {gpu.features} }}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.fpus_a_core}
  clock_rate_ghz: {gpu.clock_ghz}
  device_memory_size: {gpu.memory_bytes}
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2_bytes}
  shared_memory_per_core: {gpu.shared_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared_block}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
"""
