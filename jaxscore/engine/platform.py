"""Which device JAX runs on, and where compiled programs are kept."""

import jax

from jaxscore.errors import InputError
from jaxscore.io.cache_folder import cache_folder

INSTALL = {"cuda": 'pip install "jax[cuda13]"', "tpu": 'pip install "jax[tpu]"'}


def choose_device(device: str | None) -> None:
    """Let JAX look for this kind of device only, once it looks; None lets it take the best."""
    if device is not None:
        jax.config.update("jax_platforms", _platform(device))


def _platform(device: str) -> str:
    return "cuda" if device == "gpu" else device


def use_device(device: str | None) -> None:
    """Run on this kind of device; None leaves the choice to JAX, which takes the best.

    Raises:
        InputError: this machine, or this installation of JAX, has none; JAX's own choice is
            then left as it was.
    """
    if device is None:
        return
    before = jax.config.values["jax_platforms"]
    choose_device(device)
    platform = _platform(device)
    try:
        found, reason = jax.default_backend(), "it runs on another device already"
    except (RuntimeError, AssertionError) as problem:
        # JAX passes over "cuda" where it sees no card, and then asserts that it has a device.
        found, reason = None, (str(problem).splitlines() or ["no such card is visible"])[0]
    if found != ("gpu" if platform == "cuda" else platform):
        jax.config.update("jax_platforms", before)  # the next call may still take another one
        install = f", or {INSTALL[platform]}" if platform in INSTALL else ""
        raise InputError(
            f"--device {device}: JAX finds none here ({reason}); "
            f"leave --device out to use what there is{install}"
        )


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, so that a second run compiles nothing.

    A folder that JAX was already told to use stays. JAXSCORE_CACHE names another one, and
    JAXSCORE_CACHE=off keeps nothing.
    """
    folder = cache_folder("xla")
    if folder is None or jax.config.values["jax_compilation_cache_dir"]:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home compiles every time, which is slower and no less right
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
