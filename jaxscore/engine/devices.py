"""`--device` and `--mesh`: the devices of a run, and the cache of compiled programs."""

import functools
from typing import Any

import jax

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MODEL, MeshShape
from jaxscore.device.sharding import DeviceMesh, bytes_a_device, divides, parameter_specs
from jaxscore.engine.defaults import AUTO
from jaxscore.engine.memory import limit_bytes
from jaxscore.errors import InputError
from jaxscore.io.local_path import cache_folder
from jaxscore.io.printable import format_bytes
from jaxscore.models.model import MeshChoice

INSTALL = {"cuda": 'pip install "jax[cuda13]"', "tpu": 'pip install "jax[tpu]"'}


def choose_device(device: str | None) -> None:
    """Restrict JAX to this kind of device before it initializes; None takes the best."""
    if device is not None:
        jax.config.update("jax_platforms", _platform(device))


def _platform(device: str) -> str:
    return "cuda" if device == "gpu" else device


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
    platform = _platform(device)
    try:
        found, reason = jax.default_backend(), "it runs on another device already"
    except (RuntimeError, AssertionError) as problem:
        # JAX ignores "cuda" if it finds no card, and then asserts that it has a device.
        found, reason = None, (str(problem).splitlines() or ["no such card is visible"])[0]
    if found != ("gpu" if platform == "cuda" else platform):
        jax.config.update("jax_platforms", before)  # the next call may choose another one
        install = f", or {INSTALL[platform]}" if platform in INSTALL else ""
        raise InputError(
            f"--device {device}: JAX finds none here ({reason}); "
            f"leave --device out to use what there is{install}"
        )


def use_compilation_cache() -> None:
    """Cache compiled programs in the user's cache folder, so that a second run compiles nothing.

    A folder that JAX already uses stays. JAXSCORE_CACHE names another one, and JAXSCORE_CACHE=off
    disables the cache.
    """
    folder = cache_folder("xla")
    if folder is None or jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # with a read-only home every run compiles, which is slower but correct
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


WORKING = 0.2  # share of a device's memory for batches, keys and values


def parse_mesh(text: str) -> MeshShape | None:
    """Parse `data=N,model=M`, either of which may be left out; return None for `auto`.

    Raises:
        InputError: anything else.
    """
    if text == AUTO:
        return None
    try:
        return MeshShape.parse(text)
    except ValueError as problem:
        raise InputError(str(problem)) from None


def parameter_bytes(shapes: Any, config: DecoderConfig, mesh: MeshShape) -> int:
    """Bytes of all parameters on one device.

    Args:
        shapes: the tree of `init_params`, arrays or their shapes.

    Raises:
        ValueError: the mesh does not split this decoder, see `device.sharding.check`.
    """
    return sum(jax.tree.leaves(bytes_a_device(shapes, parameter_specs(shapes, config, mesh), mesh)))


def auto_mesh(
    shapes: Any, config: DecoderConfig, n_devices: int, memory: int, working: int = 0
) -> MeshShape:
    """Mesh of all devices with the smallest `model`, a power of two, whose parameters fit.

    Args:
        shapes: as in `parameter_bytes`.
        memory: bytes of each device.
        working: bytes of a batch beside the parameters.

    Raises:
        InputError: none fits.
    """
    tried = []
    for power in range(n_devices.bit_length()):
        model = 2**power
        if n_devices % model or not divides(config, model):
            continue
        mesh = MeshShape(n_devices // model, model)
        tried.append(f"{format_bytes(parameter_bytes(shapes, config, mesh))} with {MODEL}={model}")
        if parameter_bytes(shapes, config, mesh) + working <= memory:
            return mesh
    raise InputError(
        f"mesh {AUTO}: no mesh of {n_devices} devices fits {format_bytes(memory)} per device; "
        f"parameters take {', '.join(tried)} per device, and a batch {format_bytes(working)}; give "
        "more devices or memory"
    )


def mesh_choice(text: str | None, n_models: int = 1) -> MeshChoice | None:
    """Choice of devices once the model is known, see `choose_mesh`; None is the first device.

    Args:
        n_models: number of models that share the devices' memory equally.

    Raises:
        InputError: `text` is not a valid `--mesh`.
    """
    if text is None:
        return None
    return functools.partial(choose_mesh, parse_mesh(text), n_models=n_models)


def choose_mesh(
    shape: MeshShape | None, config: DecoderConfig | None, shapes: Any, *, n_models: int = 1
) -> DeviceMesh | None:
    """Devices of this shape, or None for a single device.

    Args:
        shape: result of `parse_mesh`; None chooses automatically.
        config, shapes: of our decoder, its parameters as `jax.ShapeDtypeStruct`; with None for
            both, "auto" puts the whole model on every device.
        n_models: as in `mesh_choice`.

    Raises:
        InputError: too few devices, or no mesh on which the parameters fit.
    """
    if shape is None:
        shape = _auto(config, shapes, n_models)
    if shape.size == 1 and jax.process_count() == 1:
        return None
    try:
        return DeviceMesh(shape)
    except ValueError as problem:
        raise InputError(str(problem)) from None


def _auto(config: DecoderConfig | None, shapes: Any, n_models: int) -> MeshShape:
    """Mesh with the smallest `model` whose parameters fit; 1 if memory is unknown (CPU)."""
    n_devices = jax.device_count()
    memory = limit_bytes()
    if memory is None or config is None or n_devices == 1:
        return MeshShape(data=n_devices)
    memory //= n_models
    return auto_mesh(shapes, config, n_devices, memory, int(WORKING * memory))
