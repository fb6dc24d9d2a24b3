"""Devices that programs are compiled for without being here.

JAX's compile-only devices stand where real ones would: in a sharding, in a mesh. What a compiler
says of memory and of feasibility is what it would say on the device; a time is its model.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.errors import JaxRuntimeError
from jax.experimental.topologies import get_topology_desc

from jaxscore.engine.chips import CHIPS
from jaxscore.engine.gpu_targets import GPUS, config_text
from jaxscore.engine.target_variables import TargetPlatform
from jaxscore.errors import InputError, install_extra

CUDA_PLUGIN = "jax-cuda13-plugin"
HOST = (2, 2, 1)  # chips of one host along each axis, as libtpu has it where it is not told


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices, all alike, and the compiler for them.

    Attributes:
        name: as it was asked for: "v5e:2x2", "h100".
        devices: JAX's, which hold nothing and run nothing.
        memory_bytes: of one device; None where it is not known.
        flops: bfloat16 FLOP per second of one device at its peak; None likewise.
        compiler, version: "libtpu", "0.0.42".
    """

    name: str
    platform: TargetPlatform
    devices: tuple[jax.Device, ...]
    memory_bytes: int | None
    flops: float | None
    compiler: str
    version: str


def tpu(name: str) -> Target:
    """The devices of a TPU topology such as `v5e:2x2`.

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
    axes = [int(one) for one in match[1].split("x")]
    # A part of a host, as v5e:1x1, is refused unless the host is said to be that small.
    host = [min(one, most) for one, most in zip([*axes, 1], HOST, strict=False)]
    try:
        found = get_topology_desc(name, "tpu", chips_per_host_bounds=host).devices
    except JaxRuntimeError as problem:
        told = str(problem).partition("\n")[0]
        raise InputError(f"--topology {name}: libtpu refuses it ({told}); {advice}") from None
    first: Any = found[0]
    chip = CHIPS.get(first.device_kind)
    share = first.num_cores / chip.cores if chip is not None else 1.0
    return Target(
        name,
        "tpu",
        tuple(found),
        chip and int(chip.memory_bytes * share),
        chip and chip.flops * share,
        "libtpu",
        importlib.metadata.version("libtpu"),
    )


def gpu(name: str, n_devices: int) -> Target:
    """GPUs of one kind, a name of `GPUS`, side by side.

    Raises:
        InputError: JAX's CUDA plugin is not installed.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        version = importlib.metadata.version("jax")
        raise InputError(
            f"--gpu-target {name}: the GPU compiler is not installed; pip install "
            f"{CUDA_PLUGIN}=={version} (400 MB; the CUDA libraries are not needed)"
        )
    found = get_topology_desc(
        platform="cuda", target_config=config_text(name), topology=f"1x1x{n_devices}"
    ).devices
    return Target(
        name,
        "gpu",
        tuple(found),
        GPUS[name].memory_bytes,
        None,  # no time is estimated
        CUDA_PLUGIN,
        importlib.metadata.version(CUDA_PLUGIN),
    )


@contextlib.contextmanager
def compiling_for(device: jax.Device | None) -> Iterator[None]:
    """Let Pallas lower for a device that is not here; None is JAX's own.

    Its TPU kernels ask JAX's default device what they are lowered for, which is the CPU where a
    program is compiled ahead of time.
    """
    if device is None:
        yield
        return
    with jax.default_device(device):
        yield
