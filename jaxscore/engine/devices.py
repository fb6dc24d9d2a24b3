"""Devices of a run: `--device`, `--mesh`, memory, and the compilation cache."""

import functools
import math
import os
from pathlib import Path
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import DeviceMesh
from jaxscore.engine import AUTO
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.local_path import ADDRESS, create_cache_folder, create_private_folder
from jaxscore.models.model import MeshChoice

INSTALL = {"gpu": 'pip install "jax[cuda13]"', "tpu": 'pip install "jax[tpu]"'}


def choose_device(device: str | None) -> None:
    """Restrict JAX to this kind of device before it initializes; None is JAX's choice."""
    if device is not None:
        jax.config.update("jax_platforms", "cuda" if device == "gpu" else device)


def use_device(device: str | None) -> None:
    """Run on this kind of device; with None, JAX chooses.

    Raises:
        InputError: this machine, or this installation of JAX, lacks such a device; JAX's choice is
            then kept.
    """
    if device is None:
        return
    before = jax.config.values["jax_platforms"]
    choose_device(device)
    backend = "gpu" if device == "cuda" else device
    try:
        actual, reason = jax.default_backend(), "it runs on another device already"
    except (RuntimeError, AssertionError) as error:
        # JAX ignores "cuda" if it finds no card, and then asserts that it has a device.
        actual, reason = None, (str(error).splitlines() or ["no such card is visible"])[0]
    if actual != backend:
        jax.config.update("jax_platforms", before)  # the next call may choose another device
        install = f", or {INSTALL[backend]}" if backend in INSTALL else ""
        raise InputError(
            f"--device {device}: JAX finds none here ({reason}); "
            f"omit --device to use an available device{install}"
        )


def use_compilation_cache() -> None:
    """Cache compiled programs in the user's cache folder, so that a second run compiles nothing.

    A folder that JAX already uses is kept. JAXSCORE_CACHE names another folder, and
    JAXSCORE_CACHE=off disables the cache.

    Raises:
        InputError: another user can write to the folder, whose programs run in this process.
    """
    in_use = jax.config.values["jax_compilation_cache_dir"]
    try:
        if in_use and not ADDRESS.match(in_use):
            remedy = "give JAX another jax_compilation_cache_dir"
            create_private_folder(Path(in_use), Path(in_use), remedy)
        folder = None if in_use else create_cache_folder("xla")
    except OSError:
        return  # with a read-only home directory every run compiles, which is slower but correct
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def parse_mesh(text: str) -> MeshShape | None:
    """Parse `data=N,model=M` or `fsdp=N,model=M`; return None for `auto`.

    Raises:
        InputError: anything else.
    """
    if text == AUTO:
        return None
    try:
        return MeshShape.parse(text)
    except ValueError as problem:
        raise InputError(str(problem)) from None


def mesh_choice(
    text: str | None, n_models: int = 1, *, generates: bool = True
) -> MeshChoice | None:
    """Return a function that chooses the devices for a model, see `choose_mesh`.

    Without a mesh the result is None, for the first device.

    Args:
        text: the value of `--mesh`, or None.
        n_models: number of models that share the devices' memory equally.
        generates: see `auto_mesh.mesh_estimates`.

    Raises:
        InputError: `text` is not a valid `--mesh`.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError(
            f"mesh is {type(text).__name__}, expected a string such as 'data=2,model=2' or 'auto'"
        )
    return functools.partial(choose_mesh, parse_mesh(text), n_models=n_models, generates=generates)


def choose_mesh(
    shape: MeshShape | None,
    config: DecoderConfig | None,
    shapes: Any,
    *,
    n_models: int = 1,
    generates: bool = True,
) -> DeviceMesh | None:
    """Create a mesh of this shape; return None for a single device.

    Args:
        shape: the result of `parse_mesh`; None to choose automatically.
        config, shapes: config and parameters (`jax.ShapeDtypeStruct`) of a native decoder. If both
            are None, "auto" puts a copy of the model on every device.
        n_models, generates: see `mesh_choice`.

    Raises:
        InputError: there are too few devices, or the parameters do not fit on any mesh.
    """
    if shape is None:
        shape = _auto(config, shapes, n_models, generates=generates)
    if shape.size == 1 and jax.process_count() == 1:
        return None
    try:
        return DeviceMesh(shape)
    except ValueError as problem:
        raise InputError(str(problem)) from None


def _auto(
    config: DecoderConfig | None, shapes: Any, n_models: int, *, generates: bool
) -> MeshShape:
    """Choose the fastest mesh that fits, by an estimate; on a CPU, `model` is 1."""
    n_devices = jax.device_count()
    memory = limit_bytes()  # unknown on a CPU
    if memory is None or config is None or n_devices == 1:
        return MeshShape(data=n_devices)
    # Deferred: a single device and a CPU need no estimate.
    from jaxscore.engine.auto_mesh import auto_mesh, mesh_estimates, rates_of

    memory //= n_models
    rates = rates_of(jax.devices()[0].device_kind)
    spans_hosts = jax.default_backend() == "gpu" and jax.process_count() > 1
    estimates = mesh_estimates(
        shapes, config, n_devices, memory, rates, generates=generates, spans_hosts=spans_hosts
    )
    chosen = auto_mesh(estimates, memory)
    # The usable memory differs by some bytes between hosts.
    return MeshShape.parse(processes.broadcast_from_first(str(chosen).encode()).decode())


def limit_bytes() -> int | None:
    """Return the memory of the first device that programs may use; None if unreported (CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats["bytes_limit"]) if "bytes_limit" in stats else None


def placed_bytes(params: Any) -> int:
    """Return the bytes on each device of a tree of arrays, or of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(params)
    )


def is_out_of_memory(problem: JaxRuntimeError) -> bool:
    """Return True if memory ran out, in compilation or execution."""
    return "RESOURCE_EXHAUSTED" in str(problem)


def process_bytes() -> int | None:
    """Return the resident bytes of this process; None if the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # not Linux
        return None


def free_bytes() -> int:
    """Return the free bytes of the first device, or of the machine if it is a CPU."""
    if (limit := limit_bytes()) is not None:
        stats = jax.local_devices()[0].memory_stats() or {}
        return limit - int(stats.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            [kibibytes] = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
        return int(kibibytes) * 1024
    except (OSError, ValueError):  # not Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
