"""Files that appear whole or not at all.

Temporary files and folders beside an output, and those that killed runs have left there.

    .NAME.HOST.xxxxxxxx.tmp     HOST is a digest of the host's name and of Linux's boot id

Whoever makes one holds a lock on it until it has its final name. The lock ends with its process,
however that ends. A file whose lock is free is abandoned. On some shared file systems a host does
not see the locks of others: only files of this host are removed. Names of hosts repeat, and so do
machine ids of equal images; boot ids do not. So what was left before a reboot stays, and so does
what a container left, if the next one has another host name.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes, streams

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing is removed
    fcntl = None  # type: ignore[assignment]

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
    if not processes.is_first():
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if streams.is_stream(path):
        with _full_is_said(path), streams.open_stream(path) as stream:
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
    """`temporary_file`, until the stack is closed."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: found a folder, expected the name of a file to write")
        if path.exists() and not path.is_file():  # a file would take the place of /dev/null
            raise InputError(f"{path}: found a device or a socket, expected the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(temporary_file(path))
    except OSError as problem:
        in_the_way = isinstance(problem, FileExistsError)
        reason = f"{path.parent} is no folder" if in_the_way else problem.strerror
        raise InputError(f"{path}: cannot be written ({reason}); give a place that can") from None


END = ".tmp"
LONGEST = 200  # bytes of the output's name in it; most file systems take 255 in all
BOOT = Path("/proc/sys/kernel/random/boot_id")
TRIES = 100  # for a name that nobody has; each has 2**32 of them
_open: set[str] = set()  # what this process has not given its final name yet


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[tuple[int, str]]:
    """A new temporary file for an output: its descriptor, which the caller closes, and its name.

    It is removed when the block ends, unless it has another name by then. Files that killed runs
    of the same output have left are removed first.

    Raises:
        OSError: the folder cannot be written.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with _made(path, lambda name: os.open(name, flags, 0o600)) as (handle, name):
        yield handle if fcntl is None else os.dup(handle), name


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new temporary folder for an output that is a folder; see `temporary_file`."""

    def make(name: str) -> int:
        os.mkdir(name, 0o700)
        return -1 if fcntl is None else os.open(name, os.O_RDONLY)

    with _made(path, make) as (_, name):
        yield Path(name)


def remove_unfinished() -> None:
    """Remove what this process has not finished; it ends now."""
    for name in list(_open):
        with contextlib.suppress(OSError):
            _remove(name)


@contextlib.contextmanager
def _made(path: Path, make: Callable[[str], int]) -> Iterator[tuple[int, str]]:
    remove_abandoned(path)
    handle, name = _locked(path, make)
    _open.add(name)
    try:
        yield handle, name
    finally:
        with contextlib.suppress(OSError):
            _remove(name)
        _open.discard(name)
        if fcntl is not None:
            os.close(handle)  # the lock, last


def _locked(path: Path, make: Callable[[str], int]) -> tuple[int, str]:
    """A new file or folder, which we hold a lock on where there are locks."""
    for _ in range(TRIES):
        name = f"{_prefix(path)}{secrets.token_hex(4)}{END}"
        with contextlib.suppress(FileExistsError):
            handle = make(name)
            # Another run may have taken it for abandoned before the lock was ours.
            if fcntl is None or (_lock(handle) is not False and _is_at(handle, name)):
                return handle, name
            os.close(handle)
    raise FileExistsError(f"no free name for a temporary file beside {path}")


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files of this output whose process is gone."""
    if fcntl is None:
        return
    prefix = re.escape(os.path.basename(_prefix(path)))
    ours = re.compile(f"{prefix}[0-9a-f]{{8}}{re.escape(END)}")
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        found += [one.path for one in entries if ours.fullmatch(one.name)]
    for name in found:
        with contextlib.suppress(OSError):
            _remove_if_abandoned(name)


def _remove_if_abandoned(name: str) -> None:
    if name in _open:
        return
    # NFS locks only what is open for writing, which a folder never is: there it stays.
    access = os.O_RDONLY if stat.S_ISDIR(os.lstat(name).st_mode) else os.O_RDWR
    handle = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _lock(handle) and _is_at(handle, name):
            _remove(name)
    finally:
        os.close(handle)


def _prefix(path: Path) -> str:
    host = socket.gethostname().encode(errors="replace")
    with contextlib.suppress(OSError):
        host += BOOT.read_bytes()
    digest = hashlib.sha256(host).hexdigest()[:8]
    name = os.fsencode(path.name)
    if LONGEST < len(name) <= 255:  # a longer one fits nowhere, as making the file says
        name = name[:LONGEST]
    return str(path.parent / f".{os.fsdecode(name)}.{digest}.")


def _lock(handle: int) -> bool | None:
    """Try to take the lock; None if the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(name))
    except FileNotFoundError:
        return False


def _remove(name: str) -> None:
    if stat.S_ISDIR(os.lstat(name).st_mode):
        shutil.rmtree(name, ignore_errors=True)
    else:
        os.unlink(name)
