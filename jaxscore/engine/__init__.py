"""Defaults, choices and environment variables that the command line reads without importing JAX."""

import os
from typing import Literal

DEVICES = ("cpu", "gpu", "cuda", "tpu")
GPU_TARGETS = ("h100", "h200", "a100", "b200")  # see `targets.GPUS`
AUTO = "auto"  # value of --mesh and --batch-tokens: choose what fits the devices
BATCH_TOKENS = 4096
# Number of requests that `stream` plans together. A prompt that all requests share is computed
# once per window, and at the end of a run the device waits for the results of one window.
WINDOW = 4096
# Sizes of the first windows; their sum is 2 * `WINDOW`. Each window is planned while the previous
# one is computed, so the sizes grow slowly.
FIRST_WINDOWS = (1024, 1536, 2304, 3328)
# Number of tokens that `stream` plans together; shared prompts count for each request. Planning
# takes about 60 bytes per token, so 250 MB. A prompt of 1,500 tokens before questions of 20 tokens
# is computed again for every 2,700 questions, which is 3 % more work.
WINDOW_TOKENS = 1 << 22


# Share of a GPU's memory that JAX allocates. Its default, 0.75, leaves 20 of 80 GB unused; CUDA's
# contexts and libraries and NCCL's buffers need the rest.
GPU_MEMORY_SHARE = 0.9
GPU_MEMORY_VARIABLES = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def set_gpu_memory() -> None:
    """Let JAX allocate `GPU_MEMORY_SHARE`, unless the user has set a share.

    Call it before JAX initializes its devices.
    """
    if not any(map(os.environ.get, GPU_MEMORY_VARIABLES)):
        os.environ[GPU_MEMORY_VARIABLES[0]] = str(GPU_MEMORY_SHARE)


TargetPlatform = Literal["tpu", "gpu"]

VARIABLES: dict[TargetPlatform, dict[str, str]] = {
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",  # no request to a metadata server
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # required; the topology decides
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used, so other processes may use libtpu
    },
    "gpu": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},  # the compiler needs no CUDA libraries
}


def set_variables(platform: TargetPlatform) -> None:
    """Set environment variables for compiling for absent devices, and keep JAX on the CPU.

    Call it before JAX is imported. Variables that are already set are kept.
    """
    for name, value in VARIABLES[platform].items():
        os.environ.setdefault(name, value)
    os.environ["JAX_PLATFORMS"] = "cpu"
