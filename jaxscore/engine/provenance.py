"""Provenance of a result: model, versions, machine, date."""

import datetime
import functools
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.version import VERSION

if TYPE_CHECKING:  # the import loads JAX, which `--help` does not need
    from jaxscore.models.model import Model


_version = functools.cache(importlib.metadata.version)  # cached: it reads files, once per shard


def of_run(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, with its date and versions."""
    return {
        **settings,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "jaxscore": VERSION,
        **{name: _version(name) for name in ("jax", "transformers", "numpy")},
        "python": platform.python_version(),
    }


def of_model(
    name: str | None,
    model: "Model",
    revision: str | None,
    cache_dir: Path | None = None,
    lora: Path | None = None,
    *,
    reproducible: bool = False,
) -> dict[str, Any]:
    """Describe a local model: origin, adapter, precision, device.

    Args:
        name: the name of the checkpoint, or None if the model was not loaded from one.
    """
    import jax

    device, checkpoint = jax.devices()[0], model.checkpoint
    return {
        "model": name or model.model_type,
        "revision": None if name is None else commit(name, revision, cache_dir),
        **({} if lora is None else {"lora": str(lora)}),
        **({"quantized": model.quantized} if model.quantized else {}),
        **({"stored_as": checkpoint.stored_as} if checkpoint.stored_as else {}),
        **({"mesh": str(model.devices.shape)} if model.devices.mesh else {}),
        "model_type": model.model_type,
        **({"left_out": checkpoint.left_out} if checkpoint.left_out else {}),
        **({"accepted_config": dict(checkpoint.accepted)} if checkpoint.accepted else {}),
        "implementation": model.implementation,
        "dtype": model.dtype,
        **({"reproducible": True} if reproducible else {}),
        "device": f"{device.platform} ({device.device_kind})",
    }


def commit(name: str, revision: str | None, cache_dir: Path | None = None) -> str | None:
    """Return the commit of a hub id's cached snapshot, else the requested revision, or None."""
    if name == "demo" or Path(name).exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", cache_dir, revision)
    return Path(config).parent.name if isinstance(config, str) else revision


def machine() -> dict[str, Any]:
    """Describe devices, processes and the user's compiler flags. Initializes JAX."""
    import jax

    kinds = sorted({device.device_kind for device in jax.devices()})
    return {
        "platform": jax.default_backend(),
        "device_kinds": kinds,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "host_cores": os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
    }
