"""GPUs as XLA's compiler is told of them where none is present.

The numbers are those of openxla/xla, xla/backends/gpu/target_config/specs, and the text is of its
`GpuTargetConfigProto`.
"""

from typing import NamedTuple


class Gpu(NamedTuple):
    """One kind of GPU; a core is a streaming multiprocessor.

    Attributes:
        shared_core, shared_block: bytes of shared memory of a core, and of a block at most.
        bandwidth: of its memory, bytes per second.
        compute: major of its compute capability; the minor one is 0.
        features: those that its architecture alone has (sm_90a), or "NONE".
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
    """A `GpuTargetConfigProto` of one of `GPUS`, as text."""
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
