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
    """Restrict JAX to this kind of device before it initializes; None takes the best."""
    if device is not None:
        jax.config.update("jax_platforms", "cuda" if device == "gpu" else device)


def use_device(device: str | None) -> None:
    """Run on this kind of device; with None, JAX takes the best.

    Raises:
        InputError: this machine, or this installation of JAX, has none; JAX's own choice then
            stays.
    """
    if device is None:
        return
    before = jax.config.values["jax_platforms"]
    choose_device(device)
    backend = "gpu" if device == "cuda" else device
    try:
        found, reason = jax.default_backend(), "it runs on another device already"
    except (RuntimeError, AssertionError) as problem:
        # JAX ignores "cuda" if it finds no card, and then asserts that it has a device.
        found, reason = None, (str(problem).splitlines() or ["no such card is visible"])[0]
    if found != backend:
        jax.config.update("jax_platforms", before)  # the next call may choose another one
        install = f", or {INSTALL[backend]}" if backend in INSTALL else ""
        raise InputError(
            f"--device {device}: JAX finds none here ({reason}); "
            f"leave --device out to use what there is{install}"
        )


def use_compilation_cache() -> None:
    """Cache compiled programs in the user's cache folder, so that a second run compiles nothing.

    A folder that JAX already uses stays. JAXSCORE_CACHE names another one, and JAXSCORE_CACHE=off
    disables the cache.

    Raises:
        InputError: somebody else can write to the folder: its programs run in this process.
    """
    in_use = jax.config.values["jax_compilation_cache_dir"]
    try:
        if in_use and not ADDRESS.match(in_use):
            remedy = "give JAX another jax_compilation_cache_dir"
            create_private_folder(Path(in_use), Path(in_use), remedy)
        folder = None if in_use else create_cache_folder("xla")
    except OSError:
        return  # with a read-only home every run compiles, which is slower but correct
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
    """Choice of devices once the model is known, see `choose_mesh`; None is the first device.

    Args:
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
    """Devices of this shape, or None for a single device.

    Args:
        shape: result of `parse_mesh`; None chooses automatically.
        config, shapes: of our decoder, its parameters as `jax.ShapeDtypeStruct`; with None for
            both, "auto" puts the whole model on every device.
        n_models, generates: as in `mesh_choice`.

    Raises:
        InputError: too few devices, or no mesh on which the parameters fit.
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
    """The fastest mesh that fits, by an estimate; `model` is 1 if memory is unknown (CPU)."""
    n_devices = jax.device_count()
    memory = limit_bytes()
    if memory is None or config is None or n_devices == 1:
        return MeshShape(data=n_devices)
    # Deferred: a single device, and a CPU, need no estimate
    from jaxscore.engine.auto_mesh import auto_mesh, mesh_estimates, rates_of

    memory //= n_models
    rates = rates_of(jax.devices()[0].device_kind)
    spans_hosts = jax.default_backend() == "gpu" and jax.process_count() > 1
    estimates = mesh_estimates(
        shapes, config, n_devices, memory, rates, generates=generates, spans_hosts=spans_hosts
    )
    chosen = auto_mesh(estimates, memory)
    # Memory that programs may use differs by some bytes between hosts.
    return MeshShape.parse(processes.broadcast_from_first(str(chosen).encode()).decode())


def limit_bytes() -> int | None:
    """Memory of the first device that programs may use, or None if it does not report it (CPU)."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats["bytes_limit"]) if "bytes_limit" in stats else None


def placed_bytes(params: Any) -> int:
    """Bytes on each device of a tree of arrays, or of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(params)
    )


def is_out_of_memory(problem: JaxRuntimeError) -> bool:
    """Whether memory ran out, in compilation or execution."""
    return "RESOURCE_EXHAUSTED" in str(problem)


def free_bytes() -> int:
    """Free memory of the first device, or of the machine if it is a CPU."""
    if (limit := limit_bytes()) is not None:
        stats = jax.local_devices()[0].memory_stats() or {}
        return limit - int(stats.get("bytes_in_use", 0))
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            [kibibytes] = [line.split()[1] for line in file if line.startswith("MemAvailable:")]
        return int(kibibytes) * 1024
    except (OSError, ValueError):  # not Linux: half of all memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
