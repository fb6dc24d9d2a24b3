"""Files of a run: names, digests, manifests, and writing without overwriting."""

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import UNPRINTABLE, InputError
from jaxscore.io import processes
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.local_path import ADDRESS, mask_address
from jaxscore.io.remote import address_of, displayed
from jaxscore.io.streams import is_stream

MANIFEST = ".run.json"  # ending of the manifest, which describes how an output was made
LONGEST = 120  # most bytes of a model's name in a file name, which may have 255 on most systems
NO_FLAGS = {
    "run",
    "run_file",
    "companions",
    "words",
    "published",
    "command",
    "loaded",
    "scorer",
    "part",
    "remote",
    "is_array",
    "fingerprints",
}  # attributes of argparse's result beside flags

# Flags that do not decide what records say.
OF_THE_RUN = frozenset(
    "input output shard force journal quiet html no_html device mesh batch_tokens distributed "
    "coordinator num_processes process_id join_timeout engine actors".split()
)


class RunFile(NamedTuple):
    """One file of a run: `<stem><suffix>`, or `<stem>_2<suffix>` if that exists."""

    stem: str
    suffix: str
    text: str


def manifest_path(output: Path) -> Path:
    """Path of an output's manifest."""
    return output.parent / f"{output.name}{MANIFEST}"


def shorten_name(name: str, longest: int = LONGEST) -> str:
    """The name; if it is too long, a digest of the whole and its end."""
    raw = name.encode(errors="backslashreplace")
    if len(raw) <= longest:
        return name
    return f"{hashlib.sha256(raw).hexdigest()[:8]}_{raw[9 - longest :].decode(errors='ignore')}"


def model_file_name(model: str) -> str:
    """A model's name as part of a file name: `:` and `/` become `_`, as in published scripts.

    So do characters that some file system refuses, and unprintable ones.
    """
    return shorten_name(UNPRINTABLE.sub("_", re.sub(r'[:/\\<>"|?*]', "_", model)))


def distinct_file_name(name: str) -> str:
    """The name with `_` for all but letters, digits and `.+-`, and with a digest if it changed.

    Different names stay different.
    """
    plain = re.sub(r"[^\w.+-]", "_", name)
    if plain != name:
        raw = name.encode(errors="backslashreplace")
        plain += f"_{hashlib.sha256(raw).hexdigest()[:8]}"
    return shorten_name(plain)


def check_writable_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before the work starts.

    Raises:
        InputError: the folder is not writable.
    """
    if not processes.is_first():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = "found a file" if isinstance(problem, FileExistsError) else problem.strerror
        raise InputError(
            f"{folder}: cannot be written ({reason}), expected a folder that can; "
            "give another with --output-dir"
        ) from None


def write_new_files(folder: Path, parts: Sequence[RunFile]) -> list[Path]:
    """Write all files or none, without overwriting.

    Two runs that end in the same second have the same names: the second one gets a number.

    Returns:
        Paths of the files, in order.

    Raises:
        InputError: the folder is not writable.
    """
    for attempt in itertools.count(1):
        count = f"_{attempt}" if attempt > 1 else ""
        paths = [folder / f"{part.stem}{count}{part.suffix}" for part in parts]
        if _reserve(paths):
            break
    try:
        for path, part in zip(paths, parts, strict=True):
            with atomic(path) as file:
                file.write(part.text)
    except BaseException:
        _remove(paths)
        raise
    return paths


def _reserve(paths: Sequence[Path]) -> bool:
    """Create all as empty files; if one exists, create none and return False."""
    if not processes.is_first():
        return True
    created: list[Path] = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as problem:
            _remove(created)
            if isinstance(problem, FileExistsError):
                return False
            raise InputError(
                f"{path}: cannot be written ({problem.strerror}); give another place"
            ) from None
        created.append(path)
    return True


def _remove(paths: Sequence[Path]) -> None:
    for path in paths if processes.is_first() else ():
        with contextlib.suppress(OSError):
            path.unlink()


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file in hexadecimal, or None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_manifest(output: Path) -> None:
    """Remove an output's manifest before the output is replaced: no other run's lies beside it."""
    if processes.is_first() and not is_stream(output):
        manifest_path(output).unlink(missing_ok=True)


def write_manifest(output: Path, flags: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
    """Write an output's manifest beside it.

    Args:
        flags: argparse's result, including defaults and `command`.
        facts: JSON values about the run: versions, machine, model, plan, counts, failures,
            seconds.

    Returns:
        Path of the manifest.

    Raises:
        InputError: as of `atomic`.
    """
    own = {
        "command": flags["command"],
        "output": _flag_value(output),
        "flags": manifest_flags(flags),
    }
    # `facts` may hold an earlier manifest, whose command, output and flags give way.
    record = {**own, **facts, **own}
    path = manifest_path(output)
    with atomic(path) as file:
        file.write(json_text(record))
    return path


def manifest_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as a manifest has them.

    Args:
        flags: argparse's result.
    """
    return {k: _flag_value(v) for k, v in sorted(flags.items()) if k not in NO_FLAGS}


def _flag_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_flag_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    if isinstance(value, Path) and address_of(value) is not None:
        text = displayed(value)
    elif ADDRESS.match(text) and not re.search(r"\s", text):  # other texts are not changed
        text = mask_address(text)
    return text.encode("utf-8", "backslashreplace").decode()  # a path may be invalid Unicode
