"""Outputs that are no files: standard output (`-`), devices and pipes such as /dev/stdout.

A stream gets no manifest, report or journal. If standard output carries the data, messages go to
standard error.
"""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes

NOWHERE = Path(os.devnull)  # the path of a file that is not written
STANDARD = {"-": 1, "/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


class _Data:
    stdout: TextIO | None = None  # before messages were redirected to standard error


def descriptor(path: Path) -> int | None:
    """The file descriptor that a path names, or None for the path of a file."""
    name = str(path)
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", name)
    return int(numbered[1]) if numbered else STANDARD.get(name)


def is_stream(path: Path) -> bool:
    """Whether an output is standard output, another descriptor, a character device or a pipe."""
    if descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # writing to it reports the reason
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


@contextlib.contextmanager
def open_stream(path: Path) -> Iterator[TextIO]:
    """Open a stream for UTF-8 text, flushed when the block ends.

    Raises:
        InputError: the descriptor is closed, or the stream cannot be opened.
        BrokenPipeError: the reader has ended.
    """
    try:
        number = descriptor(path)
        if number == 1:
            stdout = _Data.stdout or sys.stdout
            if stdout is None:
                raise InputError(f"{path}: standard output is closed; give the name of a file")
            stdout.flush()
            number = stdout.fileno()
        target = path if number is None else os.dup(number)
        file = open(target, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem.strerror}); give a file") from None
    with file:
        yield file


@contextlib.contextmanager
def stdout_for_data(outputs: Iterable[Path]) -> Iterator[None]:
    """Redirect printing to standard error in the block, if an output is standard output.

    Raises:
        InputError: standard output is closed.
    """
    if not processes.is_first() or 1 not in map(descriptor, outputs):
        yield
        return
    if sys.stdout is None:
        raise InputError("--output is standard output, which is closed; give a file")
    _Data.stdout = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _Data.stdout = None


def refuse_stream(path: Path, flag: str) -> None:
    """Refuse a stream where a folder is required.

    Raises:
        InputError: `path` is a stream; the message names the flag.
    """
    if is_stream(path):
        raise InputError(
            f"{flag} {path}: found a stream, and this command writes several files; give a folder"
        )
