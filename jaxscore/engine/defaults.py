"""Defaults and choices of the engine, apart from the modules that act on them.

Those import JAX, and the command line prints its help without JAX.
"""

import os
from typing import Literal

DEVICES = ("cpu", "gpu", "cuda", "tpu")
GPU_TARGETS = ("h100", "h200", "a100", "b200")  # see `gpu_targets.GPUS`
AUTO = "auto"  # a mesh, or tokens per batch, that fits the devices
BATCH_TOKENS = 4096
# Requests planned together by `stream`. A prompt that all requests have is computed once for each
# window; and what a device waits for at the end of a run are the results of one window.
WINDOW = 4096
# The sizes of its first windows; they add up to two times `WINDOW`. Each is planned while the one
# before is computed, so they grow slowly.
FIRST_WINDOWS = (1024, 1536, 2304, 3328)
# Tokens planned together by `stream`, prompts that are shared counted each time. Planning takes
# about 60 bytes for each, so 250 MB; and a prompt of 1,500 tokens under questions of 20 is
# computed again for every 2,700 of them, 3 % more work.
WINDOW_TOKENS = 1 << 22


TargetPlatform = Literal["tpu", "gpu"]

VARIABLES: dict[TargetPlatform, dict[str, str]] = {
    "tpu": {
        "TPU_SKIP_MDS_QUERY": "1",  # no metadata server is asked
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any: it is asked for, and the topology decides
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is taken, so others may compile and run
    },
    "gpu": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},  # the compiler needs no CUDA libraries
}


def set_variables(platform: TargetPlatform) -> None:
    """Set what is not set yet, and keep JAX on the CPU: it then looks for no device."""
    for name, value in VARIABLES[platform].items():
        os.environ.setdefault(name, value)
    os.environ["JAX_PLATFORMS"] = "cpu"
