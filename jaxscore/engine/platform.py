"""Which device JAX runs on, and where compiled programs are kept."""

import os
from pathlib import Path

import jax
import platformdirs

from jaxscore.errors import InputError

DEVICES = ("cpu", "gpu", "cuda", "tpu")


def choose_device(device: str | None) -> None:
    """Let JAX look for this kind of device only, once it looks; None lets it take the best."""
    if device is not None:
        jax.config.update("jax_platforms", _platform(device))


def _platform(device: str) -> str:
    return "cuda" if device == "gpu" else device


def use_device(device: str | None) -> None:
    """Run on this kind of device; None leaves the choice to JAX, which takes the best.

    Raises:
        InputError: this machine, or this installation of JAX, has none.
    """
    if device is None:
        return
    choose_device(device)
    platform = _platform(device)
    try:
        found, reason = jax.default_backend(), "it runs on another device already"
    except (RuntimeError, AssertionError) as problem:
        # JAX passes over "cuda" where it sees no card, and then asserts that it has a device.
        found, reason = None, (str(problem).splitlines() or ["no such card is visible"])[0]
    if found != ("gpu" if platform == "cuda" else platform):
        extra = "" if device == "cpu" else f"; it needs the extra [{platform}] of this package"
        raise InputError(
            f"--device {device}: JAX finds none here ({reason}); "
            f"leave --device out to use what there is{extra}"
        )


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, so that a second run compiles nothing.

    A folder that JAX was already told to use stays. JAXSCORE_CACHE names another one, and
    JAXSCORE_CACHE=off keeps nothing.
    """
    chosen = os.environ.get("JAXSCORE_CACHE")
    if chosen == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("jaxscore")) / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home compiles every time, which is slower and no less right
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def same_bits() -> dict[str, bool]:
    """Compiler options with which a program gives equal inputs equal bits in every run.

    On a GPU XLA otherwise times several kernels and takes the fastest, and some of them add up
    in the order in which threads come along. On a CPU and a TPU nothing has to be said.
    """
    return {"xla_gpu_deterministic_ops": True} if jax.default_backend() == "gpu" else {}
