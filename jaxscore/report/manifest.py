"""`<output>.run.json`: what a result was made of and with, so that it can be made again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.run_files import MANIFEST, manifest_path

# what argparse carries beside flags
FLAGS_LEFT_OUT = {"run", "command", "loaded", "scorer"}
SUFFIX, path_of = MANIFEST, manifest_path


def write(output: Path, flags: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write an output's manifest beside it.

    Args:
        flags: as argparse has them, defaults included, with `command`.
        facts: of the run: versions, machine, model, plan, counts, failures, seconds, as JSON has
            them.

    Returns:
        Where it lies.

    Raises:
        InputError: as `io.atomic`.
    """
    given = {k: _plain(v) for k, v in sorted(flags.items()) if k not in FLAGS_LEFT_OUT}
    record = {
        "command": flags["command"],
        "output": _plain(output),
        "flags": given,
        **facts,
    }
    path = path_of(output)
    with atomic(path) as file:
        file.write(json_text(record))
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()  # names of files may be no text
