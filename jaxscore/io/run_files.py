"""Names of the files of a run, and writing them under names that nobody has."""

import contextlib
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.atomic import atomic
from jaxscore.io.printable import UNPRINTABLE

MANIFEST = ".run.json"  # ends the name of what says how an output was made
LONGEST = 120  # bytes of a model's name in a file's; a whole name may have 255 in most places


class Part(NamedTuple):
    """One file of a run: `<stem><suffix>`, or `<stem>_2<suffix>` where that is taken."""

    stem: str
    suffix: str
    text: str


def manifest_path(output: Path) -> Path:
    """Where the manifest of an output lies."""
    return output.parent / f"{output.name}{MANIFEST}"


def fitting(name: str, longest: int = LONGEST) -> str:
    """The name, or where it has too many bytes its end and a digest of the whole."""
    raw = name.encode(errors="backslashreplace")
    if len(raw) <= longest:
        return name
    return f"{hashlib.sha256(raw).hexdigest()[:8]}_{raw[9 - longest :].decode(errors='ignore')}"


def model_part(model: str) -> str:
    """A model's name in a file's: `:` and `/` become `_`, as published scripts have it.

    So does what is legal in the name of a served model and not in a file's on some system, and
    what would garble a list of files.
    """
    return fitting(UNPRINTABLE.sub("_", re.sub(r'[:/\\<>"|?*]', "_", model)))


def distinct(name: str) -> str:
    """The name with `_` for what is no letter, digit or one of `.+-`; with a digest if it had any.

    Names that differ only there stay apart.
    """
    plain = re.sub(r"[^\w.+-]", "_", name)
    if plain != name:
        raw = name.encode(errors="backslashreplace")
        plain += f"_{hashlib.sha256(raw).hexdigest()[:8]}"
    return fitting(plain)


def check_folder(folder: Path) -> None:
    """Make the folder and see that it can be written, before the work starts.

    Raises:
        InputError: it cannot.
    """
    if not processes.first():
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


def write_new(folder: Path, parts: Sequence[Part]) -> list[Path]:
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
    if not processes.first():
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
    for path in paths if processes.first() else ():
        with contextlib.suppress(OSError):
            path.unlink()
