"""Files of a run: their names, digests, manifests, and writing over nothing that exists."""

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.printable import UNPRINTABLE

MANIFEST = ".run.json"  # ends the name of what says how an output was made
LONGEST = 120  # bytes of a model's name in a file's; a whole name may have 255 in most places


class RunFile(NamedTuple):
    """One file of a run: `<stem><suffix>`, or `<stem>_2<suffix>` where that is taken."""

    stem: str
    suffix: str
    text: str


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output lies."""
    return output.parent / f"{output.name}{MANIFEST}"


def shorten_name(name: str, longest: int = LONGEST) -> str:
    """The name, or where it has too many bytes its end and a digest of the whole."""
    raw = name.encode(errors="backslashreplace")
    if len(raw) <= longest:
        return name
    return f"{hashlib.sha256(raw).hexdigest()[:8]}_{raw[9 - longest :].decode(errors='ignore')}"


def model_file_name(model: str) -> str:
    """A model's name in a file's: `:` and `/` become `_`, as published scripts have it.

    So does what is legal in the name of a served model and not in a file's on some system, and
    what would garble a list of files.
    """
    return shorten_name(UNPRINTABLE.sub("_", re.sub(r'[:/\\<>"|?*]', "_", model)))


def distinct_file_name(name: str) -> str:
    """The name with `_` for what is no letter, digit or one of `.+-`; with a digest if it had any.

    Names that differ only there stay apart.
    """
    plain = re.sub(r"[^\w.+-]", "_", name)
    if plain != name:
        raw = name.encode(errors="backslashreplace")
        plain += f"_{hashlib.sha256(raw).hexdigest()[:8]}"
    return shorten_name(plain)


def check_writable_folder(folder: Path) -> None:
    """Make the folder and see that it can be written, before the work starts.

    Raises:
        InputError: it cannot.
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
    """Write all parts or none, and over nothing that is there.

    Two runs that end in the same second would give their files the same names: the second
    counts up.

    Returns:
        Where they lie, in order.

    Raises:
        InputError: the folder cannot be written.
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
    """Make all as empty files; False, and none of them, where one is there already."""
    if not processes.is_first():
        return True
    made: list[Path] = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            _remove(made)
            return False
        except OSError as problem:
            _remove(made)
            raise InputError(
                f"{path}: cannot be written ({problem.strerror}); give another place"
            ) from None
        made.append(path)
    return True


def _remove(paths: Sequence[Path]) -> None:
    for path in paths if processes.is_first() else ():
        with contextlib.suppress(OSError):
            path.unlink()


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file, hexadecimal; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# what argparse carries beside flags
FLAGS_LEFT_OUT = {"run", "command", "loaded", "scorer"}


def write_manifest(output: Path, flags: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
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
    path = manifest_path(output)
    with atomic(path) as file:
        file.write(json_text(record))
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()  # names of files may be no text
