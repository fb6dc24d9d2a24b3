"""What the environment must say before JAX compiles for devices that are not here.

This module imports no JAX: a command sets the variables first.
"""

import os
from typing import Literal

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
