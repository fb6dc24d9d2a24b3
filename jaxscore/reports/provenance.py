"""What made a result: model, settings, versions, date."""

import datetime
import hashlib
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxscore.models.model import Model
from jaxscore.version import VERSION


def of_run(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, then the versions that ran them and the date."""
    import transformers

    return {
        **settings,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "jaxscore": VERSION,
        "jax": jax.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def of_model(
    name: str,
    model: Model,
    revision: str | None,
    cache_dir: Path | None = None,
    lora: Path | None = None,
    *,
    reproducible: bool = False,
) -> dict[str, Any]:
    """A local model: where it is from, what is merged into it, how it is computed and where."""
    device = jax.devices()[0]
    return {
        "model": name,
        "revision": commit(name, revision, cache_dir),
        **({} if lora is None else {"lora": str(lora)}),
        **({"quantized": "int8"} if model.quantized else {}),
        **({"mesh": str(model.arrangement.shape)} if model.arrangement else {}),
        "model_type": model.model_type,
        "implementation": model.implementation,
        "dtype": model.dtype,
        **({"reproducible": True} if reproducible else {}),
        "device": f"{device.platform} ({device.device_kind})",
    }


def of_endpoint(name: str, url: str) -> dict[str, Any]:
    """A model that a server computes; what it is made of nobody here knows."""
    return {"model": name, "endpoint": url}


def commit(name: str, revision: str | None, cache_dir: Path | None = None) -> str | None:
    """The commit of a hub id's cached snapshot, the revision asked for, or None."""
    if name == "demo" or Path(name).exists():
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", cache_dir, revision)
    return Path(found).parent.name if isinstance(found, str) else revision


def digest(path: Path) -> str | None:
    """SHA-256 of a file, hexadecimal; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
