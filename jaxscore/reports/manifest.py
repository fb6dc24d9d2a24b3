"""`<output>.run.json`: what a result was made of and with, so that it can be made again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxscore.files.atomic import atomic
from jaxscore.files.json_output import json_text
from jaxscore.reports import provenance

FLAGS_LEFT_OUT = {"run", "command", "loaded", "scorer"}  # what argparse carries beside flags


def path_of(output: Path) -> Path:
    """Where the manifest of an output lies."""
    return output.parent / f"{output.name}.run.json"


def write(output: Path, flags: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write an output's manifest beside it.

    Args:
        flags: as argparse has them, defaults included.
        facts: of the run: model, plan, counts, seconds, as JSON has them.

    Raises:
        InputError: as `files.atomic`.
    """
    given = {k: _plain(v) for k, v in sorted(flags.items()) if k not in FLAGS_LEFT_OUT}
    record = {
        "command": flags.get("command"),
        "output": _plain(output),
        "flags": given,
        "versions": provenance.of_run({}),
        "machine": machine(),
        **facts,
    }
    with atomic(path_of(output)) as file:
        file.write(json_text(record))


def machine() -> dict[str, Any]:
    """Devices and processes, and what was said to the compiler from outside."""
    kinds = sorted({device.device_kind for device in jax.devices()})
    return {
        "platform": jax.default_backend(),
        "device_kinds": kinds,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "host_cores": os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()  # names of files may be no text
