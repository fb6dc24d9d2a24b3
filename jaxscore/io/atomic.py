"""Files that appear whole or not at all."""

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes, streams, temporary

# Bytes that are collected before the file is written: each write lets other threads run, and then
# waits for them.
BUFFER = 1 << 20
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # what writing itself can meet


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file that takes its name when the block ends well, and leaves nothing otherwise.

    A stream, see `io.streams`, is written as it is.

    Open it before the work starts: a place that cannot be written is then known at once. Of
    several processes the first writes, and what the others write goes nowhere.

    Raises:
        InputError: the folder cannot be made or written, or is full; `path` is a folder or a
            device that is no stream.
    """
    if not processes.first():
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if streams.is_stream(path):
        with _full_is_said(path), streams.opened(path) as stream:
            yield stream
        return
    path = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
    with contextlib.ExitStack() as stack:
        handle, name = _opened(path, stack)
        stack.enter_context(_full_is_said(path))
        with os.fdopen(handle, "w", BUFFER, encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        os.replace(name, path)


@contextlib.contextmanager
def _full_is_said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno not in NO_ROOM:
            raise
        raise InputError(
            f"{path}: cannot be written ({problem.strerror}); make room or give another place"
        ) from None


def _opened(path: Path, stack: contextlib.ExitStack) -> tuple[int, str]:
    """`temporary.file_beside`, until the stack is closed."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: found a folder, expected the name of a file to write")
        if path.exists() and not path.is_file():  # a file would take the place of /dev/null
            raise InputError(f"{path}: found a device or a socket, expected the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(temporary.file_beside(path))
    except OSError as problem:
        in_the_way = isinstance(problem, FileExistsError)
        reason = f"{path.parent} is no folder" if in_the_way else problem.strerror
        raise InputError(f"{path}: cannot be written ({reason}); give a place that can") from None


def json_number(value: float | None) -> float | str | None:
    """What stands for a number in JSON, which has neither NaN nor Infinity: null, "Infinity"."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def json_safe(value: Any) -> Any:
    """`json_number` throughout a structure."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_safe(item) for item in value]
    return json_number(value) if isinstance(value, float) else value
